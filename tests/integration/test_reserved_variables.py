"""One rule says which names a function's own variables may have: for thawd.toml, a reload of it, and the Lambda API."""

from __future__ import annotations

import re
import signal

import pytest
from botocore.exceptions import ClientError

from tests.conformance.conftest import zipped

from .conftest import Project, Running, eventually
from .test_control_durability import ROLE, RUNTIME

RESERVED = {
    "AWS_ACCESS_KEY_ID",
    "AWS_EXECUTION_ENV",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_RUNTIME_API",
    "AWS_REGION",
    "LAMBDA_TASK_ROOT",
    "THAWD_BUCKETS",
    "THAWD_KEY",
}
ALLOWED = {
    "AWS_LAMBDA_EXEC_WRAPPER",
    "AWS_LAMBDA_OF_OUR_OWN",
    "AWS_ENDPOINT_URL_S3",
    "LAMBDA_OF_OUR_OWN",
    "TZ",
    "COLOUR",
}
CODE = """
import os

def handler(event, context):
    return {name: os.environ.get(name) for name in event}
"""


def values_of(names: set[str]) -> dict[str, str]:
    """Return a value for each name. The wrapper is executed, so its value is env(1), which executes its arguments."""
    return {name: "/usr/bin/env" if name == "AWS_LAMBDA_EXEC_WRAPPER" else "own" for name in names}


def declare(project: Project, names: set[str]) -> None:
    variables = ", ".join(f"{name} = '{value}'" for name, value in sorted(values_of(names).items()))
    project.config(f'[functions.f]\nhandler = "app.handler"\nenvironment = {{ {variables} }}\n')


def create(running: Running, name: str, names: set[str]) -> None:
    """Make a function with these variables through the Lambda API."""
    running.client().create_function(
        FunctionName=name,
        Runtime=RUNTIME,
        Role=ROLE,
        Handler="app.handler",
        Code={"ZipFile": zipped(app__py=CODE)},
        Environment={"Variables": values_of(names)},
    )
    running.client().get_waiter("function_active_v2").wait(FunctionName=name, WaiterConfig={"Delay": 0.05})


def named(text: str) -> set[str]:
    """Return those of the test's variables that a message names."""
    return {name for name in RESERVED | ALLOWED if re.search(rf"functions\.f\.environment\.{name}\b", text)}


def test_the_file_a_reload_and_the_lambda_api_refuse_the_same_names(project: Project) -> None:
    project.code(CODE)
    declare(project, set())
    with project.up() as running:
        declare(project, RESERVED | ALLOWED)

        refused = project.command("check")
        assert (refused.returncode, named(refused.stdout + refused.stderr)) == (1, RESERVED)

        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: named("\n".join(running.output)) == RESERVED, what="the whole word of the reload")

        with pytest.raises(ClientError) as caught:
            create(running, "g", RESERVED | ALLOWED)
        assert caught.value.response["Error"]["Code"] == "InvalidParameterValueException"
        said = caught.value.response["Error"]["Message"].rpartition("Reserved keys used in this request: ")[2]
        assert set(said.split(", ")) == RESERVED


def test_the_file_a_reload_and_the_lambda_api_take_the_same_names(project: Project) -> None:
    project.code(CODE)
    declare(project, ALLOWED)
    expected = (values_of(ALLOWED), None)
    with project.up() as running:
        assert running.invoke("f", sorted(ALLOWED)) == expected
        create(running, "g", ALLOWED)
        assert running.invoke("g", sorted(ALLOWED)) == expected
        declare(project, ALLOWED | {"AWS_LAMBDA_LATER"})
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        assert running.invoke("f", ["AWS_LAMBDA_LATER"]) == ({"AWS_LAMBDA_LATER": "own"}, None)
