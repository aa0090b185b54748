"""Event patterns, which decide which events pass a filter. No side effects.

A pattern is a JSON object with the structure of the event. For each field of the event that is tested, the pattern has
a list of allowed values and comparisons. All these fields must match, and a field matches if its value is in the list
or meets one of the comparisons. Of the objects listed under ``$or``, at least one must match. If a field's value is a
list, at least one element of that list must match.

Source: Amazon EventBridge user guide, "Comparison operators for use in event patterns", "Null values and empty
strings", "Arrays in event patterns"; AWS Lambda developer guide, "Control which events Lambda sends to your function".
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from thawd.grammar.wildcards import is_like

MAX_PATTERN_CHARACTERS = 4096
# Source: EventBridge user guide, "Numeric matching": from -5.0e9 to +5.0e9.
_MOST = 5e9
_DEEPEST = 64  # most levels of objects in a pattern
_ABSENT: Any = object()

Test = Callable[[Any], bool]
"""Returns whether a value in an event matches. The argument is `_ABSENT` for a field that the event does not have."""


class PatternError(ValueError):
    """A text is not an event pattern; the message says where and why."""


class Number(float):
    """A number in a JSON text, with its spelling. As on AWS, the numbers 300, 300.0 and 3.0e2 are not equal."""

    text: str

    def __new__(cls, text: str) -> Number:
        """Make the number with the spelling `text`."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def decode(text: str | bytes) -> Any:
    """Decode a JSON text, with numbers as `Number`.

    Raises:
        ValueError: the text is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, parse_float=Number, parse_int=Number, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class Pattern:
    """One event pattern.

    Attributes:
        text: JSON text of the pattern.
    """

    def __init__(self, text: str) -> None:
        """Parse a pattern.

        Raises:
            PatternError: the text is not a pattern.
        """
        if len(text) > MAX_PATTERN_CHARACTERS:
            raise PatternError(f"it has {len(text)} characters; at most {MAX_PATTERN_CHARACTERS} are allowed")
        try:
            document = decode(text)
        except ValueError as error:
            raise PatternError(f"it is not JSON ({error})") from None
        if not isinstance(document, dict):
            raise PatternError("it must be a JSON object")
        self.text = text
        self._alternatives = _compiled(document, "", 0)
        self._document = document

    def matches(self, event: Any) -> bool:
        """Return whether an event, as returned by `decode`, matches; False if the event is nested too deeply."""
        try:
            return self._alternatives(event)
        except RecursionError:
            return False

    def forms_of(self, name: str) -> frozenset[str]:
        """Return how the pattern tests the field `name` of an event.

        The result contains ``object`` if the pattern tests fields inside this field, and ``list`` if it lists allowed
        values. Both are possible if the objects under ``$or`` differ. The result is empty for a field that is not
        tested.
        """
        return frozenset(_forms(self._document, name))


def _forms(document: Mapping[str, Any], name: str) -> Iterator[str]:
    if name in document:
        yield "object" if isinstance(document[name], dict) else "list"
    for choice in document.get("$or", ()):
        yield from _forms(choice, name)


def _compiled(document: Mapping[str, Any], path: str, depth: int) -> Test:
    """Return the test for an object in the pattern. The test takes the value of the same field of the event.

    Args:
        document: an object in the pattern, or the whole pattern.
        path: names of the fields that lead to the object, joined by dots; empty for the whole pattern.
        depth: number of objects around this one.

    Raises:
        PatternError: the object is not a valid part of a pattern.
    """
    if not document:
        raise PatternError(f"{path or 'it'} is an empty object, which matches nothing")
    if depth > _DEEPEST:
        raise PatternError("it is nested too deeply")
    fields: dict[str, Test] = {}
    choices: list[Test] = []
    for name, asked in document.items():
        where = f"{path}.{name}" if path else name
        if name == "$or":
            choices = _choices(asked, path, where, depth)
        elif isinstance(asked, dict):
            fields[name] = _compiled(asked, where, depth + 1)
        elif isinstance(asked, list):
            fields[name] = _leaf(asked, where)
        else:
            raise PatternError(f"{where} must be an object or a list of allowed values, such as [{_spell(asked)}]")

    def one(event: Any) -> bool:
        values = event if isinstance(event, dict) else {}
        return all(test(values.get(name, _ABSENT)) for name, test in fields.items()) and (
            not choices or any(choice(values) for choice in choices)
        )

    def test(event: Any) -> bool:
        # If the value is a list of objects, at least one of them must match in all fields. It is not enough that each
        # field matches in a different object.
        return any(map(test, event)) if isinstance(event, list) and event else one(event)

    return test


def _choices(asked: Any, path: str, where: str, depth: int) -> list[Test]:
    if not isinstance(asked, list) or len(asked) < 2 or not all(isinstance(choice, dict) for choice in asked):
        raise PatternError(f"{where} must be a list of at least two objects")
    return [_compiled(choice, path, depth + 1) for choice in asked]


def _leaf(asked: list[Any], where: str) -> Test:
    if not asked:
        raise PatternError(f"{where} is an empty list, which matches nothing")
    tests = [_value(one, where) for one in asked]

    def test(value: Any) -> bool:
        return any(one(leaf) for leaf in _leaves(value) for one in tests)

    return test


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values to test in a field of the event: the value itself, or the values in a list and in nested lists.

    An object or an empty list counts as an absent field.
    """
    if isinstance(value, list):
        leaves = [leaf for element in value for leaf in _leaves(element) if leaf is not _ABSENT]
        yield from leaves or [_ABSENT]
    else:
        yield _ABSENT if isinstance(value, dict) else value


