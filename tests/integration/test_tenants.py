"""Claims about functions that separate tenants, served: thawed, with their own memory and /tmp, by every way in."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.conftest import Project, Running, eventually
from thawd.snapshot.disk.temporary_folders import in_tmp
from thawd.snapshot.engine import unavailable

pytestmark = [
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
    pytest.mark.skipif(in_tmp([Path(__file__)]) is not None, reason="thawd itself lies in /tmp"),
]

CODE = """
import json, os
seen = []

def handler(event, context):
    if context is not None:
        seen.append(context.tenant_id)
        open("/tmp/" + (context.tenant_id or "nobody"), "w").close()
    if isinstance(event, dict) and event.get("row"):
        import thawd
        thawd.table("rows").put(event["row"], {"tenant": context.tenant_id})
    return {"seen": seen, "tmp": sorted(os.listdir("/tmp"))}
"""
CONFIG = """
[functions.f]
handler = "app.handler"
tenants = true
[functions.f.url]
auth_type = "NONE"
[functions.plain]
handler = "app.handler"
[tables.rows]
[routes]
"GET /f" = "f"
"GET /plain" = "plain"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server outside /tmp, because each environment of a function with tenants needs its own /tmp."""
    root = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="thawd-test-"))
    try:
        project = Project(root)
        project.code(CODE)
        project.config(CONFIG)
        with project.up() as running:
            yield running
    finally:
        shutil.rmtree(root, ignore_errors=True)


def get(url: str, tenant: str | None) -> tuple[int, Any]:
    """The status and the JSON answer of a GET request for a tenant."""
    request = urllib.request.Request(url, headers={} if tenant is None else {"X-Amz-Tenant-Id": tenant})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def refusal(client: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as error:
        client.invoke(**arguments)
    return f"{error.value.response['Error']['Code']}: {error.value.response['Error']['Message']}"


def test_each_tenant_has_its_own_thawed_environments_with_their_own_memory_and_tmp(server: Running) -> None:
    for tenant in ("a", "b"):
        for times in (1, 2):
            answer, error = server.invoke("f", {}, TenantId=tenant)
            assert error is None, answer
            assert answer == {"seen": [tenant] * times, "tmp": [tenant]}
    status = server.function("f")
    assert status["tenants"] == 2
    assert status["starts"].keys() == {"thaw"}


def test_requests_must_name_a_tenant_exactly_if_the_function_separates_tenants(server: Running) -> None:
    client = server.client()
    missing = "The invoked function is enabled with tenancy configuration. Add a valid tenant ID in your request and"
    assert refusal(client, FunctionName="f") == f"InvalidParameterValueException: {missing} try again."
    assert missing in refusal(client, FunctionName="f", InvocationType="Event")
    assert missing in refusal(client, FunctionName="f", InvocationType="DryRun")
    assert "Remove the tenant ID" in refusal(client, FunctionName="plain", TenantId="a")
    assert refusal(client, FunctionName="f", TenantId="a#b") == (
        "ValidationException: 1 validation error detected: Value 'a#b' at 'tenantId' failed to satisfy constraint: "
        r"Member must satisfy regular expression pattern: [a-zA-Z0-9\._:\/=+\-@ ]+"
    )
    assert "length less than or equal to 256" in refusal(client, FunctionName="f", TenantId="a" * 257)


def test_routes_and_function_urls_take_the_tenant_from_the_header(server: Running) -> None:
    url = server.client().get_function_url_config(FunctionName="f")["FunctionUrl"]
    assert get(f"{server.url}/f", "by route") == (200, {"seen": ["by route"], "tmp": ["by route"]})
    assert get(url, "by url") == (200, {"seen": ["by url"], "tmp": ["by url"]})
    assert get(f"{server.url}/f", None)[0] == 400
    assert get(url, None)[0] == 400
    assert get(f"{server.url}/plain", "ignored")[1]["seen"][-1] is None


def test_an_asynchronous_event_runs_for_its_tenant(server: Running) -> None:
    server.client().invoke(
        FunctionName="f", InvocationType="Event", TenantId="later", Payload=json.dumps({"row": "event"})
    )
    eventually(lambda: server.project.rows("rows").get("event") == {"tenant": "later"}, what="the event's row")


def test_the_lambda_api_creates_functions_that_separate_tenants_and_runs_programs_for_them(server: Running) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", CODE)
    client = server.client()
    made = client.create_function(
        FunctionName="made",
        Runtime="python3.11",
        Handler="app.handler",
        Role="arn:aws:iam::000000000000:role/r",
        Code={"ZipFile": packed.getvalue()},
        TenancyConfig={"TenantIsolationMode": "PER_TENANT"},
    )
    assert made["TenancyConfig"] == {"TenantIsolationMode": "PER_TENANT"}
    client.get_waiter("function_active_v2").wait(FunctionName="made")
    assert server.invoke("made", {}, TenantId="a")[0]["seen"] == ["a"]
    assert server.invoke("made", {}, TenantId="b")[0]["seen"] == ["b"]
    updated = client.update_function_configuration(FunctionName="made", Timeout=9)
    assert updated["TenancyConfig"] == {"TenantIsolationMode": "PER_TENANT"}
    with pytest.raises(ClientError, match="tenancy configuration, and the events of an event source name no tenant"):
        client.create_event_source_mapping(
            FunctionName="made", EventSourceArn="arn:aws:sqs:us-east-1:000000000000:q", BatchSize=1
        )


def test_tenants_are_refused_where_environments_would_share_tmp(project: Project) -> None:
    project.code(CODE)
    project.config("private_tmp = false\n" + CONFIG)
    with project.up() as server:
        assert "its environments would share the machine's /tmp" in server.function("f")["reason"]
        answer, error = server.invoke("f", {}, TenantId="a")
        assert error == "Unhandled"
        assert answer["errorType"] == "Runtime.TenantIsolation"
        assert server.invoke("plain", {})[1] is None
