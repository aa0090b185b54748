"""What a snapshot brings is used by other functions only if it is what its name says; what a store lacks is refused."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from tests.unit.chunk_stores import KEY, Machine, MemoryPlace, elsewhere, origin, pull
from tests.unit.tiny_package import requirements_file, wheel
from thawd.errors import StoreError
from thawd.publishing.interpreters import Interpreter, prepare_environment
from thawd.publishing.uv import find_uv
from thawd.runtime.changed_files import SourceFiles, changed
from thawd.snapshot.inspect import reader
from thawd.snapshot.store import file_lists
from thawd.snapshot.store.file_digests import FileDigests
from thawd.snapshot.store.images import ImageOrigin, Snapshot
from thawd.stores import threads as store_threads
from thawd.stores.chunk_places import FolderPlace
from thawd.stores.code_copies import PackageStore
from thawd.stores.received_folders import functions_of
from thawd.transfer import sending, upkeep
from thawd.transfer.chunk_downloads import Patience
from thawd.transfer.exchange import SnapshotExchange
from thawd.transfer.store_keys import StoreKey

ME = Interpreter(Path(sys.executable), sys.version_info[:3])


def freeze_with(machine: Machine, path: Path, *, function: str = "classify") -> Snapshot:
    """Freeze a function that has read a file."""
    with machine.store.begin() as draft:
        machine.image(text=f"{function} {path.stat()}".encode()).write(draft.image)
        status = path.stat()
        stamp = (str(path), status.st_size, status.st_mtime_ns, status.st_ino)
        files = file_lists.listed([stamp], reader.read(draft.image), find=lambda path: "")
        draft.files.write_bytes(file_lists.encode(files))
        return machine.store.adopt(draft, origin_of(function))


def origin_of(function: str) -> ImageOrigin:

    return msgspec.structs.replace(origin(), function=function)


def prepare(requirements: Path, root: Path, function: str) -> Path:
    """Make a virtual environment with uv if it is installed, which takes a tenth of pip's processor time."""
    environ = {**os.environ, "UV_CACHE_DIR": str(root.parent / "uv-cache")}
    call = prepare_environment(
        *(requirements, ME, root), on_line=lambda line: None, environ=environ, uv=find_uv(), function=function
    )
    return asyncio.run(call)


def test_a_virtual_environment_from_elsewhere_serves_only_the_functions_that_brought_it(
    tmp_path: Path, machine: Machine, place: MemoryPlace
) -> None:
    requirements = requirements_file(tmp_path / "code", "--no-index\n--find-links wheels\ntiny\n")
    wheel(tmp_path / "code" / "wheels")
    root = machine.folder / "data" / "environments"
    python = prepare(requirements, root, "classify")
    [planted] = python.parent.parent.rglob("site-packages/tiny.py")
    planted.unlink()  # uv has linked it
    planted.write_text("PLANTED = 1\n")
    os.utime(planted, (1, 1))
    sending.send(machine.store, freeze_with(machine, planted), place, KEY)
    there = elsewhere(machine)
    pull(there, place)
    assert functions_of(python.parent.parent) == frozenset({"classify"})
    assert prepare(requirements, root, "classify") == python
    own = prepare(requirements, root, "other")
    assert own != python
    assert prepare(requirements, root, "other") == own
    assert "PLANTED" not in (own.parent.parent / planted.relative_to(python.parent.parent)).read_text()
    assert planted.read_text() == "PLANTED = 1\n", "what the function brought stays"


def test_a_second_function_shares_a_received_virtual_environment_only_if_its_byte_code_is_the_same(
    machine: Machine, place: MemoryPlace
) -> None:
    environment = machine.module.parent
    (environment / "module.pyc").write_bytes(b"byte code")
    sending.send(machine.store, freeze_with(machine, machine.module), place, KEY)
    sending.send(machine.store, freeze_with(machine, machine.module, function="same"), place, KEY)
    (environment / "module.pyc").write_bytes(b"of others")
    sending.send(machine.store, freeze_with(machine, machine.module, function="other"), place, KEY)
    there = elsewhere(machine)
    pull(there, place)
    pull(there, place, "same")
    assert functions_of(environment) == frozenset({"classify", "same"})
    with pytest.raises(StoreError, match=r"module\.pyc differs"):
        pull(there, place, "other")
    assert functions_of(environment) == frozenset({"classify", "same"})


@pytest.mark.parametrize("planted", ["module.py", "module.pyc"])
def test_a_package_that_is_not_what_its_name_says_is_refused(
    planted: str, machine: Machine, place: MemoryPlace
) -> None:
    code = machine.folder / "code"
    code.mkdir()
    (code / "module.py").write_text("x = 1\n")
    package = PackageStore(machine.folder / "data" / "packages").publish(code).path
    sending.send(machine.store, freeze_with(machine, package / "module.py"), place, KEY)
    good = dict(place.objects)
    (package / planted).write_text("planted = 1\n")
    os.utime(package / planted, (1, 1))
    place.objects.clear()
    sending.send(machine.store, freeze_with(machine, package / "module.py"), place, KEY)
    there = elsewhere(machine)
    with pytest.raises(StoreError, match="name is not that of this content"):
        pull(there, place)
    assert not package.exists()
    assert there.store.snapshots() == []
    place.objects = good
    pull(there, place)
    assert (package / "module.py").read_text() == "x = 1\n"