def _value(asked: Any, where: str) -> Test:
    if isinstance(asked, list):
        raise PatternError(f"{where} contains a list inside its list of allowed values; write the values in one list")
    if not isinstance(asked, dict):
        return lambda value: _equal(asked, value)
    if len(asked) != 1:
        raise PatternError(f"{where}: a comparison must be an object with one operator, found {_spell(asked)}")
    [(operator, operand)] = asked.items()
    make = _OPERATORS.get(operator)
    if make is None:
        raise PatternError(f"{where}: there is no operator {operator!r}; the operators are {', '.join(_OPERATORS)}")
    return make(operand, where)


def _equal(asked: Any, value: Any) -> bool:
    if isinstance(asked, Number):
        return isinstance(value, Number) and asked.text == value.text
    return type(asked) is type(value) and bool(asked == value)


def _text_test(
    operator: str, compare: Callable[[str, str], bool], *, ignores_case: bool = False
) -> Callable[[Any, str], Test]:
    """Return a function that makes the test of an operator from its operand, a text.

    With `ignores_case`, the operand can also be an object such as ``{"equals-ignore-case": "text"}``; the test then
    treats capital and small letters as equal.
    """

    def make(operand: Any, where: str) -> Test:
        if ignores_case and isinstance(operand, dict) and list(operand) == ["equals-ignore-case"]:
            lower = _text(operand["equals-ignore-case"], operator, where).lower()
            return lambda value: isinstance(value, str) and compare(value.lower(), lower)
        wanted = _text(operand, operator, where)
        return lambda value: isinstance(value, str) and compare(value, wanted)

    return make


def _text(operand: Any, operator: str, where: str) -> str:
    if not isinstance(operand, str):
        raise PatternError(f"{where}: {operator} takes a text, found {_spell(operand)}")
    return operand


def _exists(operand: Any, where: str) -> Test:
    if not isinstance(operand, bool):
        raise PatternError(f"{where}: exists takes true or false, found {_spell(operand)}")
    return lambda value: (value is not _ABSENT) is operand


