"""One thawd for all cases, and clients that validate no parameters, so that the server has to."""

from __future__ import annotations

import io
import itertools
import json
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from tests.clients import client_of
from tests.integration.conftest import Project, Running, eventually

ROLE = "arn:aws:iam::000000000000:role/anybody"
RUNTIME = f"python{sys.version_info[0]}.{sys.version_info[1]}"
HANDLER = """
import os, time

def handler(event, context):
    if event.get("fail"):
        raise ValueError("as asked")
    return {
        "event": event,
        "version": os.environ["AWS_LAMBDA_FUNCTION_VERSION"],
        "arn": context.invoked_function_arn,
        "variable": os.environ.get("COLOUR"),
        "initialization": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"],
    }
"""
_numbers = itertools.count(1)


def zipped(**files: str | bytes) -> bytes:
    """Return a zip file. In the keyword names, ``__`` stands for a dot and ``___`` for a slash."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            # All entries have the same date, so that the same files give the same bytes in each worker.
            entry = zipfile.ZipInfo(name.replace("___", "/").replace("__", "."))
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


CODE = zipped(app__py=HANDLER)
OTHER_CODE = zipped(app__py=HANDLER + "\n# another\n")


def _has_request_id(http_response: Any, **_: Any) -> None:
    """Check that an answer, whatever it is, has a request id, as each of AWS's answers has."""
    assert http_response.headers.get("x-amzn-requestid"), http_response.headers


class Lambda:
    """What the cases share: the server and a client."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.client = self.make_client("lambda")
        self.client.meta.events.register("after-call.lambda", _has_request_id)

    def make_client(self, service: str, **config: Any) -> Any:
        """Return a client that validates no parameters and retries nothing."""
        return client_of(self.running.url, service, parameter_validation=False, **config)

    def name(self) -> str:
        """Return a name that no function has."""
        return f"f{next(_numbers)}"

    def create(self, name: str | None = None, **parameters: Any) -> str:
        """Create a function, wait until it is active, and return its name."""
        name = name or self.name()
        given = {"Runtime": RUNTIME, "Role": ROLE, "Handler": "app.handler", "Code": {"ZipFile": CODE}, **parameters}
        self.client.create_function(FunctionName=name, **given)
        self.client.get_waiter("function_active_v2").wait(FunctionName=name, WaiterConfig={"Delay": 0.05})
        return name

    def update(self, name: str, **parameters: Any) -> dict[str, Any]:
        """Update the function's configuration and wait until the update is complete."""
        self.client.update_function_configuration(FunctionName=name, **parameters)
        return self.updated(name)

    def updated(self, name: str) -> dict[str, Any]:
        """Wait until an update is complete and return the configuration."""
        self.client.get_waiter("function_updated_v2").wait(FunctionName=name, WaiterConfig={"Delay": 0.05})
        return dict(self.client.get_function_configuration(FunctionName=name))

    def publish(self, name: str, **parameters: Any) -> str:
        """Publish a version and return its number."""
        number: str = self.client.publish_version(FunctionName=name, **parameters)["Version"]
        waiter = self.client.get_waiter("published_version_active")
        waiter.wait(FunctionName=name, Qualifier=number, WaiterConfig={"Delay": 0.05})
        return number

    def mapped(self, uuid: str) -> str:
        """Wait until the last change of an event source mapping is in effect; return the mapping's state."""

        def settled() -> Any:
            state = self.client.get_event_source_mapping(UUID=uuid)["State"]
            return state if state in ("Enabled", "Disabled") else None

        return str(eventually(settled, what="the mapping"))

    def invoke(self, name: str, event: Any = None, **parameters: Any) -> Any:
        """Invoke the function, which must succeed, and return its answer."""
        answer = self.client.invoke(FunctionName=name, Payload=json.dumps(event or {}), **parameters)
        document = json.loads(answer["Payload"].read())
        assert "FunctionError" not in answer, document
        return document


NOWHERE = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
"""Variables of a server that looks up queues at an address where nothing listens, and not at AWS."""


def configured(folder: Path) -> Project:
    """Return a project with a function in thawd.toml, a bucket and a table."""
    project = Project(folder)
    project.code("def handler(event, context):\n    return 'configured'\n", name="own.py")
    project.config(
        "max_environments = 12\n"
        '[functions.configured]\nhandler = "own.handler"\n'
        '[buckets.code]\npath = "bucket"\n[tables.results]\n'
    )
    return project


@pytest.fixture(scope="session")
def aws() -> Iterator[Lambda]:
    """A server with a function in thawd.toml, a bucket and a table."""
    with tempfile.TemporaryDirectory() as folder, configured(Path(folder)).up(environ=NOWHERE) as running:
        yield Lambda(running)


@pytest.fixture(scope="session")
def shared(aws: Lambda) -> str:
    """A function with version 1, an alias `live` for it, tags and a policy. Cases must not change it."""
    name = aws.create("shared", Tags={"team": "vision"}, Environment={"Variables": {"COLOUR": "red"}})
    aws.publish(name, Description="first")
    aws.client.create_alias(FunctionName=name, Name="live", FunctionVersion="1")
    aws.client.add_permission(
        FunctionName=name, StatementId="s3", Action="lambda:InvokeFunction", Principal="s3.amazonaws.com"
    )
    return name


Make = Callable[[], str]
