"""Event patterns: which events they match, case by case from AWS's pages, and properties of all patterns."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.grammar.event_patterns import Pattern, PatternError, decode
from thawd.sources.sqs.lambda_event import is_wanted

CASES: list[tuple[str, str, bool]] = [
    # equality, several fields, several values
    ('{"a": ["x"]}', '{"a": "x"}', True),
    ('{"a": ["x"]}', '{"a": "X"}', False),
    ('{"a": ["x", "y"]}', '{"a": "y"}', True),
    ('{"a": ["x"], "b": ["y"]}', '{"a": "x", "b": "z"}', False),
    ('{"a": ["x"]}', "{}", False),
    ('{"a": ["x"]}', '{"a": {"x": 1}}', False),
    ('{"a": {"b": {"c": [true]}}}', '{"a": {"b": {"c": true}}}', True),
    ('{"a": [true]}', '{"a": 1}', False),
    ('{"a": {"b": ["x"]}}', '{"a": "x"}', False),
    # numbers match by their digits, as on AWS
    ('{"a": [300]}', '{"a": 300}', True),
    ('{"a": [300]}', '{"a": 300.0}', False),
    ('{"a": [300]}', '{"a": 3.0e2}', False),
    ('{"a": [300]}', '{"a": "300"}', False),
    # null and empty
    ('{"a": [null]}', '{"a": null}', True),
    ('{"a": [null]}', "{}", False),
    ('{"a": [null]}', '{"a": ""}', False),
    ('{"a": [""]}', '{"a": ""}', True),
    ('{"a": [""]}', '{"a": null}', False),
    # lists in the event
    ('{"a": ["x"]}', '{"a": ["y", "x"]}', True),
    ('{"a": ["x"]}', '{"a": []}', False),
    ('{"a": {"b": [1], "c": [2]}}', '{"a": [{"b": 1, "c": 3}, {"b": 2, "c": 2}]}', False),
    ('{"a": {"b": [1], "c": [2]}}', '{"a": [{"b": 1, "c": 3}, {"b": 1, "c": 2}]}', True),
    # prefix and suffix, case-sensitive or not
    ('{"a": [{"prefix": "us-"}]}', '{"a": "us-east-1"}', True),
    ('{"a": [{"prefix": "us-"}]}', '{"a": "eu-us-"}', False),
    ('{"a": [{"prefix": "1"}]}', '{"a": 12}', False),
    ('{"a": [{"prefix": {"equals-ignore-case": "EventB"}}]}', '{"a": "eventbridge"}', True),
    ('{"a": [{"suffix": ".png"}]}', '{"a": "a.png"}', True),
    ('{"a": [{"suffix": ".png"}]}', '{"a": "a.PNG"}', False),
    ('{"a": [{"suffix": {"equals-ignore-case": ".png"}}]}', '{"a": "a.PNG"}', True),
    ('{"a": [{"equals-ignore-case": "alice"}]}', '{"a": "ALICE"}', True),
    ('{"a": [{"equals-ignore-case": "alice"}]}', '{"a": "alices"}', False),
    # anything-but
    ('{"a": [{"anything-but": "x"}]}', '{"a": "y"}', True),
    ('{"a": [{"anything-but": "x"}]}', '{"a": "x"}', False),
    ('{"a": [{"anything-but": "x"}]}', "{}", False),
    ('{"a": [{"anything-but": "x"}]}', '{"a": null}', True),
    ('{"a": [{"anything-but": ["x", "y"]}]}', '{"a": "y"}', False),
    ('{"a": [{"anything-but": 5}]}', '{"a": 5}', False),
    ('{"a": [{"anything-but": [1, 2]}]}', '{"a": 3}', True),
    ('{"a": [{"anything-but": {"prefix": "us-"}}]}', '{"a": "us-east-1"}', False),
    ('{"a": [{"anything-but": {"prefix": ["us-", "eu-"]}}]}', '{"a": "eu-west-1"}', False),
    ('{"a": [{"anything-but": {"prefix": ["us-", "eu-"]}}]}', '{"a": "ap-east-1"}', True),
    ('{"a": [{"anything-but": {"suffix": ".png"}}]}', '{"a": "a.jpg"}', True),
    ('{"a": [{"anything-but": {"suffix": ".png"}}]}', '{"a": "a.png"}', False),
    ('{"a": [{"anything-but": {"equals-ignore-case": "init"}}]}', '{"a": "INIT"}', False),
    ('{"a": [{"anything-but": {"wildcard": "*/lib/*"}}]}', '{"a": "/x/lib/y"}', False),
    # numeric
    ('{"a": [{"numeric": [">", 10, "<=", 20]}]}', '{"a": 20}', True),
    ('{"a": [{"numeric": [">", 10, "<=", 20]}]}', '{"a": 10}', False),
    ('{"a": [{"numeric": ["=", 3.0e2]}]}', '{"a": 300}', True),
    ('{"a": [{"numeric": ["<", 0]}]}', '{"a": -0.5}', True),
    ('{"a": [{"numeric": ["<", 0]}]}', '{"a": "-1"}', False),
    ('{"a": [{"numeric": ["<", 0]}]}', '{"a": false}', False),
    ('{"a": [{"numeric": [">=", -5.0e9, "<=", 5.0e9]}]}', '{"a": 5000000000}', True),
    # exists
    ('{"a": [{"exists": true}]}', '{"a": null}', True),
    ('{"a": [{"exists": true}]}', "{}", False),
    ('{"a": [{"exists": true}]}', '{"a": {"b": 1}}', False),
    ('{"a": [{"exists": false}]}', "{}", True),
    ('{"a": {"b": [{"exists": false}]}}', "{}", True),
    ('{"a": [{"exists": false}]}', '{"a": 1}', False),
    ('{"a": ["x", {"exists": false}]}', "{}", True),
    # wildcard
    ('{"a": [{"wildcard": "dir/*.png"}]}', '{"a": "dir/x.png"}', True),
    ('{"a": [{"wildcard": "dir/*.png"}]}', '{"a": "dir/x.jpg"}', False),
    ('{"a": [{"wildcard": "a*bc*c"}]}', '{"a": "abc"}', False),
    ('{"a": [{"wildcard": "a*bc*c"}]}', '{"a": "abcc"}', True),
    ('{"a": [{"wildcard": "*"}]}', '{"a": ""}', True),
    ('{"a": [{"wildcard": "a.c"}]}', '{"a": "abc"}', False),
    (r'{"a": [{"wildcard": "1\\*2"}]}', '{"a": "1*2"}', True),
    (r'{"a": [{"wildcard": "1\\*2"}]}', '{"a": "1x2"}', False),
    (r'{"a": [{"wildcard": "1\\\\2"}]}', r'{"a": "1\\2"}', True),
    ('{"a": [{"wildcard": "ab*b*"}]}', '{"a": "ab"}', False),
    ('{"a": [{"wildcard": "*a*b*"}]}', '{"a": "aba"}', True),
    # cidr
    ('{"a": [{"cidr": "10.0.0.7/24"}]}', '{"a": "10.0.0.255"}', True),
    ('{"a": [{"cidr": "10.0.0.0/24"}]}', '{"a": "10.0.0.255"}', True),
    ('{"a": [{"cidr": "10.0.0.0/24"}]}', '{"a": "10.0.1.0"}', False),
    ('{"a": [{"cidr": "2001:db8::/32"}]}', '{"a": "2001:db8::1"}', True),
    ('{"a": [{"cidr": "10.0.0.0/24"}]}', '{"a": "2001:db8::1"}', False),
    ('{"a": [{"cidr": "10.0.0.0/24"}]}', '{"a": "somewhere"}', False),
    # $or
    ('{"$or": [{"a": [1]}, {"b": [2]}]}', '{"b": 2}', True),
    ('{"$or": [{"a": [1]}, {"b": [2]}]}', '{"a": 2, "b": 1}', False),
    ('{"c": [3], "$or": [{"a": [1]}, {"b": [2]}]}', '{"a": 1}', False),
    ('{"c": [3], "$or": [{"a": [1]}, {"b": [2]}]}', '{"a": 1, "c": 3}', True),
    ('{"d": {"$or": [{"a": [1]}, {"b": [2], "c": [3]}]}}', '{"d": {"b": 2, "c": 3}}', True),
    ('{"$or": [{"$or": [{"a": [1]}, {"a": [2]}]}, {"b": [3]}]}', '{"a": 2}', True),
]

REFUSED = [
    "",
    "[]",
    "null",
    "{}",
    '{"a": {}}',
    '{"a": []}',
    '{"a": "x"}',
    '{"a": 5}',
    '{"a": [[1]]}',
    '{"a": [{}]}',
    '{"a": [{"prefix": "a", "suffix": "b"}]}',
    '{"a": [{"starts-with": "a"}]}',
    '{"a": [{"prefix": 5}]}',
    '{"a": [{"suffix": ["a"]}]}',
    '{"a": [{"exists": "yes"}]}',
    '{"a": [{"anything-but": []}]}',
    '{"a": [{"anything-but": ["x", 5]}]}',
    '{"a": [{"anything-but": [true]}]}',
    '{"a": [{"anything-but": {"numeric": ["=", 1]}}]}',
    '{"a": [{"anything-but": {"prefix": "a", "suffix": "b"}}]}',
    '{"a": [{"anything-but": {}}]}',
    '{"a": [{"numeric": []}]}',
    '{"a": [{"numeric": [">"]}]}',
    '{"a": [{"numeric": [">", "5"]}]}',
    '{"a": [{"numeric": ["!=", 5]}]}',
    '{"a": [{"numeric": [">", 5, ">", 6]}]}',
    '{"a": [{"numeric": [">", 5, "<", 5]}]}',
    '{"a": [{"numeric": ["<", 5, ">", 1]}]}',
    '{"a": [{"numeric": ["<", 5000000001]}]}',
    '{"a": [{"wildcard": "a**b"}]}',
    r'{"a": [{"wildcard": "a\\b"}]}',
    r'{"a": [{"wildcard": "a\\"}]}',
    '{"a": [{"cidr": "10.0.0.0/33"}]}',
    '{"a": [{"cidr": "ten"}]}',
    '{"$or": [{"a": [1]}]}',
    '{"$or": {"a": [1]}}',
    '{"$or": [{"a": [1]}, ["b"]]}',
    '{"a": [NaN]}',
    '{"a": ["' + "x" * 4096 + '"]}',
    '{"a":' * 100 + "[1]" + "}" * 100,
]


@pytest.mark.parametrize(("pattern", "event", "expected"), CASES)
def test_a_pattern_matches_what_it_says(pattern: str, event: str, expected: bool) -> None:
    assert Pattern(pattern).matches(decode(event)) is expected


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_pattern_is_refused_when_it_is_made(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


def nested(levels: int) -> str:
    return '{"a":' * (levels - 1) + '{"a": [1]}' + "}" * (levels - 1)


def nested_choices(levels: int) -> str:
    return '{"$or": [{"b": [1]}, ' * (levels - 1) + '{"a": [1]}' + "]}" * (levels - 1)


@pytest.mark.parametrize("make", [nested, nested_choices])
def test_a_pattern_is_nested_to_65_levels_at_most(make: Callable[[int], str]) -> None:
    Pattern(make(65))
    with pytest.raises(PatternError, match="nested"):
        Pattern(make(66))


def test_a_pattern_has_4096_characters_at_most() -> None:
    text = '{"a": ["' + "x" * (4096 - 11) + '"]}'
    assert len(text) == 4096
    assert Pattern(text).matches({"a": "x" * (4096 - 11)})
    with pytest.raises(PatternError, match=r"4097 characters; at most 4096"):
        Pattern(text + " ")


@pytest.mark.parametrize(
    ("pattern", "begin", "end"),
    [
        ('{"a": 5}', "a must be ", " such as [5]"),
        ('{"a": {"b": {"c": "x"}}}', "a.b.c must be ", ' such as ["x"]'),
        ('{"a": {"b": {}}}', "a.b is ", ""),
        ("{}", "it is ", ""),
        ('{"a": {"$or": [{"b": [1]}]}}', "a.$or must be ", ""),
        ('{"$or": [{"b": [1]}, {"c": []}]}', "c is ", ""),
        ('{"a": [{"wildcard": 3.0e2}]}', "a: wildcard takes ", " 3.0e2"),
        ('{"a": [{"cidr": 5}]}', "a: cidr takes ", " 5"),
        ('{"a": [{"exists": "' + "y" * 58 + '"}]}', "a: exists takes ", ' "' + "y" * 58 + '"'),
        ('{"a": [{"exists": "' + "y" * 59 + '"}]}', "a: exists takes ", ' "' + "y" * 59 + "…"),
    ],
)
def test_what_is_no_pattern_is_told_with_its_place_and_what_was_found(pattern: str, begin: str, end: str) -> None:
    with pytest.raises(PatternError) as error:
        Pattern(pattern)
    assert str(error.value).startswith(begin)
    assert str(error.value).endswith(end)


SCALARS = st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5)
EVENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text("abc", min_size=1, max_size=2), EVENTS, max_size=4)


def exact(event: Any) -> Any:
    """Return a pattern that the event itself matches, or None if it has nothing that a pattern can name."""
    if isinstance(event, dict):
        fields = {name: made for name, value in event.items() if (made := exact(value)) is not None}
        return fields or None
    if isinstance(event, list):
        return next((made for value in event if (made := exact(value)) is not None), None)
    return [event]


@settings(deadline=None)
@given(OBJECTS)
def test_an_event_matches_the_pattern_that_is_made_of_it(event: dict[str, Any]) -> None:
    pattern = exact(event)
    if pattern is not None:
        assert Pattern(json.dumps(pattern)).matches(decode(json.dumps(event)))


@settings(deadline=None)
@given(st.text("ab*\\", max_size=6), st.text("ab*\\", max_size=8))
def test_a_wildcard_is_what_a_regular_expression_says_it_is(given_text: str, value: str) -> None:
    import re

    try:
        pattern = Pattern(json.dumps({"a": [{"wildcard": given_text}]}))
    except PatternError:
        return
    unescaped = re.sub(r"\\(.)|(\*)|(.)", lambda m: ".*" if m[2] else re.escape(m[1] or m[3]), given_text)
    assert pattern.matches({"a": value}) is (re.fullmatch(unescaped, value, re.DOTALL) is not None)


@settings(deadline=None)
@given(OBJECTS, SCALARS)
def test_anything_but_is_the_opposite_of_equality_where_the_field_is(event: dict[str, Any], value: Any) -> None:
    if not isinstance(value, str):
        value = 7
    event["a"] = event.get("a") if not isinstance(event.get("a"), dict | list) else value
    read = decode(json.dumps(event))
    asked, but = ({"a": [one]} for one in (value, {"anything-but": value}))
    assert Pattern(json.dumps(asked)).matches(read) is not Pattern(json.dumps(but)).matches(read)


@settings(deadline=None)
@given(st.text(max_size=30))
def test_no_text_fails_otherwise_than_as_a_pattern(text: str) -> None:
    try:
        Pattern(text)
    except PatternError:
        return


@pytest.mark.parametrize(
    ("pattern", "body", "expected"),
    [
        ('{"body": {"kind": ["order"]}}', '{"kind": "order"}', True),
        ('{"body": {"kind": ["order"]}}', '{"kind": "refund"}', False),
        ('{"body": {"kind": ["order"]}}', "order", False),
        ('{"body": {"kind": [{"exists": false}]}}', "order", False),
        ('{"body": {"kind": [{"exists": false}]}}', '{"other": 1}', True),
        ('{"body": ["order"]}', "order", True),
        ('{"body": [{"prefix": "or"}]}', "order", True),
        ('{"body": [{"prefix": "{"}]}', '{"kind": "order"}', False),
        ('{"body": ["42"]}', "42", True),
        ('{"messageAttributes": {"kind": {"stringValue": ["order"]}}}', "anything", True),
        ('{"messageAttributes": {"kind": {"stringValue": ["other"]}}}', "anything", False),
        ('{"$or": [{"body": {"kind": ["order"]}}, {"eventSource": ["aws:sqs"]}]}', '{"kind": "x"}', True),
        ('{"$or": [{"body": {"kind": ["order"]}}, {"eventSource": ["x"]}]}', '{"kind": "order"}', True),
    ],
)
def test_a_body_is_looked_into_where_it_is_json_and_the_pattern_asks_for_that(
    pattern: str, body: str, expected: bool
) -> None:
    attributes = {"kind": {"stringValue": "order", "dataType": "String"}}
    record = {"body": body, "messageAttributes": attributes, "eventSource": "aws:sqs"}
    assert is_wanted([Pattern(pattern)], json.dumps(record).encode(), body) is expected


def test_one_of_several_patterns_is_enough() -> None:
    patterns = [Pattern('{"body": {"a": [1]}}'), Pattern('{"body": {"b": [2]}}')]
    record = json.dumps({"body": '{"b": 2}'}).encode()
    assert is_wanted(patterns, record, '{"b": 2}')
    assert not is_wanted(patterns, record, '{"b": 3}')
    assert is_wanted([], record, "whatever")


@pytest.mark.parametrize("depth", [100, 900, 5000])
def test_an_event_that_is_nested_too_deeply_matches_nothing_and_ends_nothing(depth: int) -> None:
    # Given texts that can still be decoded, but are too deep for a recursive comparison
    inner = "[" * depth + "1" + "]" * depth
    pattern = Pattern('{"a": {"b": ["x"]}}')
    for text in (inner, f'{{"a": {inner}}}'):
        try:
            event = decode(text)
        except ValueError:
            continue
        assert not pattern.matches(event)
