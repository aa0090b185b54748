"""Images of programs that froze themselves travel through a store of chunks."""

from __future__ import annotations

import importlib.machinery
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import prestarted
from thawd.snapshot.engine import unavailable

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

PROGRAM = """
import importlib.util, os, sys
from thawd import snapshot

spec = importlib.util.spec_from_file_location("_heapq", sys.argv[2])
extension = importlib.util.module_from_spec(spec)
spec.loader.exec_module(extension)
opened = open(sys.argv[2], "rb")
original = os.getpid()
outcome = snapshot.freeze(sys.argv[1])
if outcome.restored:
    heap = [3, 1, 2]
    extension.heapify(heap)
    print(original, heap[0], opened.read(4), outcome.arguments)
"""


def thawd(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thawd", *arguments]
    return prestarted.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    spec = importlib.machinery.PathFinder.find_spec("_heapq", sys.path)
    if spec is None or spec.origin is None:
        pytest.skip("this interpreter has no _heapq in a file of its own")
    (tmp_path / "libraries").mkdir()
    return Path(shutil.copy2(spec.origin, tmp_path / "libraries"))


def frozen(tmp_path: Path, library: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    image = tmp_path / "answer.img"
    subprocess.run([sys.executable, tmp_path / "program.py", image, library], check=True, timeout=300)
    return image


def test_a_program_is_thawed_on_a_machine_on_which_it_never_ran(tmp_path: Path, library: Path) -> None:
    image = frozen(tmp_path, library)
    answer = thawd(tmp_path, "thaw", str(image), "a").stdout
    sent = thawd(tmp_path, "snapshot", "push", "./answer.img", "store")
    assert sent.returncode == 0, sent.stderr
    assert "0 were new" in thawd(tmp_path, "snapshot", "push", "./answer.img", "store", "--name", "other").stdout
    shutil.move(image, tmp_path / "first.img")
    library.rename(library.with_name("aside"))
    shutil.copy(library.with_name("aside"), library)  # another inode and time
    refused = thawd(tmp_path, "thaw", "first.img", "a")
    assert refused.returncode == 120, "the same image does not fit where the files are others"

    pulled = thawd(tmp_path, "snapshot", "pull", "answer", "store", "--output", "answer.img")
    assert pulled.returncode == 0, pulled.stderr
    assert image.stat().st_mode & 0o777 == 0o600
    for _ in range(2):
        thawed = thawd(tmp_path, "thaw", str(image), "a")
        assert (thawed.stdout, thawed.returncode) == (answer, 0), thawed.stderr
    assert thawd(tmp_path, "snapshot", "verify", "--store", "store").returncode == 0
    assert "answer:program" in thawd(tmp_path, "snapshot", "list", "--store", "store").stdout


def test_what_does_not_fit_is_refused_and_the_earlier_file_stays(tmp_path: Path, library: Path) -> None:
    image = frozen(tmp_path, library)
    assert thawd(tmp_path, "snapshot", "push", str(image), "store").returncode == 0
    assert "write it to a file" in thawd(tmp_path, "snapshot", "pull", "answer", "store").stderr
    before = image.read_bytes()
    with library.open("ab") as file:
        file.write(b"changed")
    done = thawd(tmp_path, "snapshot", "pull", "answer", "store", "-o", "answer.img")
    assert done.returncode == 1
    assert f"{library} has another content" in done.stderr and "freeze the program here" in done.stderr
    assert image.read_bytes() == before
    assert list(tmp_path.glob(".new-*")) == []
    done = thawd(tmp_path, "snapshot", "push", "./answer.img", "store")
    assert done.returncode == 1 and "has changed since the freeze" in done.stderr
    image.chmod(0o644)
    assert "other users may access it" in thawd(tmp_path, "snapshot", "push", "./answer.img", "store").stderr
