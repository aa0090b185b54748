"""`thawd.deploy.packages.treemap`: areas are proportional to values, and fill the rectangle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.deploy.packages.treemap import Rectangle, divide


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=40), st.floats(1, 1000), st.floats(1, 1000))
def test_areas_are_proportional_to_values_and_lie_within_the_whole(values: list[float], w: float, h: float) -> None:
    values.sort(reverse=True)
    parts = divide(values, Rectangle(0, 0, w, h))
    for value, part in zip(values, parts, strict=True):
        assert part.width * part.height == pytest.approx(w * h * value / sum(values), rel=1e-6)
        assert part.x >= -1e-6 and part.y >= -1e-6
        assert part.x + part.width <= w * (1 + 1e-6) and part.y + part.height <= h * (1 + 1e-6)


def test_rectangles_do_not_overlap() -> None:
    parts = divide([9, 6, 6, 4, 3, 2, 2, 1], Rectangle(0, 0, 6, 4))
    for one in parts:
        for other in parts:
            apart = one.x + one.width <= other.x + 1e-9 or one.y + one.height <= other.y + 1e-9
            assert (
                one is other or apart or other.x + other.width <= one.x + 1e-9 or other.y + other.height <= one.y + 1e-9
            )


def test_equal_values_are_nearly_square() -> None:
    assert {(round(p.width), round(p.height)) for p in divide([1, 1, 1, 1], Rectangle(0, 0, 20, 20))} == {(10, 10)}


def test_nothing_is_divided_into_nothing() -> None:
    assert divide([], Rectangle(0, 0, 1, 1)) == []