def _wildcard(operand: Any, where: str) -> Test:
    pieces = [""]
    characters = iter(_text(operand, "wildcard", where))
    was_star = False
    for character in characters:
        is_star = character == "*"
        if is_star and was_star:
            raise PatternError(f"{where}: there are two stars side by side; write one")
        if is_star:
            pieces.append("")
        else:
            pieces[-1] += character if character != "\\" else _escaped(next(characters, ""), where)
        was_star = is_star
    return lambda value: isinstance(value, str) and is_like(value, pieces)


def _escaped(character: str, where: str) -> str:
    if character not in ("*", "\\"):
        raise PatternError(f"{where}: in the text after wildcard, a backslash must be followed by * or \\")
    return character


def _cidr(operand: Any, where: str) -> Test:
    text = _text(operand, "cidr", where)
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise PatternError(f"{where}: {error}") from None

    def test(value: Any) -> bool:
        try:
            return isinstance(value, str) and ipaddress.ip_address(value) in network
        except ValueError:
            return False

    return test


_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "=": lambda value, bound: value == bound,
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
}


def _numeric(operand: Any, where: str) -> Test:
    if not isinstance(operand, list) or len(operand) not in (2, 4):
        raise PatternError(f'{where}: numeric takes a list such as [">", 0, "<=", 5], found {_spell(operand)}')
    pairs = list(zip(operand[::2], operand[1::2], strict=True))
    for operator, bound in pairs:
        if not isinstance(operator, str) or operator not in _COMPARISONS:
            allowed = ", ".join(_COMPARISONS)
            raise PatternError(f"{where}: numeric allows the comparisons {allowed}, found {_spell(operator)}")
        if not isinstance(bound, Number) or not -_MOST <= bound <= _MOST:
            raise PatternError(f"{where}: numeric takes numbers from -5.0e9 to 5.0e9, found {_spell(bound)}")
    if len(pairs) == 2:
        (low_operator, low), (high_operator, high) = pairs
        if low_operator[0] != ">" or high_operator[0] != "<" or low >= high:
            raise PatternError(f"{where}: a range must be a lower bound with > or >=, then a higher bound with < or <=")
    tests = [(_COMPARISONS[operator], bound) for operator, bound in pairs]
    return lambda value: isinstance(value, Number) and all(compare(value, bound) for compare, bound in tests)


def _anything_but(operand: Any, where: str) -> Test:
    if isinstance(operand, dict):
        if len(operand) != 1 or next(iter(operand)) not in _BUT:
            allowed = ", ".join(_BUT)
            raise PatternError(f"{where}: anything-but takes one of the operators {allowed}, found {_spell(operand)}")
        [(operator, excluded)] = operand.items()
        listed = excluded if isinstance(excluded, list) else [excluded]
        tests = [_OPERATORS[operator](one, where) for one in listed]
    else:
        listed = operand if isinstance(operand, list) else [operand]
        if not (all(isinstance(one, str) for one in listed) or all(isinstance(one, Number) for one in listed)):
            raise PatternError(f"{where}: anything-but takes only texts or only numbers, found {_spell(operand)}")
        tests = [_value(one, where) for one in listed]
    if not tests:
        raise PatternError(f"{where}: anything-but takes at least one value")
    return lambda value: value is not _ABSENT and not any(test(value) for test in tests)


_OPERATORS: Mapping[str, Callable[[Any, str], Test]] = {
    "prefix": _text_test("prefix", str.startswith, ignores_case=True),
    "suffix": _text_test("suffix", str.endswith, ignores_case=True),
    "equals-ignore-case": _text_test("equals-ignore-case", lambda value, wanted: value.lower() == wanted.lower()),
    "anything-but": _anything_but,
    "numeric": _numeric,
    "exists": _exists,
    "wildcard": _wildcard,
    "cidr": _cidr,
}
_BUT = ("prefix", "suffix", "equals-ignore-case", "wildcard")


def _spell(value: Any) -> str:
    text = value.text if isinstance(value, Number) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:60] + "…"
