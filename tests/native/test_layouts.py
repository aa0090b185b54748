"""Memory in thousands of random pieces: every image follows the rules of its format, and every copy passes its checks.

`THAWD_LAYOUTS` is the number of layouts, 24 by default. `make endurance` sets 1,000.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.native.engine import Trial, cases_of, require
from thawd.snapshot.inspect import reader

LAYOUTS = int(os.environ.get("THAWD_LAYOUTS", "24"))
FREEZE_NO_PAGEMAP_SCAN = 2
RANDOM, HEAP = cases_of("layouts")


@pytest.mark.parametrize("first", range(1, LAYOUTS + 1, 8))
def test_images_of_random_layouts_keep_the_rules_and_their_copies_are_whole(
    first: int, trial: Callable[..., Trial]
) -> None:
    one = trial(RANDOM)
    for number in range(first, min(first + 8, LAYOUTS + 1)):
        older = FREEZE_NO_PAGEMAP_SCAN if number % 8 == 0 else 0
        ended = one.freeze(flags=older, environment={"THAWD_LAYOUT": str(number)})
        assert ended is None, ended
        image = reader.read(one.image)
        assert sum(item.kind in ("data", "copy") for item in image.operations) > 512
        require(RANDOM, one.thaw())
        one.image.unlink()


def test_the_image_of_a_fragmented_heap_keeps_the_rules(trial: Callable[..., Trial]) -> None:
    one = trial(HEAP)
    assert one.freeze() is None
    reader.read(one.image)
    require(HEAP, one.thaw())
