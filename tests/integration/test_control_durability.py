"""What the control plane has confirmed survives `kill -9`, and nothing is stored incompletely."""

from __future__ import annotations

import io
import random
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from .conftest import Project, Running, eventually

ROLE = "arn:aws:iam::000000000000:role/anybody"
RUNTIME = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def zipped(answer: str, *, init: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("app.py", f"{init}\ndef handler(event, context):\n    return {answer!r}\n")
    return buffer.getvalue()


def create(running: Running, name: str, answer: str = "first", **parameters: Any) -> None:
    running.client().create_function(
        FunctionName=name,
        Runtime=RUNTIME,
        Role=ROLE,
        Handler="app.handler",
        Code={"ZipFile": zipped(answer)},
        **parameters,
    )
    running.client().get_waiter("function_active_v2").wait(FunctionName=name, WaiterConfig={"Delay": 0.05})


@pytest.fixture
def bare(project: Project) -> Project:
    """A project without functions."""
    project.config("")
    return project


def kill(running: Running) -> None:
    running.process.kill()
    running.process.wait()


def test_everything_is_as_it_was_after_a_kill(bare: Project) -> None:
    bare.config('limits = "machine"\n')  # AWS refuses provisioned concurrency for a version with SnapStart
    with bare.up() as running:
        client = running.client()
        create(running, "f", Tags={"a": "b"}, SnapStart={"ApplyOn": "PublishedVersions"})
        client.publish_version(FunctionName="f", Description="one")
        client.get_waiter("published_version_active").wait(FunctionName="f", Qualifier="1", WaiterConfig={"Delay": 0.1})
        client.create_alias(FunctionName="f", Name="live", FunctionVersion="1")
        client.update_function_code(FunctionName="f", ZipFile=zipped("second"))
        client.get_waiter("function_updated_v2").wait(FunctionName="f", WaiterConfig={"Delay": 0.05})
        client.put_function_concurrency(FunctionName="f", ReservedConcurrentExecutions=3)
        client.put_function_event_invoke_config(FunctionName="f", MaximumRetryAttempts=0)
        client.add_permission(FunctionName="f", StatementId="s", Action="lambda:InvokeFunction", Principal="*")
        client.publish_layer_version(LayerName="l", Content={"ZipFile": zipped("layer")})
        client.add_layer_version_permission(
            LayerName="l", VersionNumber=1, StatementId="s", Action="lambda:GetLayerVersion", Principal="*"
        )
        url = client.create_function_url_config(FunctionName="f", AuthType="NONE")["FunctionUrl"]
        client.put_provisioned_concurrency_config(FunctionName="f", Qualifier="live", ProvisionedConcurrentExecutions=1)
        before = shown(client)
        kill(running)
    with bare.up() as running:
        client = running.client()
        assert shown(client) == before
        assert running.invoke("f", {}) == ("second", None)
        assert running.invoke("f", {}, Qualifier="live") == ("first", None)
        answered = client.get_function_url_config(FunctionName="f")["FunctionUrl"]
        assert answered.rsplit("/", 2)[1] == url.rsplit("/", 2)[1]
        eventually(
            lambda: client.get_provisioned_concurrency_config(FunctionName="f", Qualifier="live")["Status"] == "READY",
            what="the provisioned environment",
        )


def shown(client: Any) -> list[Any]:
    """Return everything that is stored about the function `f`."""
    documents = [
        client.get_function(FunctionName="f"),
        client.list_versions_by_function(FunctionName="f"),
        client.list_aliases(FunctionName="f"),
        client.get_function_concurrency(FunctionName="f"),
        client.get_function_event_invoke_config(FunctionName="f"),
        client.get_policy(FunctionName="f"),
        client.list_layers(),
        client.get_layer_version_policy(LayerName="l", VersionNumber=1),
    ]
    for document in documents:
        del document["ResponseMetadata"]
    documents[0]["Code"] = None
    for version in documents[1]["Versions"]:
        version["SnapStart"].pop("OptimizationStatus")  # known only after its first invocation
    documents[0]["Configuration"]["SnapStart"].pop("OptimizationStatus")
    return documents


def test_an_update_that_was_under_way_is_finished_after_the_next_start(bare: Project) -> None:
    with bare.up() as running:
        create(running, "f")
        slow = zipped("second", init="import time\ntime.sleep(5)\n")
        changed = running.client().update_function_code(FunctionName="f", ZipFile=slow)
        assert changed["LastUpdateStatus"] == "InProgress"
        kill(running)
    with bare.up() as running:
        waiter = running.client().get_waiter("function_updated_v2")
        waiter.wait(FunctionName="f", WaiterConfig={"Delay": 0.2})
        assert running.invoke("f", {}) == ("second", None)


def test_whatever_was_answered_survives_kills_at_any_moment(bare: Project) -> None:
    """Threads create, publish and delete while the server is killed. Then the threads' records and the server agree."""
    chance = random.Random(7)
    expected: dict[str, int | None] = {}  # versions published; None: deleted
    unsure: set[str] = set()  # functions whose request the server had not answered when it was killed
    lock = threading.Lock()
    changes: list[str] = []
    for turn in range(1, 5):
        with bare.up() as running, ThreadPoolExecutor(4) as threads:
            stopping = threading.Event()

            def work(index: int) -> None:
                client = running.client()
                own = random.Random(index)
                while not stopping.is_set():  # noqa: B023 - ends within this turn
                    name = f"f{index}-{own.randrange(3)}"
                    try:
                        change(client, name)
                        changes.append(name)
                    except (ClientError, BotoCoreError) as error:
                        if not isinstance(error, ClientError):
                            with lock:
                                unsure.add(name)
                            return

            def change(client: Any, name: str) -> None:
                state = expected.get(name)
                if state is None:
                    client.create_function(
                        FunctionName=name,
                        Runtime=RUNTIME,
                        Role=ROLE,
                        Handler="app.handler",
                        Code={"ZipFile": zipped(name)},
                    )
                    expected[name] = 0
                    client.get_waiter("function_active_v2").wait(FunctionName=name, WaiterConfig={"Delay": 0.05})
                elif state < 3:
                    client.update_function_configuration(FunctionName=name, Description=f"{state + 1}")
                    client.get_waiter("function_updated_v2").wait(FunctionName=name, WaiterConfig={"Delay": 0.05})
                    client.publish_version(FunctionName=name)
                    expected[name] = state + 1
                else:
                    client.delete_function(FunctionName=name)
                    expected[name] = None

            for index in range(4):
                threads.submit(work, index)
            eventually(lambda turn=turn: len(changes) >= 2 * turn, what="some changes")  # type: ignore[misc]
            time.sleep(chance.uniform(1.0, 3.0))
            kill(running)
            stopping.set()
    assert len(changes) >= 8
    with bare.up() as running:
        client = running.client()
        there = {one["FunctionName"] for one in client.list_functions()["Functions"]}
        for name, versions in expected.items():
            if name in unsure:
                continue
            assert (name in there) == (versions is not None), name
            if versions is not None:
                listed = client.list_versions_by_function(FunctionName=name)["Versions"]
                assert len(listed) == versions + 1, name
        for name in there:
            assert running.invoke(name, {}) == (name, None)
