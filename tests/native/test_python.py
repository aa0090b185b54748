"""Interpreters through freeze, kill and thaw: those of CPython 3.9 to 3.13 that this machine has."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.engine import Case, Trial, require
from tests.native.processes import Outcome, end_of, read_until
from thawd.errors import EnvironmentBuildError
from thawd.publishing.interpreters import find_interpreter

PROGRAMS = Path(__file__).parent / "programs"
RUNNING = f"{sys.version_info[0]}.{sys.version_info[1]}"
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
OTHERWISE = ("ends", "streams", "dies", "outcome")  # have their own tests below
LARGE = ("many_objects",)  # run with only one version
# The cases in SAME behave alike in neighbouring versions. For them the oldest, the newest and this version suffice.
BETWEEN = {"3.10", "3.12"} - {RUNNING}
SAME = (
    "imports",
    "recursion",
    "clocks",
    "running_loop",
    "frozen_by_a_thread",
    "fault_handler",
    "multiprocessing_spawn",
)


def python_cases(program: str) -> list[Case]:
    """Return the cases of a program, read from its source."""
    text = (PROGRAMS / f"{program}.py").read_text()
    return [Case(program, name, claim) for claim, name in re.findall(r'^@case\("(.*)"\)\ndef (\w+)\(', text, re.M)]


ALL = {case.name: case for case in (*python_cases("interpreter"), *python_cases("system"))}
CHECKED = [case for case in ALL.values() if case.name not in OTHERWISE]

MakeTrial = Callable[[str, Case], Trial]


@pytest.fixture
def python_trial(trial: Callable[..., Trial]) -> Iterator[MakeTrial]:
    """A function that makes a trial of a case for a version of Python.

    Skips the test if that version is not installed.
    """

    def make(version: str, case: Case) -> Trial:
        try:
            python = sys.executable if version == RUNNING else find_interpreter(version).path
        except EnvironmentBuildError as missing:
            pytest.skip(str(missing.message))
        # Newer versions warn about forks in processes with threads, which some cases need.
        return trial(case, program=(python, "-W", "ignore::DeprecationWarning", PROGRAMS / f"{case.program}.py"))

    yield make


def cases_for(version: str) -> list[Case]:
    """Return the cases to run with a version."""
    left_out = (*(SAME if version in BETWEEN else ()), *(() if version == RUNNING else LARGE))
    return [case for case in CHECKED if case.name not in left_out]


@pytest.mark.parametrize(
    ("version", "case"), [(version, case) for version in VERSIONS for case in cases_for(version)], ids=str
)
def test_copies_of_an_interpreter_find_themselves_whole(version: str, case: Case, python_trial: MakeTrial) -> None:
    python_trial(version, case).check(parallel=int(version == RUNNING))


@pytest.mark.parametrize("case", [case for case in CHECKED if case.name not in LARGE], ids=str)
def test_the_original_goes_on_unharmed(case: Case, python_trial: MakeTrial) -> None:
    outcome = python_trial(RUNNING, case).run("goes-on")
    require(case, outcome)
    assert "frozen\n" in outcome.output


def frozen(version: str, name: str, python_trial: MakeTrial) -> Trial:
    """Return a trial with an original that has been frozen and killed."""
    one = python_trial(version, ALL[name])
    ended = one.freeze()
    assert ended is None, ended
    return one


@pytest.mark.parametrize("version", VERSIONS)
def test_a_copy_ends_like_any_program(version: str, python_trial: MakeTrial) -> None:
    one = frozen(version, "ends", python_trial)
    assert one.said == "said before the freeze, in a buffer\nfrozen\n"
    said = "last thread\nat exit\nfinalised\ndeleted\n"
    for outcome in one.thaw_many():
        assert sorted(outcome.output.splitlines()) == sorted(["said by a copy, in a buffer", *said.splitlines()])
        assert "last thread\nat exit\n" in outcome.output, "threads are waited for first"
        assert (outcome.status, outcome.errors) == (7, "")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_copy_has_standard_streams_of_its_own(version: str, python_trial: MakeTrial) -> None:
    one = frozen(version, "streams", python_trial)
    copies = [one.start_copy() for _ in range(3)]
    for number, copy in enumerate(copies):
        output, errors = copy.communicate(f"first line\nsecond line\nline of {number}\n", timeout=300)
        assert Outcome(copy.returncode, output, errors) == Outcome(
            0, f"echo line of {number}\npass\n", "to standard error\n"
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_copy_dies_of_an_interrupt_that_it_does_not_catch(version: str, python_trial: MakeTrial) -> None:
    one = frozen(version, "dies", python_trial)
    copy = one.start_copy()
    assert read_until(copy, "ready\n") == "ready\n"
    copy.send_signal(signal.SIGINT)
    outcome = end_of(copy)
    assert outcome.status == -signal.SIGINT
    assert outcome.errors.endswith("KeyboardInterrupt\n")
    assert "Traceback" in outcome.errors


@pytest.mark.parametrize("version", VERSIONS)
def test_a_copy_is_told_what_it_was_thawed_with(version: str, python_trial: MakeTrial) -> None:
    one = frozen(version, "outcome", python_trial)
    for _ in range(2):
        require(one.case, one.thaw("first", "second argument", "", environment={"THAWED_BY": "the tests"}))
