"""No process outlives the tests: not after a hang, an interrupt, or the death of the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native import processes
from tests.native.engine import Trial, cases_of
from tests.native.processes import MARK, Keeper, expect_none, living, read_until

REPOSITORY = Path(__file__).resolve().parents[2]
AGAIN = next(case for case in cases_of("generations") if case.name == "again")
# A test that starts a program, a copy of it, and a process that leaves its session, and then hangs.
HANGING = """
    from tests.native import processes
    from tests.native.conftest import *
    from tests.native.test_leftovers import AGAIN

    processes.GRACE_S = 0.1

    def test_hangs(trial, open_folder):
        one = trial(AGAIN)
        frozen = one.keeper.start([one.engine.program("generations"), "again", one.image])
        assert processes.read_until(frozen, "frozen\\n") == "frozen\\n"
        copy = one.start_copy("second")
        assert processes.read_until(copy, "frozen\\n") == "frozen\\n"
        one.keeper.start(["setsid", "--fork", "sleep", "1000"]).wait()
        print(f"folder {open_folder}", flush=True)
        frozen.wait()
"""


def test_a_program_that_hangs_is_killed_with_its_children(keeper: Keeper) -> None:
    hanging = keeper.start(["sh", "-c", "sleep 1000 & echo started; wait"])
    assert read_until(hanging, "\n") == "started\n"
    assert len(list(living(keeper.folder))) == 2
    keeper.close()
    assert list(living(keeper.folder)) == []
    assert hanging.poll() == -signal.SIGKILL


def test_a_process_that_was_left_behind_fails_its_test_and_is_killed(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0.1)
    keeper.start(["setsid", "--fork", "sleep", "1000"]).wait()
    left = list(living(keeper.folder))
    assert len(left) == 1
    with pytest.raises(AssertionError, match=f"(?s)left behind in {keeper.folder}.*{left[0]}"):
        expect_none(keeper.folder)
    assert list(living(keeper.folder)) == []


def test_a_copy_is_found_by_what_it_was_told_wherever_it_works(trial: Callable[..., Trial]) -> None:
    one = trial(AGAIN)
    assert one.freeze() is None
    copy = one.start_copy(str(one.folder / "second"))
    assert read_until(copy, "frozen\n") == "frozen\n"
    assert list(living(one.folder)) == [copy.pid]
    assert f"{MARK}={one.folder}".encode() in Path(f"/proc/{copy.pid}/environ").read_bytes().split(b"\0")
    one.keeper.close()
    assert list(living(one.folder)) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_tests_that_are_interrupted_leave_nothing(how: signal.Signals, own_folder: Path) -> None:
    (own_folder / "test_hanging.py").write_text(textwrap.dedent(HANGING))
    tests = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-s", "--rootdir", own_folder, own_folder / "test_hanging.py"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    try:
        said = read_until(tests, "\n")
        while not said.startswith("folder ") and said:
            said = read_until(tests, "\n")
        assert said, "it ended before it hung"
        folder = Path(said.removeprefix("folder ").strip())
        assert len(list(living(folder))) == 3, "the original, a copy, and one that left the session"
        tests.send_signal(how)
        tests.communicate(timeout=300)
        until_s = time.monotonic() + 300
        while (left := list(living(folder))) or folder.exists():
            assert time.monotonic() < until_s, left
            time.sleep(0.01)
    finally:
        tests.kill()
        tests.communicate()
