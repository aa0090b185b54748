"""A server stops even though its remote tables, buckets and destinations have stopped answering."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests import prestarted
from tests.integration.conftest import Project, Running, eventually
from tests.integration.emulated import EmulatedAws

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
# A thawd with clients that wait practically for ever: if it stops while an endpoint is frozen, it did not wait for the
# endpoint. It also gives deliveries less time when it stops, because none of them can end.
PATIENT = """#!{python}
import sys
from thawd.cli import program as cli
from thawd.destinations import aws as destinations_aws
from thawd.destinations import delivery as destinations
from thawd.server import serving
from thawd.sources.sqs import client as sqs_client
from thawd.stores.objects import remote as bucket_store
from thawd.stores.tables import dynamodb as table_dynamodb
from thawd.stores.tables import postgresql as table_postgresql

bucket_store._CLIENT["timeout"] = "24h"
table_dynamodb._READ_TIMEOUT_S = table_postgresql._ANSWER_S = destinations_aws.READ_S = 86400.0
sqs_client._ANSWER_S = 86400
serving._SETTLE_S = 0.2
destinations.LIMIT_S = dict.fromkeys(destinations.LIMIT_S, 86400.0)
cli.main(sys.argv[sys.argv.index("up") :])
"""
CODE = """
import json, thawd

def handler(event, context):
    with open(event["ran"], "a") as file:
        file.write(context.aws_request_id + "\\n")
    return {"n": event["n"]}

def putting(event, context):
    thawd.table("labels").put("k", event)

def writing(event, context):
    thawd.bucket("photos").write("in/k", b"x")
"""


class Between:
    """A proxy for an endpoint. While frozen, it accepts everything, forwards nothing and answers nothing.

    Attributes:
        held: set once something has arrived while it was frozen.
    """

    def __init__(self, url: str) -> None:
        self._port = urlsplit(url).port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.held = threading.Event()
        self._frozen = False
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the proxy. What arrives meanwhile is never forwarded."""
        self.held.clear()
        self._frozen = True
        yield
        self._frozen = False

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self._port)) as server:
            swallowing = False
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    swallowing = swallowing or self._frozen
                    if not swallowing:
                        (server if ready is client else client).sendall(data)
                    elif ready is client:
                        self.held.set()


class Cloud:
    """The emulated AWS, behind a proxy that can be frozen."""

    def __init__(self, aws: EmulatedAws) -> None:
        self.aws = aws
        self.between = Between(aws.url)
        aws.make_table("labels")
        self.client("s3").create_bucket(Bucket="there")
        self.client("sqs").create_queue(QueueName="told")

    def client(self, service: str) -> Any:
        return self.aws.client(service)

    def stored(self) -> list[str]:
        """Return what the events have stored in any of the services: rows, objects and messages."""
        rows = [row["_json"]["S"] for row in self.client("dynamodb").scan(TableName="labels")["Items"]]
        s3 = self.client("s3")
        for entry in s3.list_objects_v2(Bucket="there").get("Contents", []):
            rows.append(s3.get_object(Bucket="there", Key=entry["Key"])["Body"].read().decode())
        found = self.client("sqs").receive_message(QueueUrl=f"{self.aws.url}/123456789012/told", VisibilityTimeout=0)
        return rows + [message["Body"] for message in found.get("Messages", [])]


@pytest.fixture
def cloud(aws: EmulatedAws) -> Iterator[Cloud]:
    aws.empty()
    made = Cloud(aws)
    yield made
    made.between.close()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[str]:
    """The program to start instead of Python."""
    path = tmp_path / "patient"
    path.write_text(PATIENT.format(python=sys.executable))
    path.chmod(0o755)
    prestarted.SCRIPTS.add(str(path))
    yield str(path)
    prestarted.SCRIPTS.remove(str(path))


def configure(
    project: Project, cloud: Cloud, *, success: str = "", grace_s: float = 30.0, handler: str = "handler"
) -> dict[str, str]:
    """Configure a project with stores behind the proxy of `cloud`. Return the environment variables for its server."""
    project.code(CODE)
    project.config(
        f"""
grace_s = {grace_s}
[functions.f]
handler = "app.{handler}"
{f'on_success = "{success}"' if success else ""}
[tables.labels]
url = "dynamodb://labels?region=us-east-1&endpoint={cloud.between.url}"
[buckets.photos]
url = "s3://there/in/?endpoint={cloud.between.url}"
"""
    )
    return {**KEYS, "AWS_ENDPOINT_URL": cloud.between.url}