def test_of_code_that_this_machine_has_only_the_files_of_the_snapshot_are_read(
    machine: Machine, place: MemoryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = machine.folder / "code"
    code.mkdir()
    for name in ("module.py", "weights.bin"):
        (code / name).write_text("x = 1\n")
    packages = machine.folder / "data" / "packages"
    package = PackageStore(packages).publish(code).path
    sending.send(machine.store, freeze_with(machine, package / "module.py"), place, KEY)
    there = elsewhere(machine)
    assert PackageStore(packages).publish(code).path == package
    read: list[str] = []
    digest_of = FileDigests.of
    monkeypatch.setattr(FileDigests, "of", lambda self, path: read.append(path.name) or digest_of(self, path))
    assert pull(there, place).snapshot.problem is None
    assert "module.py" in read and "weights.bin" not in read
    (package / "module.py").write_text("x = 2\n")
    with pytest.raises(StoreError, match=r"module\.py has another content"):
        pull(there, place)


def test_a_file_that_init_did_not_find_must_be_missing_elsewhere(machine: Machine, place: MemoryPlace) -> None:
    absent = machine.folder / "settings.json"
    sources = SourceFiles()
    sources.watch()
    try:
        with pytest.raises(FileNotFoundError):
            absent.open()
    finally:
        sources.stop()
    ((*_, stamp),) = sources.stamps([])
    assert stamp[0] == str(absent)
    assert changed([[stamp]]) is None
    with machine.store.begin() as draft:
        machine.image().write(draft.image)
        files = file_lists.listed([stamp], reader.read(draft.image), find=lambda path: "")
        draft.files.write_bytes(file_lists.encode(files))
        sent = machine.store.adopt(draft, origin_of("classify"))
    sending.send(machine.store, sent, place, KEY)
    there = elsewhere(machine)
    absent.write_text("{}")
    assert changed([[stamp]]) == str(absent)
    with pytest.raises(StoreError, match=r"settings\.json exists, but was missing"):
        pull(there, place)
    absent.unlink()
    assert pull(there, place).snapshot.problem is None


def test_a_record_of_another_key_does_not_hide_the_snapshots_of_this_one(machine: Machine, place: MemoryPlace) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    place.objects[f"snapshots/classify/{'0' * 64}"] = (b"foreign" * 100, 0.0)
    assert pull(elsewhere(machine), place).snapshot.name == "classify:1"


def test_a_machine_with_another_main_key_sends_nothing(machine: Machine, place: MemoryPlace) -> None:
    snapshot = machine.freeze()
    sending.send(machine.store, snapshot, place, KEY)
    before = dict(place.objects)
    with pytest.raises(StoreError, match="another main key"):
        sending.send(machine.store, snapshot, place, StoreKey(b"2" * 32))
    assert place.objects == before


def test_a_name_that_is_not_utf_8_is_refused_with_the_reason(machine: Machine, place: MemoryPlace) -> None:
    snapshot = machine.freeze()
    (machine.module.parent / os.fsdecode(b"\xff.py")).touch()
    with pytest.raises(StoreError, match="not UTF-8"):
        sending.send(machine.store, snapshot, place, KEY)


def test_a_clean_up_removes_what_killed_senders_left(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path)
    place.put("chunks/00/ab", b"chunk")
    old, new = tmp_path / "chunks" / "00" / ".new-1", tmp_path / "chunks" / "00" / ".new-2"
    old.touch()
    new.touch()
    os.utime(old, (1, 1))
    upkeep.clean_up(place)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_start_does_not_wait_for_a_slow_store(machine: Machine, tmp_path: Path) -> None:
    class Slow(MemoryPlace):
        asked, go_on = threading.Event(), threading.Event()

        def get(self, key: str, *, limit_bytes: int) -> bytes:
            if key.startswith("chunks/"):
                self.asked.set()
                self.go_on.wait()
            return super().get(key, limit_bytes=limit_bytes)

    place = Slow()
    sending.send(machine.store, machine.freeze(), place, KEY)
    there = elsewhere(machine)
    key = there.folder / "data" / "snapshots.key"
    key.parent.mkdir(mode=0o700, exist_ok=True)
    key.touch(0o600)
    key.write_text(KEY.text())
    lines: list[str] = []
    exchange = SnapshotExchange(
        there.store, place, key=key, program=None, send=lambda snapshot: None, report=lines.append
    )
    exchange.patience = lambda: Patience(0.1)
    started_s = time.monotonic()
    try:
        assert not asyncio.run(exchange.receive("classify", "key"))
        exchange.close()
        assert store_threads.operations_are_left()  # so that the process ends without waiting for them
        assert not asyncio.run(exchange.receive("classify", "another"))
    finally:
        place.go_on.set()
    assert place.asked.is_set()
    assert time.monotonic() - started_s < 30
    assert "memory is too slow" in lines[0]
