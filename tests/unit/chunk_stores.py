"""Stores of chunks for tests: a place in memory, and machines with a store of snapshots and their files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.snapshot_images import Draft, descriptor, operation, whole
from thawd.errors import ResourceNotFoundException
from thawd.snapshot.inspect import reader
from thawd.snapshot.store import file_lists
from thawd.snapshot.store.images import ImageOrigin, Snapshot, SnapshotStore
from thawd.stores.chunk_places import PlacedObject
from thawd.transfer import receiving
from thawd.transfer.chunk_downloads import ChunkSource
from thawd.transfer.receiving import Received
from thawd.transfer.store_keys import FunctionKey, StoreKey

KEY = StoreKey(b"k" * 32)
WEIGHTS = os.urandom(700 << 10)
"""Contents of a large array that several images have."""

ARRAY = 0x7F40_0000_0000


@dataclass
class MemoryPlace:
    """A `ChunkPlace` in memory, with a clock that tests set."""

    name: str = "memory"
    frees_chunks: bool = False
    now_s: float = 1000.0
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    puts: list[str] = field(default_factory=list)

    def put(self, key: str, data: bytes) -> None:
        self.puts.append(key)
        self.objects[key] = (data, self.now_s)

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        if key not in self.objects:
            raise ResourceNotFoundException(f"there is no {key}.")
        return self.objects[key][0]

    def find(self, key: str) -> PlacedObject | None:
        return PlacedObject(key, len(self.objects[key][0]), self.objects[key][1]) if key in self.objects else None

    def listed(self, prefix: str) -> Iterator[PlacedObject]:
        for key in list(self.objects):
            if key.startswith(f"{prefix}/") and (found := self.find(key)) is not None:
                yield found

    def remove(self, key: str) -> None:
        self.objects.pop(key, None)

    def chunks(self) -> list[str]:
        """Return the keys of all chunks."""
        return [key for key in self.objects if key.startswith("chunks/")]


class Machine:
    """A data folder with snapshots. Its files can be those of another machine: the same paths, other inodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared_object = folder / "lib" / "shared.so"
        self.module = folder / "data" / "environments" / ("ab" * 32) / "module.py"
        self.store = SnapshotStore(folder / "data" / "snapshots")

    def install(self) -> None:
        """Write the files, with new inodes and times."""
        for path, content in ((self.shared_object, b"library" * 1000), (self.module, b"x = 1\n")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(content)
        (self.module.parent / "bin").mkdir(exist_ok=True)
        python = self.module.parent / "bin" / "python"
        python.unlink(missing_ok=True)
        python.symlink_to("/usr/bin/python3")

    def image(self, *, text: bytes = b"heap") -> Draft:
        """Draft an image that maps the library and contains the weights."""
        draft = whole()
        # In place of a folder, with which an image could not be sent.
        draft.records["descriptors"][3] = descriptor("DEVICE", 3, index=3, open_flags=2)
        status = self.shared_object.stat()
        draft.records["files"][0] |= {
            "path": draft.string(str(self.shared_object)),
            "inode": status.st_ino,
            "bytes": status.st_size,
            "modified_ns": status.st_mtime_ns,
        }
        pages = -(-len(WEIGHTS) // 4096)
        draft.records["operations"].append(operation("DATA", ARRAY, pages, offset=draft.store(WEIGHTS)))
        draft.records["operations"].append(operation("DATA", ARRAY + (1 << 30), 1, offset=draft.store(text)))
        return draft

    def freeze(self, *, version: str = "1", text: bytes = b"heap", base: str | None = None) -> Snapshot:
        """Put an image into the store, with the list of files that it depends on."""
        with self.store.begin() as draft:
            self.image(text=text).write(draft.image)
            status = self.module.stat()
            stamp = (str(self.module), status.st_size, status.st_mtime_ns, status.st_ino)
            files = file_lists.listed([stamp], reader.read(draft.image), find=lambda path: "")
            draft.files.write_bytes(file_lists.encode(files))
            return self.store.adopt(draft, origin(version, base=base))


def origin(version: str = "1", *, key: str = "key", base: str | None = None) -> ImageOrigin:
    """Return an origin of the function ``classify``."""
    return ImageOrigin(
        function="classify", version=version, key=key, python="3.12.1", init_ms=1.0, freeze_ms=1.0, data_bytes=1,
        self_test="passed", base=base,
    )  # fmt: skip


def elsewhere(machine: Machine) -> Machine:
    """The same paths on another machine: an empty data folder, and files with other inodes."""
    shutil.rmtree(machine.folder / "data")
    kept = machine.shared_object.with_suffix(f".{machine.shared_object.stat().st_ino}")
    os.link(machine.shared_object, kept)  # so that its inode is not used again
    machine.install()
    shutil.rmtree(machine.module.parent)
    return Machine(machine.folder)


def pull(machine: Machine, place: MemoryPlace, name: str = "classify", key: StoreKey | FunctionKey = KEY) -> Received:
    return receiving.receive(machine.store, ChunkSource(place), receiving.find(place, key, name), program=None)
