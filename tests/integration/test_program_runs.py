"""Programs that start while their image arrives from a store of chunks."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import prestarted
from tests.unit.chunk_stores import KEY
from thawd.snapshot.engine import unavailable
from thawd.stores.chunk_places import FolderPlace
from thawd.transfer import receiving

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

# The weights are read by this program's code, by the kernel in a system call, and by a child process.
PROGRAM = """
import hashlib, os, random, sys
from thawd import snapshot

weights = random.Random(1).randbytes(12 << 20)
piece = len(weights) // 4
outcome = snapshot.freeze(sys.argv[1])
if outcome.restored:
    seen = memoryview(weights)
    with open(outcome.arguments[0], "wb", buffering=0) as file:
        assert file.write(seen[:piece]) == piece
    if (child := os.fork()) == 0:
        print(hashlib.sha256(seen[piece : 2 * piece]).hexdigest(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(hashlib.sha256(seen[2 * piece :]).hexdigest(), flush=True)
    sys.exit(7)
"""


def thawd(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thawd", *arguments]
    return prestarted.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def weights() -> bytes:

    return random.Random(1).randbytes(12 << 20)


@pytest.fixture
def pushed(tmp_path: Path) -> Path:
    """A folder with a store that has the program ``answer``, whose image is gone."""
    (tmp_path / "program.py").write_text(PROGRAM)
    image = tmp_path / "answer.img"
    subprocess.run([sys.executable, tmp_path / "program.py", image], check=True, timeout=300)
    key = tmp_path / "snapshots.key"
    key.touch(0o600)
    key.write_text(KEY.text())
    sent = thawd(tmp_path, "snapshot", "push", "--key", str(key), "./answer.img", "store")
    assert sent.returncode == 0, sent.stderr
    image.unlink()
    return tmp_path


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return thawd(
        folder, "snapshot", "run", "--key", str(folder / "snapshots.key"), "answer", "store", str(folder / "out")
    )


def test_a_program_computes_the_same_while_its_image_arrives(pushed: Path) -> None:
    content = weights()
    piece = len(content) // 4
    done = run(pushed)
    assert done.returncode == 7, done.stderr
    assert done.stdout.split() == [
        hashlib.sha256(content[piece : 2 * piece]).hexdigest(),
        hashlib.sha256(content[2 * piece :]).hexdigest(),
    ]
    assert (pushed / "out").read_bytes() == content[:piece], "the kernel has read memory that had not arrived"
    if _may_mount():
        assert "fetched first" not in done.stderr
        [order] = (pushed / "store" / "first-use" / "answer").iterdir()
        os.utime(order, (1, 1))
        again = run(pushed)
        assert (again.returncode, again.stdout) == (7, done.stdout)
        assert order.stat().st_mtime == 1, "the list was good enough"
    assert sorted(path.name for path in pushed.iterdir()) == ["out", "program.py", "snapshots.key", "store"]


def test_a_program_whose_image_cannot_be_had_is_killed_with_the_reason(pushed: Path) -> None:
    record = receiving.find(FolderPlace(pushed / "store"), KEY, "answer")
    last = max(record.body.snapshots[-1].extents, key=lambda one: (one.length == 512 << 10, one.offset))
    digits = record.chunks[last.chunk].id.hex()
    (pushed / "store" / "chunks" / digits[:2] / digits).unlink()
    done = run(pushed)
    assert done.returncode == 1
    assert "is missing from" in done.stderr
    assert hashlib.sha256(weights()[len(weights()) // 2 :]).hexdigest() not in done.stdout


def test_without_the_right_to_mount_the_whole_image_is_fetched_first(
    pushed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys; from thawd.transfer import fuse_files; fuse_files._DEVICE = '/dev/fuse-that-is-missing'; "
        "from thawd.__main__ import main; sys.argv[0] = 'thawd'; main()"
    )
    command = [sys.executable, "-c", code, "snapshot", "run", "--key", "snapshots.key", "answer", "store"]
    command.append(str(pushed / "out"))
    done = subprocess.run(command, cwd=pushed, capture_output=True, text=True, timeout=300)
    assert done.returncode == 7, done.stderr
    assert "the whole image is fetched first: " in done.stderr
    assert done.stdout.split()[1] == hashlib.sha256(weights()[len(weights()) // 2 :]).hexdigest()


def test_a_run_that_is_ended_before_its_program_starts_leaves_nothing(pushed: Path) -> None:
    code = (
        "import os, sys, time; from thawd.stores import chunk_places; from thawd.__main__ import main; "
        "get = chunk_places.FolderPlace.get; chunk_places.FolderPlace.get = lambda self, key, **given: "
        "key.startswith('chunks') and (os.write(1, b'asked\\n'), time.sleep(600)) or get(self, key, **given); main()"
    )
    folder = pushed / "temporary"
    folder.mkdir()
    command = [sys.executable, "-c", code, "snapshot", "run", "--key", "snapshots.key", "answer", "store"]
    variables = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, cwd=pushed, stdout=subprocess.PIPE, env=variables) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asked\n"
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert list(folder.iterdir()) == []


def _may_mount() -> bool:
    """Whether a process of this user may make a mount namespace and open /dev/fuse."""
    code = "from thawd.transfer.fuse_files import enter_mount_namespace as enter; enter(); open('/dev/fuse', 'r+b', 0)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
