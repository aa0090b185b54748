"""Images in files: OCI layouts and both forms of ``docker save`` are read; what is written twice is the same bytes."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.unit.oci_layers import add_image, digest, entry, files, layer, link
from thawd.errors import ImageError
from thawd.oci import documents, image_lookup, layout_reading
from thawd.oci.documents import ProcessConfig
from thawd.oci.image_store import Images
from thawd.oci.layout_writing import write_archive, write_folder


@pytest.fixture
def made(tmp_path: Path) -> tuple[Images, str]:
    """A store with an image, and the image's digest."""
    store = Images(tmp_path / "made")
    return store, add_image(store, layer(entry("base", b"b")), layer(entry("app", b"a")))


def obtained(tmp_path: Path, text: str, store: str = "store") -> dict[str, bytes | str | None]:
    images = Images(tmp_path / store)
    return files(images.root(image_lookup.obtain(images, text, folder=tmp_path, environ={})).folder)


EXPECTED = {"base": b"b", "app": b"a"}


def test_an_image_is_read_from_a_folder_a_file_and_a_compressed_file(tmp_path: Path, made: tuple[Images, str]) -> None:
    write_folder(*made, tmp_path / "layout", name="app:1")
    write_archive(*made, tmp_path / "app.tar", name="app:1")
    (tmp_path / "app.tar.gz").write_bytes(gzip.compress((tmp_path / "app.tar").read_bytes()))
    for number, text in enumerate(
        (
            "oci:layout",
            "oci:layout:app:1",
            "./layout",
            "oci-archive:app.tar",
            f"{tmp_path}/app.tar:app:1",
            "./app.tar.gz",
        )
    ):
        assert obtained(tmp_path, text, f"store{number}") == EXPECTED, text
    with pytest.raises(ImageError, match="has no image other; names there: app:1"):
        obtained(tmp_path, "oci:layout:other")


def test_what_is_written_twice_is_the_same_bytes(tmp_path: Path, made: tuple[Images, str]) -> None:
    for name in ("one.tar", "two.tar"):
        write_archive(*made, tmp_path / name, name="app:1")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    write_folder(*made, tmp_path / "layout", name="app:1")
    before = files(tmp_path / "layout")
    write_folder(*made, tmp_path / "layout", name="app:1")
    assert files(tmp_path / "layout") == before


def test_a_layout_takes_further_images_and_another_folder_is_refused(tmp_path: Path, made: tuple[Images, str]) -> None:
    store, first = made
    second = add_image(store, layer(entry("second", b"")))
    write_folder(store, first, tmp_path / "layout", name="app:1")
    write_folder(store, second, tmp_path / "layout", name="app:2")
    assert obtained(tmp_path, "oci:layout:app:1") == EXPECTED
    write_folder(store, first, tmp_path / "twice", name="app:1")
    write_folder(store, first, tmp_path / "twice", name="app:2")
    assert obtained(tmp_path, "oci:twice") == EXPECTED
    assert obtained(tmp_path, "oci:layout:app:2") == {"second": b""}
    with pytest.raises(ImageError, match="several images; name one of: app:1, app:2"):
        obtained(tmp_path, "oci:layout")
    write_folder(store, second, tmp_path / "layout", name="app:1")
    assert obtained(tmp_path, "oci:layout:app:1") == {"second": b""}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    with pytest.raises(ImageError, match="not an OCI layout"):
        write_folder(store, first, tmp_path / "mine", name=None)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]


def docker_save(
    path: Path, *, layers: list[bytes], config: bytes | None = None, tags: tuple[str, ...] = ("app:1",)
) -> None:
    """Write a file as Docker did before version 25, with one layer that is a link to that of another image."""
    if config is None:
        config = documents.encode(
            documents.ImageConfig(
                documents.machine_architecture(), "linux", documents.RootFilesystem([digest(each) for each in layers])
            )
        )
    name = digest(config)[7:] + ".json"
    paths = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": name, "RepoTags": list(tags), "Layers": paths}]
    entries = [entry(name, config), entry("manifest.json", json.dumps(manifest).encode())]
    entries += [entry(path, content) for path, content in zip(paths[:-1], layers[:-1], strict=True)]
    entries += [entry("shared/layer.tar", layers[-1]), link(paths[-1], "../shared/layer.tar")]
    path.write_bytes(layer(*entries))


def test_an_image_is_read_from_the_older_form_of_docker_save(tmp_path: Path) -> None:
    docker_save(tmp_path / "app.tar", layers=[layer(entry("base", b"b")), layer(entry("app", b"a"))])
    assert obtained(tmp_path, "docker-archive:app.tar") == EXPECTED
    assert obtained(tmp_path, "docker-archive:app.tar:app:1") == EXPECTED
    with pytest.raises(ImageError, match="0 images fit other:2; names there: app:1"):
        obtained(tmp_path, "docker-archive:app.tar:other:2")


