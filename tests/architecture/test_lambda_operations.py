"""The facts about the Lambda API that thawd ships match the service model that AWS publishes."""

from __future__ import annotations

import json
import re
from typing import Any

import botocore
import pytest
from tools import lambda_operations

from thawd.gateway.lambda_api import input_constraints, inputs


def test_the_file_is_what_the_tool_makes() -> None:
    text = lambda_operations.TARGET.read_text()
    made_with = json.loads(text)["botocore"]
    if made_with != botocore.__version__:
        pytest.skip(f"made with botocore {made_with}, and {botocore.__version__} is installed")
    assert text == lambda_operations.document()


@pytest.mark.parametrize("service", lambda_operations.OTHER_TARGETS)
def test_the_file_of_another_service_is_what_the_tool_makes(service: str) -> None:
    text = lambda_operations.OTHER_TARGETS[service].read_text()
    made_with = json.loads(text)["botocore"]
    if made_with != botocore.__version__:
        pytest.skip(f"made with botocore {made_with}, and {botocore.__version__} is installed")
    assert text == lambda_operations.other_document(service)


def test_every_operation_is_found_by_its_path() -> None:
    for operation in inputs.operations():
        path = re.sub(r"\(\?P<\w+>\[\^/\]\+\)", "x", operation.path.pattern)
        query = "&".join(f"{name}={value[0]}" for name, value in operation.fixed.items())
        assert inputs.find(operation.method, path, query)[0] is operation


def test_every_pattern_compiles() -> None:
    def check(shape: Any) -> int:
        found = 0
        if "pattern" in shape:
            input_constraints._compiled(shape["pattern"])
            found = 1
        below = [
            *shape.get("members", {}).values(),
            *(shape[key] for key in ("member", "key", "value") if key in shape),
        ]
        return found + sum(map(check, below))

    assert sum(check(shape) for operation in inputs.operations() for shape in operation.members.values()) > 100
