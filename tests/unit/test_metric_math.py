"""CloudWatch's metric math. Names and examples are those of the CloudWatch user guide."""

from __future__ import annotations

import math
from typing import Any

import pytest

from thawd.grammar.metric_math import Inputs, MetricMathError, parse

M1 = {0.0: 1.0, 60.0: 2.0, 180.0: 6.0}
M2 = {0.0: 2.0, 60.0: 0.0, 120.0: 5.0, 180.0: 3.0}
INPUTS = Inputs({"m1": M1, "m2": M2, "e1": 5.0}, ("m1", "m2"), {"m1": 60.0, "m2": 60.0}, (0.0, 60.0, 120.0, 180.0))


def value_of(text: str) -> Any:
    expression, _ = parse(text)
    return expression(INPUTS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3 ^ 2", 19.0),
        ("(1 + 2) * -3", -9.0),
        ("m1 + 1", {0.0: 2.0, 60.0: 3.0, 180.0: 7.0}),
        ("m1 + m2", {0.0: 3.0, 60.0: 2.0, 180.0: 9.0}),
        ("m1 / m2", {0.0: 0.5, 180.0: 2.0}),
        ("100 * (m1 / m2)", {0.0: 50.0, 180.0: 200.0}),
        ("SUM([m1, m2])", {0.0: 3.0, 60.0: 2.0, 120.0: 5.0, 180.0: 9.0}),
        ("SUM(METRICS())", {0.0: 3.0, 60.0: 2.0, 120.0: 5.0, 180.0: 9.0}),
        ('MAX(METRICS("m1"))', {0.0: 1.0, 60.0: 2.0, 180.0: 6.0}),
        ("AVG([m1, m2])", {0.0: 1.5, 60.0: 1.0, 120.0: 5.0, 180.0: 4.5}),
        ("SUM(m1)", 9.0),
        ("MAX(m1) - MIN(m1)", 5.0),
        ("m1 / PERIOD(m1)", {0.0: 1 / 60, 60.0: 2 / 60, 180.0: 0.1}),
        ("RATE(m1)", {60.0: 1 / 60, 180.0: 4 / 120}),
        ("DIFF(m1)", {60.0: 1.0, 180.0: 4.0}),
        ("FILL(m1, 0)", {0.0: 1.0, 60.0: 2.0, 120.0: 0.0, 180.0: 6.0}),
        ("FILL(m1, REPEAT)", {0.0: 1.0, 60.0: 2.0, 120.0: 2.0, 180.0: 6.0}),
        ("FILL(m1, LINEAR)", {0.0: 1.0, 60.0: 2.0, 120.0: 4.0, 180.0: 6.0}),
        ("IF(m2 > 2, m2, 0)", {0.0: 0.0, 60.0: 0.0, 120.0: 5.0, 180.0: 3.0}),
        ("IF(m2 == 0, 1)", {60.0: 1.0}),
        ("m1 > 1 AND m2 > 0", {0.0: 0.0, 60.0: 0.0, 180.0: 1.0}),
        ("m1 > 1 || m2 > 0", {0.0: 1.0, 60.0: 1.0, 180.0: 1.0}),
        ("ABS(m1 - 2)", {0.0: 1.0, 60.0: 0.0, 180.0: 4.0}),
        ("CEIL(m1 / 4)", {0.0: 1.0, 60.0: 1.0, 180.0: 2.0}),
        ("FLOOR(e1 / 2) + m1", {at: value + 2 for at, value in M1.items()}),
    ],
)
def test_an_expression_is_computed_time_by_time(text: str, value: Any) -> None:
    found = value_of(text)
    if isinstance(value, dict):
        assert {at: round(each, 9) for at, each in found.items() if at in value} == {
            at: round(each, 9) for at, each in value.items()
        }
    else:
        assert found == value


def test_a_list_stays_a_list_of_series() -> None:
    assert value_of("[m1, m2] * 2") == [{at: v * 2 for at, v in M1.items()}, {at: v * 2 for at, v in M2.items()}]


def test_dividing_by_zero_gives_no_data_point() -> None:
    assert value_of("1 / (m2 - m2)") == {}
    assert math.isnan(value_of("1 / 0"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m1 +", "unexpected 'the end'"),
        ("m1 m2", "unexpected 'm2'"),
        ("SEARCH('x', 'Sum', 60)", "unexpected"),
        ("NOSUCH(m1)", "the function NOSUCH with 1 arguments is not supported"),
        ("[m1] + [m2]", "an operator takes at most one list"),
        ("(" * 30 + "1" + ")" * 30, "nested too deep"),
        ("m1 & m2", "unexpected characters"),
        ("x" * 2049, "at most 2048"),
    ],
)
def test_what_is_not_supported_is_refused(text: str, words: str) -> None:
    with pytest.raises(MetricMathError, match=words.replace("(", r"\(")):
        value_of(text)


def test_the_ids_of_an_expression_are_known() -> None:
    assert parse("m1 + SUM([e1, m2])")[1] == {"m1", "e1", "m2"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-" * 2001 + "1", -1.0),
        ("1" + " - 1" * 500, -499.0),
        ("2 ^ 2 ^ 3", 256.0),
        ("1^" * 1000 + "1", 1.0),
        ("1 == 1 == 0", 0.0),
        ("0 OR 1 AND 0", 0.0),
        ("CEIL(m1 * 1e308 * 10)", {0.0: math.inf, 60.0: math.inf, 180.0: math.inf}),
        ("FLOOR(-1e308 * 10)", dict.fromkeys(INPUTS.times, -math.inf)),
    ],
)
def test_long_expressions_and_infinite_values_are_computed(text: str, value: Any) -> None:
    assert value_of(text) == value
