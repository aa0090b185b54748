"""Claims about `thawd.grammar.log_filters`, from AWS's page on filter patterns."""

from __future__ import annotations

import json
import time

import pytest

from thawd.grammar.log_filters import FilterPatternError, parse

LINES = ["[ERROR] ARGUMENTS bad", "[WARN] arguments bad", "[ERROR] timeout after 3 s", "all is well"]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("", {0, 1, 2, 3}),
        ("   ", {0, 1, 2, 3}),
        ("ERROR", {0, 2}),
        ("error", set()),
        ("bad ERROR", {0}),
        ('"bad ERROR"', set()),
        ('"[ERROR] ARG"', {0}),
        ("?ERROR ?WARN", {0, 1, 2}),
        ("ERROR -ARGUMENTS", {2}),
        ('-"[ERROR]"', {1, 3}),
        ("-ERROR -WARN", {3}),
        # Beside other terms, those with a question mark are ignored.
        ("?WARN ERROR", {0, 2}),
        ('"\\"quoted\\""', set()),
        ('{ $.level = "ERROR" }', set()),
    ],
)
def test_terms(pattern: str, wanted: set[int]) -> None:
    holds = parse(pattern)
    assert {number for number, line in enumerate(LINES) if holds(line)} == wanted


DOCUMENT = {
    "level": "ERROR",
    "took": 5.5,
    "nothing": None,
    "yes": True,
    "no": False,
    "user": {"name": "Ann Lee", "tags": ["a", "b"], "a.b": 1},
    "ip": "10.1.2.3",
}


@pytest.mark.parametrize(
    "pattern",
    [
        '{ $.level = "ERROR" }',
        "{$.level=ERROR}",
        '{ $.level = "E*R" }',
        '{ $.level != "WARN" }',
        "{ $.ip = 10.1.* }",
        '{ $.ip = "*.2.*" }',
        "{ $.took > 5 }",
        "{ $.took >= 5.5 && $.took <= 55e-1 }",
        "{ $.took = 5.5 }",
        "{ $.took != 5 }",
        "{ $.nothing IS NULL }",
        "{ $.yes IS TRUE && $.no IS FALSE }",
        "{ $.yes = true }",
        "{ $.absent NOT EXISTS }",
        "{ $.user.name EXISTS }",
        '{ $.user.tags[1] = "b" }',
        '{ $.user["a.b"] = 1 }',
        '{ $.level = "WARN" || $.took > 5 && $.yes IS TRUE }',
        '{ ($.level = "WARN" || $.took > 5) && $.yes IS TRUE }',
        '{ $.user.name = "Ann Lee" }',
    ],
)
def test_json_patterns_that_match(pattern: str) -> None:
    assert parse(pattern)(json.dumps(DOCUMENT))


@pytest.mark.parametrize(
    "pattern",
    [
        '{ $.level = "WARN" }',
        '{ $.level = "ERR" }',
        '{ $.level = "E*X" }',
        '{ $.absent != "x" }',
        "{ $.took < 5 }",
        "{ $.level > 5 }",
        "{ $.absent IS NULL }",
        "{ $.user.tags[2] EXISTS }",
        "{ $.level.deeper EXISTS }",
        '{ ($.level = "ERROR" || $.took > 5) && $.no IS TRUE }',
        '{ $.level = "WARN" || $.took > 5 && $.no IS TRUE }',
        '{ $.ip = "10.1.2.3*3" }',
    ],
)
def test_json_patterns_that_do_not_match(pattern: str) -> None:
    assert not parse(pattern)(json.dumps(DOCUMENT))


@pytest.mark.parametrize("message", ["", "ERROR", "[1]", '{"level": ', '{"level": "INFO"}', "null", "{" * 100_000])
def test_json_patterns_take_any_message(message: str) -> None:
    assert not parse('{ $.level = "ERROR" }')(message)


@pytest.mark.parametrize(
    "pattern",
    [
        "{ $.level",
        "{ $.level }",
        "{ $.level = }",
        "{ = 5 }",
        "{ level = 5 }",
        "{ ($.a = 1 }",
        "{ $.a = 1 $.b = 2 }",
        '{ $.a > "x" }',
        "{ $.a IS MAYBE }",
        "{ }",
        "[a, b]",
        "%ERR.*%",
        "{ $.a = %x% }",
        "foo:bar",
        'half"quoted',
        '"open',
        "?",
        "-",
        "x" * 1025,
        "{ " + "(" * 50 + "$.a = 1" + ")" * 50 + " }",
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(FilterPatternError):
        parse(pattern)


def test_many_stars_take_no_longer_than_the_message_is_long() -> None:
    holds = parse('{ $.a = "' + "*a" * 200 + '*b" }')
    begun_s = time.process_time()
    assert not holds(json.dumps({"a": "a" * 200_000}))
    assert time.process_time() - begun_s < 1.0
