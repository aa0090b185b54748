"""The control plane with odd input, races, broken packages, reloads: one function's trouble does not affect others."""

from __future__ import annotations

import signal
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import Project, Running, eventually
from .test_control_durability import ROLE, RUNTIME, create, zipped


def post(running: Running, path: str, body: bytes) -> tuple[int, str]:
    """Send a raw request and return status and error type."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(running.url + path, body, method="POST"), timeout=30
        ) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get("x-amzn-errortype", "")


@pytest.fixture
def bare(project: Project) -> Project:
    """A project without functions."""
    project.config("")
    return project


def state(running: Running, name: str, **qualifier: str) -> dict[str, Any]:
    return dict(running.client().get_function_configuration(FunctionName=name, **qualifier))


def test_numbers_that_are_none_and_texts_without_utf_8_are_refused_and_nothing_of_them_is_kept(bare: Project) -> None:
    with bare.up() as running:
        create(running, "f")
        running.client().publish_version(FunctionName="f")
        for weight in ("NaN", "Infinity", "1e400"):
            routing = f'{{"AdditionalVersionWeights":{{"2":{weight}}}}}'
            body = f'{{"Name":"w","FunctionVersion":"1","RoutingConfig":{routing}}}'.encode()
            status, kind = post(running, "/2015-03-31/functions/f/aliases", body)
            assert (status, kind in ("SerializationException", "InvalidRequestContentException")) == (400, True)
        body = b'{"FunctionName":"s","Role":"x\\ud800","Code":{},"Environment":{"Variables":{"SECRET":"hush\\ud800"}}}'
        assert post(running, "/2015-03-31/functions", body) == (400, "SerializationException")
        assert not any("hush" in line for line in running.output)
    with bare.up() as running:
        assert running.invoke("f", {}) == ("first", None)


def test_a_function_that_cannot_be_started_at_all_takes_nobody_along(bare: Project) -> None:
    with bare.up() as running:
        create(running, "sound", "sound")
        with pytest.raises(ClientError, match="control characters"):
            running.client().create_function(
                FunctionName="odd", Runtime=RUNTIME, Role=ROLE, Handler="m\0x.h", Code={"ZipFile": zipped("x")}
            )
        create(running, "broken")
        running.client().publish_version(FunctionName="broken")
        name = Path(running.client().get_function(FunctionName="broken")["Code"]["Location"].split("?")[0]).stem
    for path in (bare.data / "packages" / name).iterdir():
        path.unlink()
    (bare.data / "packages" / name).rmdir()
    (bare.data / "code" / f"{name}.zip").write_bytes(b"damaged")
    with bare.up() as running:
        with pytest.raises(ClientError) as error:
            running.invoke("broken", {}, Qualifier="1")
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 502
        assert running.status()["functions"].keys() == {"sound", "broken"}
        (bare.data / "code" / f"{name}.zip").write_bytes(zipped("first"))
        assert running.invoke("broken", {}, Qualifier="1") == ("first", None), "it is tried again"


def test_code_that_was_replaced_while_it_was_published_does_not_come_back(bare: Project) -> None:
    with bare.up() as running, ThreadPoolExecutor(1) as threads:
        client = running.client()
        client.create_function(
            FunctionName="f",
            Runtime=RUNTIME,
            Role=ROLE,
            Handler="app.handler",
            Timeout=60,
            SnapStart={"ApplyOn": "PublishedVersions"},
            Code={"ZipFile": zipped("old", init="import time\ntime.sleep(1)\n")},
        )
        waiting = threads.submit(running.invoke, "f", {})
        client.get_waiter("function_active_v2").wait(FunctionName="f", WaiterConfig={"Delay": 0.1})
        log = bare.data / "logs" / "f.log"
        eventually(lambda: log.exists() and "INIT_START" in log.read_text(), what="the init of the old code")
        client.update_function_code(FunctionName="f", ZipFile=zipped("new"))
        client.get_waiter("function_updated_v2").wait(FunctionName="f", WaiterConfig={"Delay": 0.1})
        assert waiting.result()[1] is None
        until_s = time.monotonic() + 2  # longer than the first init takes
        while time.monotonic() < until_s:
            assert running.invoke("f", {}) == ("new", None)
        assert log.read_text().count("INIT_START") == 2, "each code was initialised once"


def test_a_function_that_the_file_covers_for_a_while_is_there_again_afterwards(bare: Project) -> None:
    bare.code("def handler(event, context):\n    return 'of the file'\n", name="own.py")
    declared = '[functions.f]\nhandler = "own.handler"\n'
    with bare.up() as running:
        create(running, "f", Tags={"kept": "yes"})
        bare.config(declared)
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: running.invoke("f", {}) == ("of the file", None), what="the function of the file")
        with pytest.raises(ClientError, match="ResourceConflict"):
            running.client().tag_resource(Resource=state(running, "f")["FunctionArn"], Tags={"a": "b"})
        bare.config("")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: running.invoke("f", {}) == ("first", None), what="the function of the API")
    with bare.up() as running:
        assert running.invoke("f", {}) == ("first", None)
        assert running.client().get_function(FunctionName="f")["Tags"] == {"kept": "yes"}
        running.client().delete_function(FunctionName="f")


def test_a_function_that_left_the_file_leaves_its_versions_and_its_name(bare: Project) -> None:
    bare.code("def handler(event, context):\n    return 'of the file'\n", name="own.py")
    bare.config('[functions.f]\nhandler = "own.handler"\n')
    with bare.up() as running:
        client = running.client()
        assert client.publish_version(FunctionName="f")["Version"] == "1"
        bare.config("")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: not client.list_functions()["Functions"], what="its end")
        assert client.get_account_settings()["AccountUsage"]["FunctionCount"] == 0
        create(running, "f")
        assert client.publish_version(FunctionName="f")["Version"] == "2"
        assert running.invoke("f", {}) == ("first", None)


def test_uploads_of_one_file_at_once_and_during_reloads_all_succeed(bare: Project) -> None:
    with bare.up() as running, ThreadPoolExecutor(6) as threads:

        def one(index: int) -> str:
            if index % 4 == 0:
                running.process.send_signal(signal.SIGHUP)
            running.client().create_function(
                FunctionName=f"f{index}",
                Runtime=RUNTIME,
                Role=ROLE,
                Handler="app.handler",
                Code={"ZipFile": zipped("same" if index % 2 else f"own {index}")},
            )
            return str(running.invoke(f"f{index}", {})[0])

        assert list(threads.map(one, range(16))) == ["same" if index % 2 else f"own {index}" for index in range(16)]
        for index in range(16):
            location = running.client().get_function(FunctionName=f"f{index}")["Code"]["Location"]
            urllib.request.urlopen(location, timeout=30).close()


def test_the_url_of_a_deleted_alias_is_gone_also_when_the_alias_is_made_again(bare: Project) -> None:
    with bare.up() as running:
        client = running.client()
        create(running, "f")
        client.publish_version(FunctionName="f")
        client.create_alias(FunctionName="f", Name="live", FunctionVersion="1")
        made = client.create_function_url_config(FunctionName="f", Qualifier="live", AuthType="NONE")
        with urllib.request.urlopen(made["FunctionUrl"], timeout=30) as answer:
            assert answer.status == 200
        client.delete_alias(FunctionName="f", Name="live")
        client.create_alias(FunctionName="f", Name="live", FunctionVersion="1")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(made["FunctionUrl"], timeout=30)
        refused.value.close()
        assert refused.value.code == 403


def test_two_qualifiers_do_not_provision_one_version(bare: Project) -> None:
    with bare.up() as running:
        client = running.client()
        create(running, "f")
        client.publish_version(FunctionName="f")
        for alias in ("p", "q"):
            client.create_alias(FunctionName="f", Name=alias, FunctionVersion="1")
        client.create_alias(FunctionName="f", Name="latest", FunctionVersion="$LATEST")
        asked = {"FunctionName": "f", "ProvisionedConcurrentExecutions": 1}
        client.put_provisioned_concurrency_config(**asked, Qualifier="p")
        with pytest.raises(ClientError, match="ResourceConflict"):
            client.put_provisioned_concurrency_config(**asked, Qualifier="q")
        with pytest.raises(ClientError, match="InvalidParameterValue"):
            client.put_provisioned_concurrency_config(**asked, Qualifier="latest")


def test_an_interpreter_that_is_asked_for_its_version_is_no_stray_when_an_environment_ends(project: Project) -> None:
    asked, go, slow = (project.root / name for name in ("asked", "go", "slow-python"))
    slow.write_text(f'#!/bin/sh\ntouch {asked}\nwhile [ ! -e {go} ]; do sleep 0.02; done\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    project.code("import os\ndef handler(event, context):\n    os._exit(1)\n")
    project.config(f'[functions.dies]\nhandler = "app.handler"\n[runtimes]\n"{RUNTIME}" = "{slow}"\n')
    with project.up() as running, ThreadPoolExecutor(1) as threads:
        go.touch()
        eventually(lambda: running.function("dies")["state"] == "Active", what="the function that dies")
        for mark in (asked, go):
            mark.unlink(missing_ok=True)
        creating = threads.submit(create, running, "f")
        eventually(asked.exists, what="the question for the version")
        _, error = running.invoke("dies")
        assert error == "Unhandled"
        go.touch()
        creating.result()
        assert running.invoke("f")[1] is None
