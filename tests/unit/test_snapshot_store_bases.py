"""Images that refer to a base: the store keeps the base as long as an image needs it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from thawd.errors import ResourceConflictException, StoreError
from thawd.snapshot.store.images import ImageOrigin, Snapshot, SnapshotStore


class Clock:
    """A clock that tests set."""

    now_unix_s = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now_unix_s


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(folder: Path, clock: Clock) -> SnapshotStore:
    return SnapshotStore(folder, now=clock, max_age_s=100.0)


def add(store: SnapshotStore, content: bytes, *, base: Snapshot | None = None) -> Snapshot:
    origin = ImageOrigin(
        function="f", version="1", key=sha256(content).hexdigest(), python="3.12.1", init_ms=1.0, freeze_ms=1.0,
        data_bytes=1, self_test="passed", base=None if base is None else base.sha256,
    )  # fmt: skip
    with store.begin() as draft:
        draft.image.write_bytes(content)
        return store.adopt(draft, origin)


def test_a_lease_on_an_image_keeps_its_base_in_use(store: SnapshotStore) -> None:
    base = add(store, b"base")
    over = add(store, b"over", base=base)
    with store.use(over):
        assert {snapshot.sha256 for snapshot in store.snapshots() if snapshot.in_use} == {base.sha256, over.sha256}
    assert not any(snapshot.in_use for snapshot in store.snapshots())


def test_an_unused_base_is_neither_removed_nor_evicted_before_the_last_image_over_it(
    store: SnapshotStore, clock: Clock
) -> None:
    base = add(store, b"base")
    over = [add(store, content, base=base) for content in (b"one", b"other")]
    with pytest.raises(ResourceConflictException, match=f"{base.id} is the base of 2 others"):
        store.remove(base)
    clock.now_unix_s += 1000
    with store.use(over[0]):  # so the base is used, too
        pass
    assert [snapshot.sha256 for snapshot in store.evict()] == [over[1].sha256]
    clock.now_unix_s += 1000
    store.touch(over[0])  # the base was last used too long ago, but the image was not
    assert store.evict() == []
    clock.now_unix_s += 1000
    assert [snapshot.sha256 for snapshot in store.evict()] == [over[0].sha256, base.sha256]


def test_of_too_many_images_a_base_goes_with_the_last_that_refers_to_it(folder: Path) -> None:
    store = SnapshotStore(folder, max_bytes=0)
    base = add(store, b"base")
    over = add(store, b"over", base=base)
    with store.use(over):
        assert store.evict() == []
    assert [snapshot.sha256 for snapshot in store.evict()] == [over.sha256, base.sha256]


def test_an_image_without_its_base_is_not_used(store: SnapshotStore) -> None:
    base = add(store, b"base")
    over = add(store, b"over", base=base)
    assert over.sidecar is not None
    base.path.unlink()
    assert store.find(over.sidecar.origin.key) is None
    with pytest.raises(StoreError, match=f"refers to the base {base.id}, which has been removed"):
        store.use(over)


def test_an_image_whose_base_is_not_private_is_not_used(store: SnapshotStore) -> None:
    base = add(store, b"base")
    over = add(store, b"over", base=base)
    base.path.chmod(0o644)
    with pytest.raises(StoreError, match="has the mode 0644"):
        store.use(over)
    assert not any(snapshot.in_use for snapshot in store.snapshots())
