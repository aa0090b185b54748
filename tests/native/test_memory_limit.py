"""The engine under a memory limit, in a separate control group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.engine import Trial, cases_of, require
from tests.native.processes import Identity
from tests.native.test_unprivileged import SOME

pytestmark = pytest.mark.serial

LIMIT_BYTES = 96 << 20


@pytest.fixture
def limited() -> Iterator[Identity]:
    """An identity within a memory cgroup of LIMIT_BYTES. Skips the test if the cgroup cannot be made."""
    group = Path("/sys/fs/cgroup/memory") / f"thawd-test-{os.getpid()}"
    limit = group / "memory.limit_in_bytes"
    if not group.parent.is_dir():
        group = Path("/sys/fs/cgroup") / group.name
        limit = group / "memory.max"
    try:
        group.mkdir()
        limit.write_text(str(LIMIT_BYTES))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")

    yield Identity(options=(f"--group={group / 'cgroup.procs'}",))
    group.rmdir()


def test_under_a_memory_limit(limited: Identity, trial: Callable[..., Trial]) -> None:
    for case in [*SOME, *(case for case in cases_of("mappings") if case.name == "large_pages")]:
        if case.name != "storm":  # three of them together need more than the limit
            trial(case, identity=limited).check()


def test_an_image_larger_than_the_memory_limit_is_thawed(limited: Identity, trial: Callable[..., Trial]) -> None:
    """100 MB are frozen outside the limit.

    A copy under a limit of 96 MiB reads all of it: page cache can be reclaimed.
    """
    case = next(case for case in cases_of("heap") if case.name == "larger_than_the_limit")
    one = trial(case)
    assert one.freeze() is None
    within = Trial(one.engine, case, one.folder, identity=limited)
    require(case, within.thaw())
