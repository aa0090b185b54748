"""Images of functions are kept in the store as long as a version uses them, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.oci_layers import add_image, entry, layer
from thawd.errors import ImageError
from thawd.oci.image_store import Images
from thawd.publishing.container_images import ContainerImages
from thawd.runtime import search_path, template


@pytest.fixture
def store(tmp_path: Path) -> Images:
    return Images(tmp_path / "store")


def server(store: Images, data: Path) -> ContainerImages:
    data.mkdir()
    return ContainerImages(store, data, environ={})


def test_an_image_of_a_function_outlives_its_name_until_no_version_uses_it(store: Images, tmp_path: Path) -> None:
    digest = add_image(store, layer(entry("a")), name="app:1")
    images = server(store, tmp_path / "data")

    assert images.digest_of("app:1", folder=tmp_path) == digest
    store.remove_name("app:1")
    store.collect()
    assert images.digest_of(digest, folder=tmp_path) == digest
    images.release(keep={digest.partition(":")[2]})
    store.collect()
    assert store.image(digest).digest == digest
    images.release(keep=set())
    store.collect()
    with pytest.raises(ImageError):
        images.digest_of(digest, folder=tmp_path)


def test_an_image_is_not_removed_between_being_found_and_being_kept(
    store: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = add_image(store, layer(entry("a")))
    images = server(store, tmp_path / "data")
    keep = Images.set_name

    def late(self: Images, name: str, found: str) -> None:
        with pytest.raises(ImageError, match="another process uses"):
            Images(store.folder).collect()
        keep(self, name, found)

    monkeypatch.setattr(Images, "set_name", late)
    assert images.digest_of(digest, folder=tmp_path) == digest
    store.collect()
    assert store.image(digest).digest == digest


def test_servers_that_share_a_store_keep_each_others_images_and_those_of_removed_ones_go(
    store: Images, tmp_path: Path
) -> None:
    digest = add_image(store, layer(entry("a")), name="app:1")
    one, other, gone = (server(store, tmp_path / name) for name in ("one", "other", "gone"))
    for images in (one, other, gone):
        images.digest_of("app:1", folder=tmp_path)
    store.remove_name("app:1")
    (tmp_path / "gone").rmdir()

    one.release(keep=set())

    assert list(store.names()) == [f"{tmp_path}/other/functions/{digest.partition(':')[2]}"]


def test_a_process_in_the_root_of_an_image_refuses_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(search_path.WORKING_FOLDER, "/var/task")

    assert template.fork_refusal() == "each environment of a container image has a root of its own"
