"""Each feature of the kernel and the C library works after freeze, kill and thaw.

The programs native/tests/*.c check it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.native.engine import REPOSITORY, SOURCES, Case, Trial, cases_of, require

FREEZE_COPY, FREEZE_NO_PAGEMAP_SCAN, FREEZE_NO_PROCMAP_QUERY = 1, 2, 4
OLDER = FREEZE_NO_PAGEMAP_SCAN | FREEZE_NO_PROCMAP_QUERY
MEMORY = ("mappings", "shared_memory", "advice", "remap", "heap", "holes")
PROGRAMS = (
    "waits",
    "tls",
    "threads",
    "signals",
    "registers",
    *MEMORY,
    "files",
    "channels",
    "sockets",
    "unix_sockets",
    "timers",
    "other_boot",
    "rings",
    "mutexes",
    "restartable",
    "rights",
    "processor_time",
    "equal_pages",
)
ALL = cases_of(*PROGRAMS, "layouts", "stacks", "processes")


@pytest.mark.parametrize("case", ALL, ids=str)
def test_copies_find_themselves_whole(case: Case, trial: Callable[..., Trial]) -> None:
    trial(case).check()


@pytest.mark.parametrize("case", ALL, ids=str)
def test_the_original_goes_on_unharmed(case: Case, trial: Callable[..., Trial]) -> None:
    one = trial(case)
    outcome = one.run("goes-on")
    require(case, outcome)
    assert "frozen\n" in outcome.output


@pytest.mark.parametrize("flags", [FREEZE_COPY, OLDER], ids=["copied", "older kernel"])
@pytest.mark.parametrize("case", cases_of(*MEMORY), ids=str)
def test_memory_is_whole_on_older_kernels_and_copied(case: Case, flags: int, trial: Callable[..., Trial]) -> None:
    trial(case).check(parallel=0, flags=flags)


@pytest.mark.parametrize(
    "case", [c for c in ALL if c.name in ("clocks", "vdso", "condition_wait", "sleep_loop")], ids=str
)
def test_a_vdso_that_cannot_be_moved_is_jumped_to(case: Case, trial: Callable[..., Trial]) -> None:
    trial(case).check(thaw_options=["--vdso-jump"])


def test_every_case_is_found_and_every_program_is_run() -> None:
    tests = "".join(path.read_text() for path in (REPOSITORY / "tests").glob("*/*.py"))
    for source in sorted(SOURCES.glob("*.c")):
        written = source.read_text().count("\nCASE(")
        assert len(cases_of(source.stem)) == written, f"{source.name}: a case is not written as the tests look for it"
        assert f'"{source.stem}' in tests, f"{source.name} is run by no test"
