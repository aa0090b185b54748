"""A thaw that dies at any stage harms no other process. A freeze that fails at any point leaves no trace."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.engine import Case, Engine, Trial, cases_of, require
from tests.native.processes import end_of

STAGES = (
    "disk",
    "open",
    "check",
    "aside",
    "clear",
    "memory",
    "vdso",
    "process",
    "descriptors",
    "landing",
    "rights",
    "threads",
)
# Threads, descriptors, shared memory, a pipe's contents and an epoll set, all together.
RICH = cases_of("generations")[0]


def processes_with(image: Path) -> list[int]:
    """Return the living processes that have the image mapped or open."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                links = [str(link.readlink()) for link in (process / "fd").iterdir()]
                maps = (process / "maps").read_text()
            except OSError:
                continue
            if str(image) in maps or str(image) in links:
                found.append(int(process.name))
    return found


def test_the_stages_are_those_named_here(engine: Engine) -> None:
    listed = subprocess.run([engine.thaw, "--stages"], capture_output=True, text=True, check=True).stdout
    assert tuple(line.split("\t")[0] for line in listed.splitlines()) == STAGES
    for line in listed.splitlines():
        assert len(line.split("\t")[1]) > 10, "each stage says what is true when it has ended"


@pytest.fixture
def rich(trial: Callable[..., Trial]) -> Trial:
    """A frozen process with an instance of everything."""
    one = trial(RICH)
    assert one.freeze() is None
    return one


def test_a_thaw_that_dies_at_any_stage_leaves_nothing_and_the_image_whole(rich: Trial) -> None:
    digest = hashlib.sha256(rich.image.read_bytes()).digest()
    files = sorted(path.name for path in rich.folder.iterdir())
    for stage in STAGES:
        dead = rich.thaw(thaw_options=["--die-at", stage])
        assert (dead.status, dead.output, dead.errors) == (-9, "", ""), stage
        assert processes_with(rich.image) == [], stage
        assert sorted(path.name for path in rich.folder.iterdir()) == files, stage
        require(RICH, rich.thaw())
    assert hashlib.sha256(rich.image.read_bytes()).digest() == digest


def test_copies_that_die_do_not_disturb_copies_that_live(rich: Trial) -> None:
    dying = [rich.start_copy(thaw_options=["--die-at", stage]) for stage in STAGES]
    living = [rich.start_copy() for _ in range(5)]
    assert [end_of(copy).status for copy in dying] == [-9] * len(STAGES)
    for copy in living:
        require(RICH, end_of(copy))


@pytest.mark.parametrize("case", cases_of("faults"), ids=str)
def test_a_freeze_that_fails_at_any_point_harms_nothing(case: Case, trial: Callable[..., Trial]) -> None:
    one = trial(case)
    ended = one.freeze()
    assert ended is None, ended
    assert [path.name for path in one.folder.iterdir()] == ["image"]
    for outcome in one.thaw_many():
        require(case, outcome)


def test_a_check_that_does_not_hold_in_a_copy_is_seen(trial: Callable[..., Trial]) -> None:
    case = Case("delivery", "arguments", "the report of a copy holds the arguments")
    one = trial(case)
    assert one.freeze() is None
    outcome = one.thaw("not what the case expects")
    assert not outcome.passed
    assert outcome.status == 1
    assert "FAIL delivery.c:" in outcome.output
