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
    """Return the parameters of a test: all operations that have a situation of one kind.

    A test takes all situations of an operation, because a test for each would take longer than its request.
    """
    return pytest.mark.parametrize("name", [name for name in OPERATIONS if any(True for _ in derive(name))])


@pytest.fixture(scope="module")
def wire(aws: Lambda) -> Iterator[Wire]:
    """A connection to the server."""
    connection = Wire(aws.running.url)
    yield connection
    connection.close()


# Source: the service model, and CommonErrors of the AWS Lambda API reference: ValidationError


@each(constraints.broken)
def test_a_value_that_breaks_a_constraint_is_refused_in_lambdas_words(wire: Wire, name: str) -> None:
    for situation in constraints.broken(name):
        answer = wire.call(name, situation.parameters)
        assert (answer.status, answer.code, answer.message) == (400, "ValidationException", situation.said), situation
        assert set(answer.document) == {"message"}, f"AWS's validation errors have no Type: {situation}"
        assert answer.headers["x-amzn-requestid"], situation


@each(constraints.missing)
def test_a_member_that_is_required_is_missed(wire: Wire, name: str) -> None:
    for situation in constraints.missing(name):
        answer = wire.call(name, situation.parameters)
        assert (answer.status, answer.code, answer.message) == (400, "ValidationException", situation.said), situation


@each(constraints.boundaries)
def test_a_value_at_a_limit_is_within_it(wire: Wire, name: str) -> None:
    documented = {shape.name for shape in operation(name).error_shapes}
    for situation in constraints.boundaries(name):
        answer = wire.call(name, situation.parameters)
        assert answer.status < 500, situation
        assert answer.code != "ValidationException", f"{answer.message}: {situation}"
        assert answer.code in documented | {""}, situation


@each(constraints.wrong_types)
def test_a_value_of_another_type_is_refused(wire: Wire, name: str) -> None:
    for situation in constraints.wrong_types(name):
        answer = wire.call(name, situation.parameters)
        assert (answer.status, answer.code) == (400, "SerializationException"), situation
