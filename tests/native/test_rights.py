"""A copy may do no more than the frozen process, whoever starts it, and its clocks never run backwards."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.native.engine import Case, Trial, cases_of, give, require
from tests.native.processes import NOBODY, Identity, end_of

RIGHTS = {case.name: case for case in cases_of("rights")}
AGAIN = next(case for case in cases_of("processor_time") if case.name == "frozen_again")
PLAIN = next(case for case in cases_of("processes") if case.name == "folder_and_umask")
SLEEPS = next(case for case in cases_of("waits") if case.name == "sleep_loop")
FILTERED = Identity(options=("--no-kcmp",))
REFUSED = 120
CLOCKS = {"monotonic": time.CLOCK_MONOTONIC, "boottime": time.CLOCK_BOOTTIME}


def namespace(*options: str) -> list[str]:
    """Return a command line that runs another command in such namespaces.

    Skip the test if the machine does not support them.
    """
    command = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *options]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"no {' '.join(options)} here")
    return command


def frozen(one: Trial) -> Trial:
    ended = one.freeze()
    if ended is not None:
        require(one.case, ended)
    return one


def test_a_copy_of_a_copy_has_clocks_that_go_on(trial: Callable[..., Trial]) -> None:
    one = frozen(trial(AGAIN))
    second = one.folder / "second"
    for _ in range(2):
        require(one.case, one.thaw(str(second)))
        require(one.case, one.thaw(image=second))


def test_a_process_under_a_containers_filter_is_frozen_and_its_copies_need_it_too(
    trial: Callable[..., Trial],
) -> None:
    one = frozen(trial(PLAIN, identity=FILTERED))
    require(one.case, one.thaw())
    bare = end_of(one.keeper.start([one.engine.thaw, one.image]))
    assert bare.status == REFUSED
    assert "under more seccomp filters" in bare.errors


def test_one_under_more_filters_than_the_frozen_process_thaws(trial: Callable[..., Trial]) -> None:
    one = frozen(trial(PLAIN))
    require(one.case, end_of(one.keeper.start([one.engine.thaw, one.image], identity=FILTERED)))


@pytest.mark.parametrize("name", ["no_new_privileges", "capabilities", "bounding_set", "kept_capabilities"])
def test_in_a_user_namespace_of_the_copys_own_it_may_do_no_more_either(name: str, trial: Callable[..., Trial]) -> None:
    """In its own user namespace a copy would have all capabilities, and could not drop any from a set that it may not
    change."""
    one = frozen(trial(RIGHTS[name]))
    require(one.case, end_of(one.keeper.start([*namespace("--user", "--map-root-user"), one.engine.thaw, one.image])))


@pytest.mark.parametrize("case", [PLAIN, SLEEPS], ids=str)
@pytest.mark.parametrize("clock", ["monotonic", "boottime"])
def test_a_clock_that_stands_before_the_freeze_goes_on_from_there(
    clock: str, case: Case, trial: Callable[..., Trial]
) -> None:
    """Otherwise a thread that sleeps until a certain time would sleep too long."""
    one = frozen(trial(case))
    offset = 2 - int(time.clock_gettime(CLOCKS[clock]))  # no clock can be set below 0
    back = end_of(one.keeper.start([*namespace("--time", f"--{clock}", str(offset)), one.engine.thaw, one.image]))
    require(case, back)


def test_a_clock_that_has_gone_on_is_none_of_our_business(trial: Callable[..., Trial]) -> None:
    one = frozen(trial(PLAIN))
    ahead = namespace("--time", "--monotonic", "3600", "--boottime", "3600")
    require(one.case, end_of(one.keeper.start([*ahead, one.engine.thaw, one.image])))


def test_in_a_user_namespace_of_its_own_a_program_has_1024_processes_at_most(trial: Callable[..., Trial]) -> None:
    """Since Linux 5.14 the kernel counts only the processes of the namespace, not all processes of the same user."""
    if tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) < (5, 14):
        pytest.skip("before Linux 5.14 all processes of the user are counted")
    one = trial(PLAIN, identity=NOBODY)
    own = one.folder / "own"
    own.mkdir(mode=0o700)
    give(own, NOBODY)
    options = ["--environment", "--disk-at", str(own), "--disk-own", str(own)]
    script = "cat /proc/self/limits; for i in $(seq 20); do /bin/true & done; wait; echo all"
    command = [one.engine.thaw, *options, "--run", "/bin/sh", "-c", script]
    outcome = end_of(one.keeper.start(command, identity=NOBODY))
    if outcome.status == REFUSED:
        pytest.skip(outcome.errors)
    assert outcome.status == 0, outcome
    (line,) = [line for line in outcome.output.splitlines() if line.startswith("Max processes")]
    assert line.split()[2:4] == ["1024", "1024"]
    assert outcome.output.endswith("all\n")
