"""The store of images: roots, names, and what is removed, also with several processes and after a kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tests.unit.oci_layers import add_image, digest, entry, files, layer
from thawd.errors import ImageError
from thawd.oci.blobs import Blobs, HashingFile
from thawd.oci.documents import ProcessConfig
from thawd.oci.image_store import Images


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "oci")


BASE = layer(entry("base", b"base"))


def test_a_root_has_the_files_and_the_configuration_of_its_image(images: Images) -> None:
    config = ProcessConfig(
        env=["PATH=/bin", "EMPTY=", "TWO=a=b"],
        entrypoint=["/run"],
        cmd=["app.handler"],
        working_dir="/var//task/",
        user="7",
    )
    added = add_image(images, BASE, layer(entry("app", b"app")), config=config)
    root = images.root(added)
    assert files(root.folder) == {"base": b"base", "app": b"app"}
    assert (root.digest, root.env) == (added, {"PATH": "/bin", "EMPTY": "", "TWO": "a=b"})
    assert (root.entrypoint, root.cmd, root.working_dir, root.user) == (["/run"], ["app.handler"], "/var/task", "7")


def test_an_image_without_configuration_starts_in_its_root_folder(images: Images) -> None:
    root = images.root(add_image(images, BASE))
    assert (root.env, root.entrypoint, root.cmd, root.working_dir, root.user) == ({}, [], [], "/", "")


def test_images_share_layers_and_equal_ones_share_the_root(images: Images) -> None:
    first = images.root(add_image(images, BASE, layer(entry("app", b"1"))))
    second = images.root(add_image(images, BASE, layer(entry("app", b"2"))))
    again = images.root(add_image(images, BASE, layer(entry("app", b"1")), config=ProcessConfig(cmd=["x"])))
    assert (first.folder / "base").stat().st_ino == (second.folder / "base").stat().st_ino
    assert again.folder == first.folder != second.folder
    assert again.digest != first.digest


def test_an_image_for_another_architecture_is_refused_with_both(images: Images) -> None:
    added = add_image(images, BASE, architecture="s390x")
    with pytest.raises(ImageError, match=r"linux/s390x, and this machine is linux/\w+.*--platform"):
        images.root(added)


def test_a_layer_that_is_not_what_the_configuration_says_leaves_nothing(images: Images) -> None:
    with images.adding():
        wrong = layer(entry("f", b"f"))
        images.blobs.store(digest(wrong), [wrong], size=len(wrong), what="test")
    added = add_image(images, BASE, layer(entry("../out", b"")))
    with pytest.raises(ImageError, match="leave the image's folder"):
        images.root(added)
    assert not list((images.folder / "new").glob("[0-9a-f]*")) and not (images.folder / "roots").exists()


@pytest.mark.parametrize(
    ("content", "size", "message"),
    [(b"other", 4, "longer"), (b"oth", 4, "ends after 3"), (b"othe", 4, "other content")],
)
def test_a_blob_is_stored_only_with_its_digest_and_size(
    images: Images, content: bytes, size: int, message: str
) -> None:
    with pytest.raises(ImageError, match=message):
        images.blobs.store(digest(b"blob"), iter([content[:2], content[2:]]), size=size, what="test")
    assert not list(images.blobs.folder.iterdir())


def test_names_are_those_of_an_oci_layout(images: Images) -> None:
    first, second = add_image(images, BASE, name="app:1"), add_image(images, layer(), name="app:2")
    images.set_name("app:1", second)
    assert images.names() == {"app:1": second, "app:2": second}
    assert (images.folder / "oci-layout").read_bytes() == b'{"imageLayoutVersion":"1.0.0"}'
    assert images.remove_name("app:1") and not images.remove_name("app:1")
    assert first not in images.names().values()


def test_what_no_name_needs_is_removed_except_a_root_in_use(images: Images) -> None:
    kept, gone = add_image(images, BASE, name="kept"), add_image(images, BASE, layer(entry("app", b"x" * 1000)))
    used = images.root(add_image(images, layer(entry("used", b""))))
    images.root(kept)
    root = images.root(gone)
    (images.folder / "new" / "left").mkdir()
    (images.blobs.folder / ".new-left").touch()
    with images.using(used):
        assert images.collect() > 0
        assert files(used.folder) == {"used": b""}
    assert not root.folder.exists() and files(images.root(kept).folder) == {"base": b"base"}
    assert len(list((images.folder / "layers").iterdir())) == 1 and not list((images.folder / "new").iterdir())
    assert len(list(images.blobs.folder.iterdir())) == 3
    images.collect()
    assert not used.folder.exists()
    with pytest.raises(ImageError, match="was removed"), images.using(used):
        pass


def test_nothing_is_removed_while_another_process_adds(images: Images) -> None:
    add_image(images, BASE)
    with images.adding(), pytest.raises(ImageError, match="another process"):
        images.collect()


def _make_root(folder: Path, added: str) -> None:
    Images(folder).root(added)


def test_processes_that_want_one_root_at_once_all_get_it_whole(images: Images) -> None:
    content = [layer(*(entry(f"{number}/{name}", b"x") for name in range(50))) for number in range(3)]
    added = add_image(images, *content)
    spawning = multiprocessing.get_context("fork")
    processes = [spawning.Process(target=_make_root, args=(images.folder, added)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(files(images.root(added).folder)) == 3 * 51
    assert len(list((images.folder / "layers").iterdir())) == 3


@pytest.mark.parametrize("seam", ["rename", "sync", "link", "write"])
def test_a_process_that_is_killed_leaves_nothing_half_that_is_used(images: Images, seam: str) -> None:
    added = add_image(images, layer(*(entry(f"d/{name}", b"content") for name in range(20))), name="app")
    child = os.fork()
    if child == 0:
        _die_in(seam)
        images.root(added)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert seam == "sync" or not list(images.folder.glob("roots/*"))
    assert len(files(images.root(added).folder)) == 21
    images.collect()
    assert not list((images.folder / "new").iterdir())
    assert len(files(images.root(added).folder)) == 21


def test_a_folder_that_a_power_cut_may_have_damaged_is_made_again(
    images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = add_image(images, layer(entry("f", b"content")))
    stored = images.image(added)
    digests = [(stored.manifest.layers[0].digest, stored.config.rootfs.diff_ids[0])]
    tree = images.tree(digests, "test")
    (images.folder / "layers" / digests[0][1][7:] / "tree" / "f").write_bytes(b"")
    assert images.tree(digests, "test") == tree and files(tree) == {"f": b""}
    monkeypatch.setattr("thawd.oci.image_store.boot_id", lambda: "the next boot")
    assert files(images.tree(digests, "test")) == {"f": b"content"}
    images.root(added)
    monkeypatch.setattr("thawd.oci.image_store.boot_id", lambda: "another boot")
    inode = tree.stat().st_ino
    assert images.root(added).folder.stat().st_ino == inode


def _die_in(seam: str) -> None:
    """Have this process killed in the middle of its work."""
    from thawd.oci import image_store, merging, unpacking

    def die(*given: object, **named: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if seam == "rename":
        Path.rename = die  # type: ignore[method-assign, assignment]
    elif seam == "sync":
        image_store._sync_file_system = die
    elif seam == "link":
        merging.os.link = die  # type: ignore[attr-defined]
    else:
        unpacking._write_all = die


def test_a_blob_that_was_stored_twice_is_one_file(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    for _ in range(2):
        assert blobs.add(b"{}") == digest(b"{}")

    def write(file: HashingFile) -> None:
        file.write(b"{")
        file.write(b"}")

    written = blobs.add_written(write)
    assert written == (digest(b"{}"), 2)
    assert [path.name for path in blobs.folder.iterdir()] == [digest(b"{}").removeprefix("sha256:")]
