"""Filter patterns for space-delimited fields; the examples are those of AWS's page on filter patterns."""

from __future__ import annotations

import time

import pytest

from thawd.grammar.log_filters import FilterPatternError, parse

LINES = [
    '127.0.0.1 Prod frank [10/Oct/2000:13:25:15 -0700] "GET /index.html HTTP/1.0" 404 1534',
    '127.0.0.1 Prod frank [10/Oct/2000:13:35:22 -0700] "GET /about-us/index.html HTTP/1.0" 200 500',
    '127.0.0.1 Prod frank [10/Oct/2000:13:50:35 -0700] "GET /t&c/index.html HTTP/1.0" 410 5',
    "ERROR something is wrong",
    "",
]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("[ip, user, username, timestamp, request =*.html*, status_code = 4*, bytes]", {0, 2}),
        ("[ip, user, username, timestamp, request =*.html*, status_code = 404 || status_code = 410, bytes]", {0, 2}),
        ("[..., status_code = 4*, bytes]", {0, 2}),
        ("[..., bytes > 1000]", {0}),
        ("[ip, user, ..., bytes >= 5 && bytes <= 500]", {1, 2}),
        ("[w1=ERROR, w2, w3, w4]", {3}),
        ("[w1!=ERROR && w1!=WARN, ...]", {0, 1, 2}),
        ("[w1, w2]", set()),
        ("[w1, ...]", {0, 1, 2, 3}),
        ("[...]", {0, 1, 2, 3, 4}),
        ('[ip, user, name, time = "10/Oct/2000:13:25:15 -0700", ...]', {0}),
        ("[..., request, status < 300, bytes]", {1}),
    ],
)
def test_fields_are_matched_by_their_place(pattern: str, wanted: set[int]) -> None:
    holds = parse(pattern)
    assert {number for number, line in enumerate(LINES) if holds(line)} == wanted


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("[a, b", "must end with ]"),
        ("[]", "1 to 100 fields"),
        ("[a,, b]", "1 to 100 fields"),
        ("[..., a, ...]", "can be used once"),
        ("[a > b]", "b is not a number"),
        ("[a = 1 && b = 2]", "must have one name"),
        ("[a = %x%]", "regular expressions"),
        ("[a = 1 b]", "unexpected characters"),
        ("[a &&]", "unexpected characters"),
    ],
)
def test_what_is_no_such_pattern_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(FilterPatternError, match=words):
        parse(pattern)


@pytest.mark.parametrize("line", ["[" * 200_000, '"' * 200_001, "a " * 100_000, "x" * 200_000])
def test_a_long_message_takes_no_long_time(line: str) -> None:
    holds = parse("[a = *x*y*z*, ..., b = *q*, c]")
    begun_s = time.process_time()
    holds(line)
    assert time.process_time() - begun_s < 2


@pytest.mark.parametrize("piece", ["[ ", "[", '" ', '["', "[]", "a"])
def test_the_time_to_match_is_proportional_to_the_length_whatever_brackets_are_open(piece: str) -> None:
    matches = parse("[a, b = *x*, c]")
    began_s = time.process_time()
    matches(piece * 200_000)
    assert time.process_time() - began_s < 1


def test_a_bracket_that_nothing_closes_is_part_of_a_word() -> None:
    assert parse('[a = "x", b = "[y", c = "z]"]')("x [y z]") is False  # the field is between the brackets
    assert parse('[a = "x", b = "y z"]')("x [y z]")
    assert parse('[a = "x", b = "[y", c = "z"]')("x [y z")
