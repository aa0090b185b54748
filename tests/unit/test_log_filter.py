"""`thawd.grammar.log_filters`, from AWS's page on filter patterns."""

from __future__ import annotations

import json
import time

import pytest

from thawd.grammar.log_filters import _MAX_DEPTH, FilterPatternError, parse

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
        "[a, b",
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


@pytest.mark.serial
def test_many_stars_take_no_longer_than_the_message_is_long() -> None:
    holds = parse('{ $.a = "' + "*a" * 200 + '*b" }')
    begun_s = time.process_time()
    assert not holds(json.dumps({"a": "a" * 200_000}))
    assert time.process_time() - begun_s < 1.0


def test_a_quoted_phrase_may_hold_quotes_and_backslashes() -> None:
    holds = parse(r'"say \"yes\" \\ no"')
    assert holds('they say "yes" \\ no more')
    assert not holds("they say yes no more")
    assert parse(r'{ $.a = "say \"yes\" \\" }')(json.dumps({"a": 'say "yes" \\'}))


def test_a_json_message_may_begin_with_white_space() -> None:
    assert parse("{ $.a = 1 }")('  \t{"a": 1}')


@pytest.mark.parametrize(("depth", "allowed"), [(1, True), (_MAX_DEPTH, True), (_MAX_DEPTH + 1, False)])
def test_parentheses_are_nested_to_a_limit(depth: int, allowed: bool) -> None:
    pattern = "{ " + "(" * depth + "$.a = 1" + ")" * depth + " }"
    if allowed:
        assert parse(pattern)('{"a": 1}')
    else:
        with pytest.raises(FilterPatternError, match="nested"):
            parse(pattern)


def test_parentheses_side_by_side_are_not_nested_in_each_other() -> None:
    pattern = "{ " + " && ".join(["($.a = 1)"] * 60) + " }"
    assert len(pattern) <= 1024
    assert parse(pattern)('{"a": 1}')


def test_what_is_nested_after_a_closed_parenthesis_has_the_same_limit() -> None:
    for depth in (_MAX_DEPTH, _MAX_DEPTH + 1):
        pattern = "{ ($.a = 1) && " + "(" * depth + "$.a = 1" + ")" * depth + " }"
        if depth > _MAX_DEPTH:
            with pytest.raises(FilterPatternError, match="nested"):
                parse(pattern)
        else:
            assert parse(pattern)('{"a": 1}')


def test_a_pattern_has_1024_characters_at_most() -> None:
    assert parse("x" * 1024)("x" * 1024)
    with pytest.raises(FilterPatternError, match=r"1025 characters.*1024"):
        parse("x" * 1025)


@pytest.mark.parametrize(
    ("comparison", "values"),
    [("=", {5}), ("!=", {4, 6}), (">", {6}), ("<", {4}), (">=", {5, 6}), ("<=", {4, 5})],
)
def test_numbers_are_compared_up_to_and_including_the_bound_where_it_says_so(comparison: str, values: set[int]) -> None:
    holds = parse(f"{{ $.a {comparison} 5 }}")
    assert {value for value in (4, 5, 6) if holds(json.dumps({"a": value}))} == values


@pytest.mark.parametrize("value", ["x", True, None, [5]])
def test_what_is_no_number_differs_from_one_and_is_neither_more_nor_less(value: object) -> None:
    message = json.dumps({"a": value})
    assert parse("{ $.a != 5 }")(message)
    assert not any(parse(f"{{ $.a {comparison} 5 }}")(message) for comparison in ("=", ">", "<", ">=", "<="))
    assert not parse("{ $.a != 5 }")("{}")


@pytest.mark.parametrize(
    ("wanted", "text", "matches"),
    [
        ("ab*ba", "abba", True),
        ("ab*ba", "aba", False),  # prefix and suffix must not overlap
        ("ab*b*", "ab", False),  # each piece must come after the previous one
        ("*a*b*", "aba", True),  # and the nearest place is taken
        ("x*a*a*y", "xay", False),
        ("x*a*a*y", "xaay", True),
        ("x*xa*y", "xay", False),
        ("a*bc*c", "abc", False),  # a piece must not overlap the suffix
        ("*b*", "b", True),
        ("*", "", True),
    ],
)
def test_stars_stand_for_anything_between_pieces_that_do_not_overlap(wanted: str, text: str, matches: bool) -> None:
    assert parse(f'{{ $.a = "{wanted}" }}')(json.dumps({"a": text})) is matches


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("[a, b", "space-delimited"),
        ("%ERR%", "regular expressions"),
        ("{ $.a = %x% }", "regular expressions"),
        ("foo:bar", "Invalid character"),
    ],
)
def test_what_is_not_supported_is_told_as_that(pattern: str, said: str) -> None:
    with pytest.raises(FilterPatternError, match=said):
        parse(pattern)