def send(running: Running, function: str, **event: Any) -> None:
    running.client().invoke(FunctionName=function, InvocationType="Event", Payload=json.dumps(event).encode())


@pytest.mark.parametrize(
    "success", ["table:labels", "bucket:photos", "arn:aws:sqs:us-east-1:123456789012:told", "{between}/hook"]
)
def test_a_destination_that_is_frozen_does_not_hold_up_the_end_and_gets_its_outcome_after_the_next_start(
    project: Project, cloud: Cloud, patient: str, success: str
) -> None:
    ran = project.root / "ran"
    environ = configure(project, cloud, success=success.format(between=cloud.between.url))
    with cloud.between.frozen():
        with project.up(environ=environ, python=patient) as running:
            # Given an outcome on its way to an endpoint that does not answer
            send(running, "f", n=7, ran=str(ran))
            eventually(cloud.between.held.is_set, what="what is asked of the endpoint")
            # When thawd is told to stop, then it ends nevertheless
            assert running.stop() == 0
        assert not any("Traceback" in line for line in running.output), running.output
        assert running.output[-1] == "stopped", running.output
    if success.startswith("{"):
        return  # the webhook is not a real service, so there is nothing to check
    # Then the outcome is there after the next start, and the handler has not run for it again
    with project.up(environ=environ):
        stored = eventually(cloud.stored, what="the outcome")
        assert any('"n":7' in text.replace(" ", "") for text in stored), stored
        eventually(lambda: running_is_idle(project), what="the end of the event")
    assert len(ran.read_text().splitlines()) == 1


def running_is_idle(project: Project) -> bool:
    """Return whether the running server's queue has no waiting event or outcome."""
    done = project.command("queue", "--json")
    functions = json.loads(done.stdout)["functions"] if done.returncode == 0 else {"f": {"queued": 1}}
    return not any(entry.get("queued") or entry.get("delivering") for entry in functions.values())


@pytest.mark.parametrize("handler", ["putting", "writing"])
@pytest.mark.parametrize("twice", [False, True])
def test_a_handler_that_waits_for_a_frozen_store_is_given_the_grace_time_and_runs_again_after_the_next_start(
    project: Project, cloud: Cloud, patient: str, handler: str, *, twice: bool
) -> None:
    # Given a short grace time, or a long one that a second signal cuts short
    environ = configure(project, cloud, grace_s=3600.0 if twice else 0.2, handler=handler)
    with cloud.between.frozen():
        with project.up(environ=environ, python=patient) as running:
            send(running, "f", n=7)
            eventually(cloud.between.held.is_set, what="what is asked of the endpoint")
            if twice:
                running.process.send_signal(signal.SIGTERM)
                eventually(lambda: "stopping" in running.output, what="the beginning of the end")
            assert running.stop() == 0
        assert not any("Traceback" in line for line in running.output), running.output
    with project.up(environ=environ):
        eventually(cloud.stored, what="what the handler stores")


@pytest.mark.parametrize(
    "source",
    [
        '[buckets.listed]\nurl = "s3://there/?endpoint={between}"\nnotify = [{{ function = "f" }}]\n',
        '[[functions.f.sources]]\nsqs = "{between}/123456789012/told"\n',
    ],
    ids=["bucket", "queue"],
)
def test_a_source_that_is_frozen_while_it_is_read_does_not_hold_up_the_end(
    project: Project, cloud: Cloud, patient: str, source: str
) -> None:
    environ = configure(project, cloud)
    with open(project.root / "thawd.toml", "a") as config:
        config.write(source.format(between=cloud.between.url))
    with cloud.between.frozen():
        with project.up(environ=environ, python=patient) as running:
            eventually(cloud.between.held.is_set, what="what is asked of the endpoint")
            assert running.stop() == 0
        assert not any("Traceback" in line for line in running.output), running.output
