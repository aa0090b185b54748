"""In a copy, the other threads wait until the thread that froze the process lets them continue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.native.engine import Case, Trial, cases_of, require


@pytest.mark.parametrize("case", cases_of("held"), ids=str)
def test_other_threads_wait_in_a_copy(case: Case, trial: Callable[..., Trial]) -> None:
    trial(case).check(parallel=0)


@pytest.mark.parametrize("case", cases_of("held"), ids=str)
def test_the_threads_of_the_original_do_not_wait(case: Case, trial: Callable[..., Trial]) -> None:
    require(case, trial(case).run("goes-on"))