def test_a_layer_of_docker_save_that_the_configuration_does_not_have_is_not_used(tmp_path: Path) -> None:
    right = documents.encode(
        documents.ImageConfig(
            documents.machine_architecture(), "linux", documents.RootFilesystem([digest(layer(entry("a", b"")))])
        )
    )
    docker_save(tmp_path / "app.tar", layers=[layer(entry("b", b""))], config=right)
    with pytest.raises(ImageError, match="not used"):
        obtained(tmp_path, "./app.tar")


def test_a_layout_that_is_cut_changed_or_none_is_refused_in_words(tmp_path: Path, made: tuple[Images, str]) -> None:
    write_archive(*made, tmp_path / "app.tar", name=None)
    whole = (tmp_path / "app.tar").read_bytes()
    for text in ("nothing.tar", "oci:gone"):
        with pytest.raises(ImageError, match="does not exist"):
            obtained(tmp_path, f"./{text}" if ":" not in text else text)
    for content, message in (
        (whole[: len(whole) // 2], "tar file"),
        (b"no tar", "tar file"),
        (b"", "tar file"),
        (layer(), "neither"),
    ):
        (tmp_path / "bad.tar").write_bytes(content)
        with pytest.raises(ImageError, match=message):
            obtained(tmp_path, "./bad.tar")
    write_folder(*made, tmp_path / "layout", name=None)
    store, added = made
    blob = tmp_path / "layout/blobs/sha256" / store.image(added).manifest.layers[0].digest[7:]
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with pytest.raises(ImageError, match="other content"):
        obtained(tmp_path, "oci:layout")
    blob.unlink()
    with pytest.raises(ImageError, match="is missing"):
        obtained(tmp_path, "oci:layout")


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "blobs/../../etc/passwd"])
def test_a_document_names_no_file_outside_of_the_layout(tmp_path: Path, path: str) -> None:
    manifest = json.dumps([{"Config": path, "RepoTags": [], "Layers": [path]}]).encode()
    (tmp_path / "layout").mkdir()
    (tmp_path / "layout/manifest.json").write_bytes(manifest)
    (tmp_path / "app.tar").write_bytes(layer(entry("manifest.json", manifest), link("out", path)))
    for text in ("oci:layout", "./app.tar"):
        with pytest.raises(ImageError, match="is missing"):
            obtained(tmp_path, text)


def test_docker_and_podman_find_their_document_in_what_thawd_writes(tmp_path: Path, made: tuple[Images, str]) -> None:
    write_archive(*made, tmp_path / "app.tar", name="app:1")
    with tarfile.open(tmp_path / "app.tar") as tar:
        [document] = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        assert document["RepoTags"] == ["app:1"]
        assert set(tar.getnames()) >= {document["Config"], *document["Layers"], "oci-layout", "index.json"}
        for member in tar:
            assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")


def test_the_home_folder_of_a_user_that_does_not_exist_is_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"~nobodyx/app\.tar does not exist"):
        obtained(tmp_path, "oci:~nobodyx/app.tar")


def saved(path: Path, manifest: object, **files: bytes) -> str:
    """Write a file as ``docker save`` does, and return its name."""
    entries = [entry(name, content) for name, content in files.items()]
    path.write_bytes(layer(entry("manifest.json", json.dumps(manifest).encode()), *entries))
    return f"docker-archive:{path}"


def test_files_that_would_fill_the_disk_or_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [f"sha256:{'0' * 64}"]}}
    )
    manifest = [{"Config": "config", "Layers": ["layer"]}]
    text = saved(tmp_path / "app.tar", manifest, config=config.encode(), layer=b"x" * 2000)
    monkeypatch.setattr(documents, "LARGEST_LAYER_BYTES", 1000)
    with pytest.raises(ImageError, match="layer has more than 1,000 bytes"):
        obtained(tmp_path, text)
    monkeypatch.setattr(layout_reading, "_MOST_MEMBERS", 2)
    with pytest.raises(ImageError, match="more than 2 entries"):
        obtained(tmp_path, text)


def test_a_nul_in_what_an_image_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/manifest.json").write_text(json.dumps([{"Config": "a\0b", "Layers": []}]))
    with pytest.raises(ImageError, match="is missing"):
        obtained(tmp_path, "./folder")
    images = Images(tmp_path / "store")
    for config in (ProcessConfig(env=["A=\0"]), ProcessConfig(cmd=["\0"]), ProcessConfig(working_dir="/\0")):
        with pytest.raises(ImageError, match="has a NUL character"):
            images.root(add_image(images, layer(entry("f")), config=config))
