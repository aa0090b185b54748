"""Layers become folders: what a tar file can say, what merging does with it, and what hostile tar files cannot do."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.oci_layers import digest, entry, files, folder, hard_link, layer, link
from thawd.errors import ImageError
from thawd.oci.merging import merge
from thawd.oci.removing import remove_tree
from thawd.oci.tar_entries import Limits
from thawd.oci.unpacking import read_changes, unpack


def unpacked(tmp_path: Path, content: bytes, name: str = "layer", *, limits: Limits | None = None) -> Path:
    blob = tmp_path / f"{name}.blob"
    blob.write_bytes(content)
    target = tmp_path / name
    diff_id = digest(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    unpack(blob, target, diff_id=diff_id, what="L", limits=limits)
    return target


def merged(tmp_path: Path, *layers: bytes) -> Path:
    made = [unpacked(tmp_path, content, f"layer{number}") for number, content in enumerate(layers)]
    merge(made, tmp_path / "root", what="I")
    return tmp_path / "root"


def test_files_folders_links_modes_and_times_are_as_in_the_tar_file(tmp_path: Path) -> None:
    long = "a/" + "n" * 200 + "/" + "m" * 150
    content = layer(
        folder("./"),
        folder("a", 0o750),
        entry("a/run", b"#!", mode=0o755, mtime=1000),
        entry(long, b"long"),
        link("abs", "/a/run"),
        hard_link("same", "a/run"),
    )
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        root = merged(tmp_path / str(kind), content) if (tmp_path / str(kind)).mkdir() is None else None
        assert root is not None
        assert files(root)["abs"] == "/a/run"
        assert (root / long).read_bytes() == b"long"
        assert (root / "same").stat().st_ino == (root / "a/run").stat().st_ino
        assert (root / "a/run").stat().st_mode & 0o7777 == 0o755
        assert (root / "a/run").stat().st_mtime == 1000
        assert (root / "a").stat().st_mode & 0o7777 == 0o750


def test_set_id_bits_are_removed_and_devices_left_out_with_a_note(tmp_path: Path) -> None:
    content = layer(
        entry("su", b"x", mode=0o4755),
        entry("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry("pipe", type=tarfile.FIFOTYPE),
    )
    made = unpacked(tmp_path, content)
    assert stat.S_IMODE((made / "tree/su").stat().st_mode) == 0o755
    assert [path.name for path in (made / "tree").iterdir()] == ["su"]
    assert read_changes(made).notes == [
        f"{name}: a device or FIFO, which was left out" for name in ("dev/null", "pipe")
    ]


def test_a_sparse_file_has_its_holes(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.write(b"begin")
        file.seek(8 << 20)
        file.write(b"end")
    archive = tmp_path / "s.tar"
    assert os.system(f"tar --sparse --format=gnu -C {tmp_path} -cf {archive} sparse") == 0
    assert archive.stat().st_size < 1 << 20
    made = unpacked(tmp_path, archive.read_bytes())
    assert (made / "tree/sparse").read_bytes() == sparse.read_bytes()
    assert (made / "tree/sparse").stat().st_blocks * 512 < 4 << 20


@pytest.mark.parametrize("compress", ["none", "gzip", "zstd"])
def test_a_layer_is_read_whatever_compresses_it(tmp_path: Path, compress: str) -> None:
    content = layer(entry("f", b"content" * 1000))
    blob = tmp_path / "blob"
    if compress == "zstd":
        zstandard = pytest.importorskip("zstandard")
        # Two frames: some tools write one for each part of a layer.
        packed = zstandard.compress(content[:700]) + zstandard.compress(content[700:])
    else:
        packed = gzip.compress(content) if compress == "gzip" else content
    blob.write_bytes(packed)
    unpack(blob, tmp_path / "made", diff_id=digest(content), what="L")
    assert (tmp_path / "made/tree/f").read_bytes() == b"content" * 1000
    if compress != "none":
        blob.write_bytes(packed[:-20])
        with pytest.raises(ImageError, match=r"damaged|tar file|digest"):
            unpack(blob, tmp_path / "cut", diff_id=digest(content), what="L")


ESCAPES = {
    "dots": [entry("../out", b"x")],
    "dots within": [entry("a/../../out", b"x")],
    "absolute": [entry("/out", b"x")],
    "a link above the root": [link("up", "../.."), entry("up/out", b"x")],
    "a link to a link above": [link("a", "b"), link("b", "../../"), entry("a/out", b"x")],
    "links in a circle": [link("a", "b"), link("b", "a"), entry("a/f", b"x")],
    "a hard link by dots": [hard_link("h", "../../etc/passwd")],
    "a hard link through a link": [link("up", ".."), hard_link("h", "up/../secret")],
    "a hard link to a folder": [folder("d"), hard_link("h", "d")],
    "a file below a file": [entry("f", b""), entry("f/g", b"x")],
    "a whiteout of dots": [entry("a/.wh..", b"")],
    "a whiteout of the parent": [entry(".wh...", b"")],
    "a nameless whiteout": [entry(".wh.", b"")],
    "a name too long": [entry("n" * 300, b"")],
}


@pytest.mark.parametrize("case", ESCAPES)
def test_an_entry_that_would_leave_the_folder_or_cannot_be_is_refused_by_name(tmp_path: Path, case: str) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(ImageError, match="L: "):
        unpacked(tmp_path, layer(*ESCAPES[case]))
    assert not list(tmp_path.parent.glob("out")) and not (tmp_path / "out").exists()


def test_an_absolute_link_leads_to_a_place_in_the_image(tmp_path: Path) -> None:
    content = layer(link("etc", "/real/etc"), entry("etc/passwd", b"inside"))
    assert files(merged(tmp_path, content)) == {
        "etc": "/real/etc", "real": None, "real/etc": None, "real/etc/passwd": b"inside",
    }  # fmt: skip


def test_a_link_may_lead_up_and_through_as_many_links_as_the_kernel_follows(tmp_path: Path) -> None:
    chain = [link(f"l{number}", f"l{number + 1}") for number in range(39)]
    content = layer(
        folder("a"), folder("b"), link("a/up", "../b/../b/./"), entry("a/up/f", b"f"),
        folder("l39"), *chain, entry("l0/g", b"g"),
    )  # fmt: skip
    root = merged(tmp_path, content)
    assert (root / "b/f").read_bytes() == b"f" and (root / "l39/g").read_bytes() == b"g"
    with pytest.raises(ImageError, match="circle"):
        longer = [link(f"l{number}", f"l{number + 1}") for number in range(41)]
        unpacked(tmp_path, layer(folder("l41"), *longer, entry("l0/g", b"g")), "long")


def test_a_later_entry_replaces_an_earlier_one_of_its_layer(tmp_path: Path) -> None:
    content = layer(
        link("a", "/etc/passwd"), entry("a", b"file"), folder("d", 0o700), entry("d/x", b""), entry("d", b"now a file"),
        folder("e"), entry("e/y", b"y"), folder("e", 0o711),
    )  # fmt: skip
    root = merged(tmp_path, content)
    assert files(root) == {"a": b"file", "d": b"now a file", "e": None, "e/y": b"y"}
    assert stat.S_IMODE((root / "e").stat().st_mode) == 0o711


def test_whiteouts_remove_what_is_in_lower_layers_only(tmp_path: Path) -> None:
    lower = layer(
        folder("d"), entry("d/a", b"a"), entry("d/b", b"b"), folder("o"), entry("o/x", b"x"), entry("top", b"t")
    )
    upper = layer(
        entry("d/.wh.a", b""), entry("o/new", b"n"), entry("o/.wh..wh..opq", b""), entry(".wh.top", b""),
        entry(".wh.gone", b""), entry("d/.wh.kept", b""), entry("d/kept", b"k"), entry(".wh..wh.plnk", b""),
    )  # fmt: skip
    assert files(merged(tmp_path, lower, upper)) == {"d": None, "d/b": b"b", "d/kept": b"k", "o": None, "o/new": b"n"}


def test_layers_replace_files_folders_and_links_by_each_other(tmp_path: Path) -> None:
    lower = layer(
        entry("f", b""), folder("d"), entry("d/x", b""), link("l", "d"), folder("keep", 0o700), entry("keep/k", b"1")
    )
    upper = layer(
        folder("f"), entry("f/in", b"1"), entry("d", b"2"), folder("l"), entry("l/own", b"3"), folder("keep", 0o755)
    )
    root = merged(tmp_path, lower, upper)
    assert files(root) == {
        "f": None, "f/in": b"1", "d": b"2", "l": None, "l/own": b"3", "keep": None, "keep/k": b"1",
    }  # fmt: skip
    assert stat.S_IMODE((root / "keep").stat().st_mode) == 0o755


def test_a_folder_that_a_layer_does_not_name_leaves_a_link_of_a_lower_layer(tmp_path: Path) -> None:
    lower = layer(folder("usr"), folder("usr/lib"), link("lib", "usr/lib"))
    root = merged(tmp_path, lower, layer(entry("lib/so", b"so")))
    assert files(root) == {"lib": "usr/lib", "usr": None, "usr/lib": None, "usr/lib/so": b"so"}


def test_a_link_of_a_lower_layer_leads_no_upper_layer_out(tmp_path: Path) -> None:
    for up in (entry("up/out", b""), entry("up/.wh.secret", b""), hard_link("h", "up/secret")):
        place = tmp_path / up[0].name.replace("/", "-")
        place.mkdir()
        (place / "secret").write_text("secret")
        with pytest.raises(ImageError, match="leads out"):
            merged(place, layer(link("up", "../")), layer(up))
        assert (place / "secret").exists() and not (place / "out").exists()


def test_owners_are_those_of_the_topmost_layer_and_files_belong_to_who_unpacks(tmp_path: Path) -> None:
    lower = layer(entry("a", b"", uid=1, gid=2), entry("b", b"", uid=3), folder("d"), entry("d/x", b"", uid=4))
    upper = layer(entry("b", b""), entry("d/y", b"", gid=5), entry("d/.wh.x", b""), entry("e", b"", uid=1 << 40))
    made = [unpacked(tmp_path, content, f"o{number}") for number, content in enumerate((lower, upper))]
    assert merge(made, tmp_path / "root", what="I") == {"a": (1, 2), "d/y": (0, 5)}
    assert (tmp_path / "root/a").stat().st_uid == os.geteuid()


def test_a_hard_link_to_a_file_of_a_lower_layer_is_made_and_one_to_nothing_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    root = merged(tmp_path / "a", layer(entry("f", b"f")), layer(hard_link("g/h", "f")))
    assert (root / "g/h").stat().st_ino == (root / "f").stat().st_ino
    with pytest.raises(ImageError, match="does not have"):
        merged(tmp_path, layer(entry("f", b"f")), layer(hard_link("h", "etc/passwd")))


def test_a_hard_link_that_would_replace_the_folder_of_its_target_is_refused(tmp_path: Path) -> None:
    link, file = entry("a", type=tarfile.LNKTYPE, linkname="a/b"), entry("a/b", b"content")
    with pytest.raises(ImageError, match="would replace"):
        merged(tmp_path, layer(link, file))


def test_files_of_a_root_are_those_of_its_layers(tmp_path: Path) -> None:
    root = merged(tmp_path, layer(entry("f", b"f")))
    assert (root / "f").stat().st_ino == (tmp_path / "layer0/tree/f").stat().st_ino


def test_a_folder_without_rights_is_made_and_removed(tmp_path: Path) -> None:
    root = merged(tmp_path, layer(folder("d", 0), entry("d/f", b"f")))
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o500
    remove_tree(root)
    assert not root.exists()


def test_limits_of_size_entries_and_headers_end_unpacking(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="more than 3 entries"):
        unpacked(tmp_path, layer(*(entry(str(n), b"") for n in range(9))), "n", limits=Limits(entries=3))
    with pytest.raises(ImageError, match="more than 10 bytes"):
        unpacked(tmp_path, layer(entry("a", b"x" * 11)), "s", limits=Limits(bytes=10))
    bomb = layer(entry("a", b"", pax_headers={"comment": "x" * (8 << 20)}))
    with pytest.raises(ImageError, match="a header has 8,388,625 bytes; at most 4,194,304 are read"):
        unpacked(tmp_path, gzip.compress(bomb), "h")


def test_another_content_than_the_digest_says_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(layer(entry("f", b"f")))
    with pytest.raises(ImageError, match="not used"):
        unpack(tmp_path / "blob", tmp_path / "made", diff_id=digest(b"other"), what="L")


def test_a_header_that_is_broken_in_the_middle_is_not_taken_for_the_end(tmp_path: Path) -> None:
    content = bytearray(layer(entry("a", b"1"), entry("b", b"2"), entry("c", b"3")))
    content[1024 + 150] ^= 1  # the checksum of the second header
    with pytest.raises(ImageError, match="tar file"):
        unpacked(tmp_path, bytes(content))


names = st.sampled_from(
    ["a", "b", "a/b", "..", "a/../..", "/", "/x", ".wh.a", ".wh..wh..opq", "a/.wh..", "", ".", "l/x", "l"]
)
kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"Z"])
entries = st.builds(
    lambda name, kind, target, mode: entry(name, type=kind, linkname=target, mode=mode),
    names, kinds, st.sampled_from(["a", "..", "/", "../../..", "/etc", "a/b", "l", ""]), st.integers(0, 0o7777),
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layers=st.lists(st.lists(entries, max_size=6), min_size=1, max_size=3),
    noise=st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=12)), max_size=2),
)
def test_whatever_layers_say_nothing_is_made_outside_and_every_refusal_is_an_image_error(
    tmp_path_factory: pytest.TempPathFactory,
    layers: list[list[tuple[tarfile.TarInfo, bytes]]],
    noise: list[tuple[int, bytes]],
) -> None:
    place = tmp_path_factory.mktemp("fuzz")
    (place / "inner").mkdir()
    try:
        made = []
        for number, each in enumerate(layers):
            content = bytearray(layer(*each))
            for at, junk in noise:
                content[at : at + len(junk)] = junk
            made.append(unpacked(place / "inner", bytes(content), str(number)))
        merge(made, place / "inner" / "root", what="I")
    except ImageError:
        pass
    assert {path.name for path in place.iterdir()} == {"inner"}
    expected = {str(n) for n in range(len(layers))} | {f"{n}.blob" for n in range(len(layers))} | {"root"}
    assert {path.name for path in (place / "inner").iterdir()} <= expected
    for path in (place / "inner").rglob("*"):
        assert path.is_symlink() or not stat.S_IMODE(path.stat().st_mode) & 0o6000
    remove_tree(place)
