"""`thawd.snapshot.store` when several processes use one folder, when one dies, and when a disk is full."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from thawd.errors import ResourceConflictException, StoreError
from thawd.snapshot.store import folder as store_folder
from thawd.snapshot.store.images import SnapshotStore
from thawd.snapshot.store.trust_and_locks import try_lock

PRELUDE = """
    import os, random, signal, sys
    from pathlib import Path
    from thawd.errors import ResourceConflictException, ResourceNotFoundException, StoreFullError
    from thawd.snapshot.store.images import ImageOrigin, SnapshotStore

    def add(store, content, key="key"):
        origin = ImageOrigin(function="f", version="1", key=key, python="3.12.1", init_ms=1.0, freeze_ms=1.0,
                             data_bytes=1, self_test="passed")
        with store.begin() as draft:
            draft.image.write_bytes(content)
            draft.disk.mkdir()
            (draft.disk / "file").write_bytes(b"d" * 5000)
            return store.adopt(draft, origin)

    store = SnapshotStore(Path(sys.argv[1]))
"""


def program(text: str) -> list[str]:
    """Return the command of a process with a store on the folder that its first argument names."""
    return [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(text)]


def run(text: str, *arguments: str | Path, status: int = 0, before: tuple[str, ...] = ()) -> str:
    """Run such a process to its end and return its output."""
    command = [*before, *program(text), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(text: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run such a process until the end of the block. It has printed a line when the block begins."""
    command = [*program(text), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_another_process_keeps_what_it_uses_until_it_dies(tmp_path: Path) -> None:
    text = "lease = store.use(add(store, b'image')); print('ready', flush=True); sys.stdin.read()"
    store = SnapshotStore(tmp_path, max_bytes=0)
    with running(text, tmp_path) as process:
        (snapshot,) = store.snapshots()
        assert snapshot.in_use
        assert store.evict() == []
        with pytest.raises(ResourceConflictException, match=f"by process {process.pid};"):
            store.remove(snapshot)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert [gone.sha256 for gone in store.evict()] == [snapshot.sha256]
    assert list(tmp_path.iterdir()) == []


def test_a_draft_of_another_process_stays_until_it_dies(tmp_path: Path) -> None:
    text = "draft = store.begin(); draft.image.write_bytes(b'half'); print('ready', flush=True); sys.stdin.read()"
    store = SnapshotStore(tmp_path)
    with running(text, tmp_path) as process:
        assert store.tidy() == 0
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert store.tidy() == 1
    assert list(tmp_path.iterdir()) == []


def test_a_draft_that_its_owner_removes_while_others_tidy_is_no_trouble(tmp_path: Path) -> None:
    text = """
        (store.folder / ".new-draft").mkdir()
        sys.addaudithook(lambda event, arguments: Path(arguments[0]).rmdir() if event == "os.rename" else None)
        assert store.tidy() == 0
        assert list(store.folder.iterdir()) == []
    """
    run(text, tmp_path)


def test_a_process_started_meanwhile_does_not_inherit_a_lease(tmp_path: Path) -> None:
    run("add(store, b'image')", tmp_path)
    store = SnapshotStore(tmp_path)
    lease = store.use(store.snapshots()[0])
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        lease.release()
        assert not store.snapshots()[0].in_use
        child.kill()


@pytest.mark.parametrize("verb", ["adopt", "remove"])
def test_a_process_that_dies_at_any_step_leaves_all_of_a_snapshot_or_none(tmp_path: Path, verb: str) -> None:
    """Each child dies one system call later than the one before, until one finishes."""
    text = """
        def die_at(step):
            left = step
            def count(event, arguments):
                nonlocal left
                if event in ("os.rename", "open", "os.mkdir", "os.remove", "os.rmdir", "os.utime"):
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
            sys.addaudithook(count)

        status = step = 1
        while status != 0:
            assert step < 200
            child = os.fork()
            if child == 0:
                store = SnapshotStore(Path(sys.argv[1], str(step)))
                if sys.argv[2] == "remove":
                    add(store, b"image")
                die_at(step)
                if sys.argv[2] == "adopt":
                    add(store, b"image")
                else:
                    store.remove(store.snapshots()[0])
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status in (0, -signal.SIGKILL), status
            step += 1
    """
    run(text, tmp_path, verb)
    outcomes = []
    for folder in sorted(tmp_path.iterdir(), key=lambda path: int(path.name)):
        store = SnapshotStore(folder)
        found = store.find("key")
        outcomes.append(found is not None)
        store.tidy()
        left = {path.suffix for path in folder.iterdir()}
        assert left == ({".img", ".json", ".disk"} if found else set())
        if found is not None:
            with store.use(found):
                assert found.disk is not None
                assert (found.disk / "file").stat().st_size == 5000
    assert len(outcomes) > 5
    assert outcomes == sorted(outcomes, reverse=verb == "remove")
    assert set(outcomes) == {True, False}


def test_processes_that_add_use_and_remove_at_once_do_not_harm_each_other(tmp_path: Path) -> None:
    text = """
        chance = random.Random(int(sys.argv[2]))
        store = SnapshotStore(Path(sys.argv[1]), max_bytes=60_000)
        for _ in range(150):
            number = chance.randrange(6)
            if chance.random() < 0.4:
                add(store, b"%d" % number * 5000, key=str(number))
            elif chance.random() < 0.6:
                found = store.find(str(number))
                try:
                    if found is not None:
                        with store.use(found) as lease:
                            store.evict() if chance.random() < 0.3 else store.snapshots()
                            assert os.path.samestat(os.fstat(lease.fd), found.path.stat())
                            assert found.path.read_bytes() == b"%d" % number * 5000
                            assert (found.disk / "file").exists()
                except ResourceNotFoundException:
                    pass
            else:
                for snapshot in store.snapshots()[:1]:
                    assert snapshot.problem is None, snapshot.problem
                    try:
                        store.remove(snapshot)
                    except (ResourceConflictException, ResourceNotFoundException):
                        pass
                store.tidy()
    """
    commands = [[*program(text), str(tmp_path), str(number)] for number in range(4)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    outcomes = [(process.communicate()[1], process.returncode) for process in processes]
    assert outcomes == [("", 0)] * 4
    store = SnapshotStore(tmp_path, max_bytes=0)
    store.evict()
    store.tidy()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_stays_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_folder, "_LOCK_WAIT_S", 0.05)
    held = try_lock(tmp_path, shared=False)
    assert held is not None
    with pytest.raises(StoreError, match=r"has held its lock for 0.05 s; see whether a `thawd snapshot` command hangs"):
        SnapshotStore(tmp_path).snapshots()
    held.release()
    assert SnapshotStore(tmp_path).snapshots() == []


def test_a_full_disk_is_told_and_what_was_there_stays(tmp_path: Path) -> None:
    before = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    mount = f"mount -t tmpfs -o size=1m,mode=700 none {tmp_path}"
    if not shutil.which("unshare") or subprocess.run([*before, mount], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("nobody but root may mount here")
    text = """
        kept = add(store, b"kept", key="kept")
        with store.begin() as draft:
            draft.image.write_bytes(b"x" * 1000)
            with open(store.folder / "filler", "wb", buffering=0) as filler:
                while os.statvfs(store.folder).f_bavail:
                    filler.write(b"f" * 4096)
            origin = kept.sidecar.origin
            try:
                store.adopt(draft, origin)
            except StoreFullError as error:
                print(error)
        found = store.find("kept")
        store.use(found).release()
        store.remove(found)
        assert [path.name for path in store.folder.iterdir()] == ["filler"]
    """
    said = run(text, tmp_path, before=(*before, f'{mount} && exec "$@"', "sh"))
    assert "No space left on device; free some space on that disk" in said
