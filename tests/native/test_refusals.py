"""States that cannot be restored faithfully are refused, with cause and way out, and the process continues unharmed.

Each case of native/tests/refused_*.c makes such a state, is refused, checks that nothing has changed, removes the
cause, and then freezes. So each case tests the refusal and the freeze after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.native.engine import Case, Trial, cases_of, require

# Phrases that a way out may have. Each case checks the words of its own refusal.
WAY_OUT = re.compile(
    r"before the freeze|after the freeze|first invocation|afterwards|from another|keep it running|folder|space"
    r"|version"
)


@pytest.mark.parametrize("case", cases_of("refused_descriptors", "refused_states", "refused_rights"), ids=str)
def test_is_refused_and_the_process_goes_on(case: Case, trial: Callable[..., Trial]) -> None:
    one = trial(case)
    ended = one.freeze()
    said = ended.output if ended is not None else one.said
    if ended is not None:
        require(case, ended)
    refusals = re.findall(r"^refused: (.*)$", said, re.M)
    assert refusals or case.name == "two_at_once"
    for text in refusals:
        assert WAY_OUT.search(text), text
        assert 20 < len(text) < 512
    if ended is None:
        for outcome in one.thaw_many(parallel=0):
            require(case, outcome)
