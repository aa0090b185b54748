"""Layers that were made to do harm: to files of this machine through links, to lower layers, to memory and time."""

from __future__ import annotations

import gzip
import os
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.unit.oci_layers import digest, entry, files, folder, hard_link, layer, link
from thawd.deploy.images.added_archives import is_archive
from thawd.errors import ImageError
from thawd.oci.image_lookup import obtain
from thawd.oci.image_store import Images
from thawd.oci.merging import merge
from thawd.oci.removing import remove_tree
from thawd.oci.tar_entries import Limits
from thawd.oci.unpacking import unpack


def unpacked(tmp_path: Path, content: bytes, name: str = "layer", *, limits: Limits | None = None) -> Path:
    blob = tmp_path / f"{name}.blob"
    blob.write_bytes(content)
    diff_id = digest(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    unpack(blob, tmp_path / name, diff_id=diff_id, what="L", limits=limits)
    return tmp_path / name


def merged(tmp_path: Path, *layers: bytes) -> tuple[Path, dict[str, tuple[int, int]]]:
    made = [unpacked(tmp_path, content, f"layer{number}") for number, content in enumerate(layers)]
    owners = merge(made, tmp_path / "root", what="I")
    return tmp_path / "root", owners


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the machine, which no image may touch."""
    place = tmp_path / "outside"
    (place / "private").mkdir(parents=True, mode=0o700)
    (place / "key").write_text("key")
    return place


@pytest.mark.parametrize("removed", [[], [entry(".wh.d", b"")]])
def test_a_link_in_place_of_a_folder_leads_no_mode_and_no_owner_to_the_machines_files(
    tmp_path: Path, outside: Path, removed: list[tuple[object, bytes]]
) -> None:
    lower = layer(folder("d"), folder("d/private", 0o777), entry("d/key", b"", uid=1000))
    upper = layer(*removed, link("d", str(outside)))  # type: ignore[arg-type]
    root, owners = merged(tmp_path, lower, upper)
    assert files(root) == {"d": str(outside)}
    assert stat.S_IMODE((outside / "private").stat().st_mode) == 0o700
    assert owners == {}


def test_the_mode_of_a_folder_below_a_link_that_became_a_folder_is_set(tmp_path: Path) -> None:
    lower = layer(folder("real"), link("d", "real"))
    root, owners = merged(tmp_path, lower, layer(folder("d"), folder("d/in", 0o711), entry("d/f", b"", uid=7)))
    assert stat.S_IMODE((root / "d/in").stat().st_mode) == 0o711
    assert owners == {"d/f": (7, 0)}


@pytest.mark.parametrize("whiteout", ["lib/.wh..wh..opq", "lib/.wh.so", "lib/sub/.wh.so"])
def test_a_whiteout_in_a_folder_that_replaces_a_link_removes_nothing_behind_the_link(
    tmp_path: Path, whiteout: str
) -> None:
    # Overlay file systems mark a folder that replaces something else as opaque.
    lower = layer(
        folder("usr"), folder("usr/lib"), entry("usr/lib/so", b"1"), entry("usr/lib/sub/so", b"2"),
        link("lib", "usr/lib"),
    )  # fmt: skip
    root, _ = merged(tmp_path, lower, layer(folder("lib"), entry(whiteout, b""), entry("lib/own", b"3")))
    assert files(root)["usr/lib/so"] == b"1" and files(root)["usr/lib/sub/so"] == b"2"
    assert files(root)["lib"] is None and files(root)["lib/own"] == b"3"


def test_a_whiteout_through_a_link_that_stays_removes_what_is_behind_it(tmp_path: Path) -> None:
    lower = layer(folder("usr"), folder("usr/lib"), entry("usr/lib/so", b"1"), link("lib", "usr/lib"))
    root, _ = merged(tmp_path, lower, layer(entry("lib/.wh.so", b"")))
    assert files(root) == {"usr": None, "usr/lib": None, "lib": "usr/lib"}


@pytest.mark.parametrize("mtime", ["nan", "inf", "-inf", "1e300", "-5", "x"])
def test_a_time_that_is_none_is_replaced(tmp_path: Path, mtime: str) -> None:
    made = unpacked(tmp_path, layer(entry("f", b"f", pax_headers={"mtime": mtime})))
    assert 0 <= (made / "tree/f").stat().st_mtime <= 1 << 33


@pytest.mark.parametrize(
    "numbers", [{"uid": "-1"}, {"uid": "99999999999999999999"}, {"gid": "nan"}, {"size": "-1"}, {"size": "1e9"}]
)
def test_numbers_of_a_header_that_cannot_be_are_replaced_or_refused(tmp_path: Path, numbers: dict[str, str]) -> None:
    try:
        made = unpacked(tmp_path, layer(entry("f", b"f", pax_headers=numbers)))
    except ImageError as error:
        assert str(error).startswith("L: ")
    else:
        assert merge([made], tmp_path / "root", what="I") == {}


def test_a_folder_at_any_depth_is_made_merged_and_removed() -> None:
    # pytest cannot remove such folders if the test fails.
    place = Path(tempfile.mkdtemp())
    try:
        root, _ = merged(place, layer(entry("/".join("d" * 1500) + "/f", b"")), layer(entry(".wh.d", b"")))
        assert files(root) == {}
        remove_tree(place / "layer0")
        assert not (place / "layer0").exists()
    finally:
        subprocess.run(["rm", "-rf", place], check=True)


def test_folders_that_no_entry_names_count_as_entries(tmp_path: Path) -> None:
    content = layer(*(entry(f"{n}/" + "d/" * 100 + "f", b"") for n in range(5)))
    with pytest.raises(ImageError, match="more than 300 folders that it does not name"):
        unpacked(tmp_path, content, limits=Limits(entries=300))


def test_zeros_behind_the_end_of_a_layer_are_limited(tmp_path: Path) -> None:
    bomb = gzip.compress(layer(entry("f", b"f")) + bytes(64 << 20), compresslevel=1)
    with pytest.raises(ImageError, match="more than"):
        unpacked(tmp_path, bomb, limits=Limits(bytes=1 << 20, entries=10))


def test_a_hard_link_never_changes_the_file_of_the_layer_below(tmp_path: Path) -> None:
    lower = layer(entry("f", b"lower"))
    upper = layer(hard_link("h", "f"), entry("h", b"upper"))
    root, _ = merged(tmp_path, lower, upper)
    assert files(root) == {"f": b"lower", "h": b"upper"}
    assert (tmp_path / "layer0/tree/f").read_bytes() == b"lower"


@pytest.mark.parametrize("numbers", [{"GNU.sparse.map": "a,b"}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}])
def test_a_tar_file_with_a_header_that_cannot_be_read_is_no_archive_for_add(
    tmp_path: Path, numbers: dict[str, str]
) -> None:
    (tmp_path / "f.tar").write_bytes(layer(entry("f", b"x" * 600, pax_headers=numbers)))
    assert not is_archive(tmp_path / "f.tar")
    with pytest.raises(ImageError, match="L: it is not a tar file that can be read"):
        unpacked(tmp_path, (tmp_path / "f.tar").read_bytes())


def with_header(kind: bytes, content: bytes, size: int | None = None) -> bytes:
    """A tar file that begins with a header of this kind."""
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, len(content) if size is None else size
    padding = bytes(-len(content) % tarfile.BLOCKSIZE)
    return info.tobuf(tarfile.USTAR_FORMAT) + content + padding + layer(entry("file", b"x"))


def test_headers_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    record = b"30013 n%05d=" + b"x" * 30_000 + b"\n"
    several = b"".join(with_header(tarfile.XGLTYPE, record % number)[: 512 + 30_208] for number in range(3))
    with pytest.raises(ImageError, match="global headers have more than 65,536 bytes"):
        unpacked(tmp_path, several + layer(entry("file", b"x")))
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
        (tmp_path / "app.tar").write_bytes(with_header(kind, b"", 1 << 32))
        os.truncate(tmp_path / "app.tar", 1 << 33)
        with pytest.raises(ImageError, match="a header has 4,294,967,296 bytes; at most 4,194,304 are read"):
            obtain(Images(tmp_path / "store"), "./app.tar", folder=tmp_path, environ={})
