"""`thawd.grammar.wildcards`: a star matches any characters, and many stars do not slow the matching down."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.grammar.wildcards import is_like


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("cat", "cat", True),
        ("cat", "cats", False),
        ("", "", True),
        ("*", "", True),
        ("*", "anything", True),
        ("a*", "a", True),
        ("*.png", "images/cat.png", True),
        ("*.png", "images/cat.png.txt", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*b", "ab", False),
        ("a*b*b", "abb", True),
        ("*ab*ab*", "aab ab", True),
        ("*ab*ab*", "aab b", False),
    ],
)
def test_a_star_stands_for_any_characters(pattern: str, text: str, expected: bool) -> None:
    assert is_like(text, pattern.split("*")) is expected


@given(st.lists(st.text("ab"), min_size=1), st.text("ab"))
def test_it_agrees_with_regular_expressions(pieces: list[str], text: str) -> None:
    expression = ".*".join(map(re.escape, pieces))
    assert is_like(text, pieces) == (re.fullmatch(expression, text, re.DOTALL) is not None)


@given(st.lists(st.text(), min_size=1), st.text())
def test_what_is_made_by_the_pattern_matches_it(pieces: list[str], filling: str) -> None:
    made = filling.join(pieces)
    assert is_like(made, pieces)
