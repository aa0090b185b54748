"""The index of images by key: what other stores add, replace and remove is seen; sidecars are read once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thawd.snapshot.store import index
from thawd.snapshot.store.images import ImageOrigin, SnapshotStore

from .snapshot_images import whole


def put(store: SnapshotStore, key: str, *, content: bytes = b"") -> str:
    """Store an image, and return its digest."""
    draft = store.begin()
    whole().write(draft.image)
    with draft.image.open("ab") as file:
        file.write(content)
    origin = ImageOrigin(
        function="f",
        version="1",
        key=key,
        python="3.11.7",
        init_ms=1.0,
        freeze_ms=1.0,
        data_bytes=1,
        self_test="passed",
    )
    return store.adopt(draft, origin).sha256


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


def found(store: SnapshotStore, key: str) -> str | None:
    snapshot = store.find(key)
    return None if snapshot is None else snapshot.sha256


def test_images_that_another_store_adds_and_removes_are_seen_at_once(folder: Path) -> None:
    ours, others = SnapshotStore(folder), SnapshotStore(folder)
    assert found(ours, "aa") is None
    first = put(others, "aa", content=b"1")
    assert found(ours, "aa") == first
    second = put(others, "bb", content=b"2")
    assert (found(ours, "aa"), found(ours, "bb")) == (first, second)

    others.remove(others.resolve(first))

    assert (found(ours, "aa"), found(ours, "bb")) == (None, second)


def test_an_image_that_gets_another_key_is_found_by_that_one_alone(folder: Path) -> None:
    ours, others = SnapshotStore(folder), SnapshotStore(folder)
    digest = put(others, "aa")
    assert found(ours, "aa") == digest

    assert put(others, "not a digest") == digest

    assert found(ours, "aa") is None
    assert found(ours, "not a digest") == digest


def test_an_image_that_must_not_be_used_is_found_once_it_may(folder: Path) -> None:
    store = SnapshotStore(folder)
    digest = put(store, "aa")
    image = folder / f"{digest}.img"
    image.chmod(0o644)
    os.utime(folder, (1, 1))
    assert found(SnapshotStore(folder), "aa") is None
    assert found(store, "aa") is None

    image.chmod(0o600)

    assert found(store, "aa") == digest


def test_a_folder_that_has_not_changed_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SnapshotStore(folder)
    digests = {key: put(store, key, content=key.encode()) for key in ("aa", "bb", "cc")}
    os.utime(folder, (1, 1))
    looked: list[Path] = []
    look = index.look
    monkeypatch.setattr(index, "look", lambda image, **given: looked.append(image) or look(image, **given))

    assert {key: found(store, key) for key in digests} == digests
    assert sorted(path.stem for path in looked) == sorted(digests.values())
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail("the folder was listed again"))
    assert {key: found(store, key) for key in digests} == digests
