"""The engine needs no privilege: as the user nobody with no_new_privs, in namespaces, without ASLR."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.engine import Case, Trial, cases_of, require
from tests.native.processes import NOBODY, Identity, Keeper, end_of
from tests.native.test_features import ALL

SOME = [
    case
    for case in cases_of("threads", "mappings", "shared_memory", "advice", "heap", "files", "channels", "processes")
    if case.name
    in ("sixty_four", "break_area", "memfd_twice", "dontneed", "storm", "deleted", "epoll_sets", "programs")
]
SHARED = ("shared_offset", "deleted", "shared_ends", "opened_again", "duplicates")
IN_USER_NAMESPACE = Identity(options=("--user-namespace", "--no-new-privileges"))
NOT_RANDOMISED = Identity(options=("--no-randomisation",))


@pytest.mark.parametrize("case", [*ALL, *cases_of("refused_descriptors", "refused_states", "refused_rights")], ids=str)
def test_nobody_with_no_new_privileges_freezes_and_thaws(case: Case, trial: Callable[..., Trial]) -> None:
    """Runs as nobody if the tests run as root, and otherwise as their user; without capabilities in both cases."""
    trial(case, identity=NOBODY).check(parallel=0)


def test_the_tests_of_nobody_have_no_capabilities(keeper: Keeper) -> None:
    keeper.folder.chmod(0o755)
    text = end_of(keeper.start(["cat", "/proc/self/status"], identity=NOBODY)).output
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Uid"].split()[0] != "0"


def test_address_space_randomisation_is_on_in_these_tests() -> None:
    assert Path("/proc/sys/kernel/randomize_va_space").read_text().strip() == "2"
    stacks = {
        line.split("-")[0]
        for _ in range(4)
        for line in subprocess.run(
            ["cat", "/proc/self/maps"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        if line.endswith("[stack]")
    }
    assert len(stacks) > 1


@pytest.mark.parametrize("case", SOME, ids=str)
def test_in_a_user_namespace(case: Case, trial: Callable[..., Trial]) -> None:
    one = trial(case, identity=IN_USER_NAMESPACE)
    first = end_of(one.keeper.start(["true"], identity=IN_USER_NAMESPACE))
    if first.status != 0:
        pytest.skip(f"this kernel lets this user have no user namespace: {first.errors}")
    one.check()


def test_as_the_first_process_of_a_container(trial: Callable[..., Trial]) -> None:
    """Frozen outside, thawed as pid 1 of a pid namespace with a separate /proc."""
    enter = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make namespaces")
    for case in SOME:
        one = trial(case)
        assert one.freeze() is None
        require(case, end_of(one.keeper.start([*enter, one.engine.thaw, one.image])))


@pytest.mark.parametrize("case", SOME, ids=str)
def test_without_address_space_randomisation(case: Case, trial: Callable[..., Trial]) -> None:
    """Without ASLR the stack and vDSO of the thaw program are at the addresses of those of the frozen process."""
    trial(case, identity=NOT_RANDOMISED).check()


@pytest.mark.parametrize(
    "options", [("--no-kcmp",), ("--no-kcmp", "--no-query")], ids=["in a container", "in one on an older kernel"]
)
@pytest.mark.parametrize("case", [case for case in cases_of("files", "channels") if case.name in SHARED], ids=str)
def test_duplicates_are_told_where_the_kernel_may_not_be_asked(
    case: Case, options: tuple[str, ...], trial: Callable[..., Trial]
) -> None:
    """Many containers deny kcmp(2).

    Before Linux 6.10 there is no other way to ask the kernel whether two descriptors are duplicates.
    """
    trial(case, identity=Identity(options=options)).check(parallel=0)
