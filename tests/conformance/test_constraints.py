"""Every constraint of every input in AWS's service model: what breaks it is refused in AWS's words, what just meets it
is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from . import constraints
from .conftest import Lambda
from .constraints import OPERATIONS, Situation
from .wire import Wire, operation

Derive = Callable[[str], Iterator[Situation]]


def each(derive: Derive) -> Any:
    """Return the parameters of a test: all situations of one kind."""
    return pytest.mark.parametrize("situation", [one for name in OPERATIONS for one in derive(name)], ids=str)


@pytest.fixture(scope="module")
def wire(aws: Lambda) -> Iterator[Wire]:
    """A connection to the server."""
    connection = Wire(aws.running.url)
    yield connection
    connection.close()


# Source: the service model, and CommonErrors of the AWS Lambda API reference: ValidationError


@each(constraints.broken)
def test_a_value_that_breaks_a_constraint_is_refused_in_lambdas_words(wire: Wire, situation: Situation) -> None:
    answer = wire.call(situation.operation, situation.parameters)
    assert (answer.status, answer.code, answer.message) == (400, "ValidationException", situation.said)
    assert set(answer.document) == {"message"}, "AWS's validation errors have no Type"
    assert answer.headers["x-amzn-requestid"]


@each(constraints.missing)
def test_a_member_that_is_required_is_missed(wire: Wire, situation: Situation) -> None:
    answer = wire.call(situation.operation, situation.parameters)
    assert (answer.status, answer.code, answer.message) == (400, "ValidationException", situation.said)


@each(constraints.boundaries)
def test_a_value_at_a_limit_is_within_it(wire: Wire, situation: Situation) -> None:
    answer = wire.call(situation.operation, situation.parameters)
    assert answer.status < 500
    assert answer.code != "ValidationException", answer.message
    documented = {shape.name for shape in operation(situation.operation).error_shapes}
    assert answer.code in documented | {""}


@each(constraints.wrong_types)
def test_a_value_of_another_type_is_refused(wire: Wire, situation: Situation) -> None:
    answer = wire.call(situation.operation, situation.parameters)
    assert (answer.status, answer.code) == (400, "SerializationException")
