"""Refusals as AWS sent them: error code, status and the whole message.

`recorded_refusals.jsonl` has one call a line. In its parameters, `$CODE` stands for a zip file and `$RUNTIME` for a
runtime of this machine.

Source: AWS Lambda API reference, "Errors" of each operation; the messages were observed on AWS in 2025-11.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import CODE, ROLE, RUNTIME, Lambda
from .wire import Answer, Wire

FILE = Path(__file__).with_name("recorded_refusals.jsonl")
NEW = {"FunctionName": "new", "Runtime": RUNTIME, "Role": ROLE, "Handler": "app.handler", "Code": {"ZipFile": CODE}}
VALUE, LARGE = ("InvalidParameterValueException", 400), ("RequestEntityTooLargeException", 413)
ENVIRONMENT = (
    "Lambda was unable to configure your environment variables because the environment variables you have provided"
)
# AWS's documents of these errors have no `Type`, and those of others not for a few messages.
UNTYPED = {"ValidationException", "RequestEntityTooLargeException"}


def resolved(value: Any) -> Any:
    """Return a value of the file with what its placeholders stand for."""
    if isinstance(value, dict):
        found = {name: resolved(item) for name, item in value.items()}
        return found["$bytes"].encode() if found.keys() == {"$bytes"} else found
    if isinstance(value, list):
        return [resolved(item) for item in value]
    return {"$CODE": CODE, "$RUNTIME": RUNTIME}.get(value, value) if isinstance(value, str) else value


CASES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def wire(aws: Lambda) -> Iterator[Wire]:
    """A connection to the server."""
    connection = Wire(aws.running.url)
    yield connection
    connection.close()


def check(answer: Answer, code: str, status: int, message: str) -> None:
    """Check an error's code, status and document."""
    assert (answer.code, answer.status, answer.message) == (code, status, message)
    assert answer.headers["x-amzn-requestid"]
    is_missing = code in ("ResourceNotFoundException", "CodeSigningConfigNotFoundException")
    assert ("Message" if is_missing else "message") in answer.document, "AWS writes Message only of what is not found"
    assert answer.document.get("Type", "User") == "User"
    assert "Type" not in answer.document or code not in UNTYPED


@pytest.mark.parametrize("case", CASES, ids=[f"{case['operation']}-{case['message'][:40]}" for case in CASES])
def test_a_refusal_has_the_words_of_aws(wire: Wire, shared: str, case: dict[str, Any]) -> None:
    answer = wire.call(case["operation"], resolved(case["parameters"]))
    check(answer, case["code"], case["status"], case["message"])


# Sizes, which the file does not contain. Source: Lambda quotas


@pytest.mark.parametrize(
    ("changed", "refusal", "message"),
    [
        ({"Code": {"ZipFile": b"x" * 52_428_801}}, LARGE, "Zipped size must be smaller than 52428800 bytes"),
        (
            {"Code": {"ZipFile": b"x" * 52_700_000}},
            LARGE,
            "Request must be smaller than 70167211 bytes for the CreateFunction operation",
        ),
        (
            {"Environment": {"Variables": {"SMALL_1": "ok", "LARGE_2": "x" * 4096}}},
            VALUE,
            f'{ENVIRONMENT} exceeded the 4KB limit. String measured: {{"SMALL_1":"ok","LARGE_2":"{"x" * 4096}"}}',
        ),
    ],
    ids=["a-zip-file-of-50-mb", "a-request-of-70-mb", "variables-of-4-kb"],
)
def test_what_is_too_large_is_refused(
    wire: Wire, changed: dict[str, Any], refusal: tuple[str, int], message: str
) -> None:
    check(wire.call("CreateFunction", {**NEW, **changed}), *refusal, message)


def test_variables_of_4_kb_as_json_are_accepted(aws: Lambda) -> None:
    variables = {"LARGE": "x" * (4096 - len('{"LARGE":""}'))}
    name = aws.create(Environment={"Variables": variables})
    assert aws.client.get_function_configuration(FunctionName=name)["Environment"]["Variables"] == variables
