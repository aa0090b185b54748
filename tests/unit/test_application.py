"""`thawd.gateway.application`: which clients may send requests, and which part of the gateway answers.

Uses plain ASGI.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from thawd.errors import ResourceNotFoundException
from thawd.gateway.application import Application, GatewayParts
from thawd.gateway.http import respond
from thawd.gateway.routes.endpoint import RouteTable
from thawd.gateway.thawd_api.sources import SourcesApi
from thawd.resources import Cors, HttpApi, Route
from thawd.system.inline import run_inline


class Part:
    """Answers with its name. It has the bucket ``data``."""

    had_task: ClassVar[list[bool]] = []  # whether a task ran each request

    def __init__(self, name: str, routes: tuple[str, ...] = (), cors: Cors | None = None) -> None:
        self.name = name
        self.http = HttpApi(cors=cors)
        self.table = RouteTable([Route(key=key, function="f") for key in routes])

    def owns(self, path: str) -> bool:
        return path == "/data" or path.startswith("/data/")

    def claims(self, scope: Any) -> bool:
        return any(name == b"x-amz-content-sha256" for name, _ in scope["headers"])

    async def preflight(self, scope: Any, send: Any) -> None:
        await respond(send, 204, [(b"answered", b"preflight")])

    async def __call__(self, scope: Any, receive: Any, send: Any, **found: Any) -> None:
        self.had_task.append(asyncio.current_task() is not None)
        route = found.get("route")
        await respond(send, 200, [], f"{self.name} {route.key if route else ''}".strip().encode())


class Control:
    """Handles one path."""

    def claims(self, path: str) -> bool:
        return path == CONTROL

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 200, [], b"control")


async def status(*, memory: bool = False) -> Mapping[str, Any]:
    return {"ok": True, **({"memory": 7} if memory else {})}


async def metrics(content_type: str) -> bytes:
    return f"# metrics as {content_type.partition(';')[0]}".encode()


class Sources:
    """The event sources of a server that has one."""

    async def document(self) -> dict[str, Any]:
        return {"sources": ["jobs"]}

    async def pause(self, name: str) -> dict[str, Any]:
        return {"name": name, "paused": True}

    async def resume(self, name: str) -> dict[str, Any]:
        return {"name": name, "paused": False}


async def count_table(name: str) -> int:
    if name != "labels/x":
        raise ResourceNotFoundException(f"Table not found: {name}")
    return 7


def get(
    path: str,
    *,
    method: str = "GET",
    key: str | None = None,
    routes: tuple[str, ...] = (),
    cors: Cors | None = None,
    query: bytes = b"",
    phase: str = "ready",
    **headers: str,
) -> tuple[int, bytes, dict[bytes, bytes]]:
    parts = GatewayParts(
        invoke=Part("invoke"),  # type: ignore[arg-type]
        routes=Part("route", routes, cors),  # type: ignore[arg-type]
        objects=Part("objects"),  # type: ignore[arg-type]
        logs=Part("logs"),  # type: ignore[arg-type]
        status=status,
        count_table=count_table,
        metrics=metrics,
        readiness=lambda: phase,
        control=Control(),  # type: ignore[arg-type]
        key=key,
        sources=SourcesApi(Sources()),
    )
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()],
    }

    async def main() -> None:
        loop = asyncio.get_running_loop()
        work = Application(parts)(scope, receive, send)  # type: ignore[arg-type]
        loop.call_soon(run_inline, work, loop.create_task)
        failures: list[Any] = []
        loop.set_exception_handler(lambda _, context: failures.append(context))
        while len(sent) < 2 and not failures:  # noqa: ASYNC110 - a turn of the loop is what it waits for
            await asyncio.sleep(0)
        assert not failures, failures

    asyncio.run(main())
    return sent[0]["status"], sent[1]["body"], dict(sent[0]["headers"])


CONTROL = "/2015-03-31/functions/"
INVOKE = "/2015-03-31/functions/f/invocations"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (INVOKE, b"invoke"),
        (CONTROL, b"control"),
        ("/metrics", b"# metrics as text/plain"),
        ("/_thawd/status", b'{"ok":true}'),
        ("/classify", b"route GET /classify"),
        ("/data/key", b"objects"),
        ("/data/declared", b"route GET /data/declared"),
    ],
)
def test_each_path_is_answered_by_its_part(path: str, answer: bytes) -> None:
    assert get(path, routes=("GET /classify", "GET /data/declared"))[:2] == (200, answer)


@pytest.mark.parametrize(("path", "has_task"), [(INVOKE, False), ("/cats", False), ("/data/x", True)])
def test_invocations_begin_without_a_task_and_other_apis_get_one(path: str, has_task: bool) -> None:
    Part.had_task.clear()
    get(path, method="POST", routes=("POST /cats",))
    assert Part.had_task == [has_task]


def test_the_logs_api_is_found_by_its_target_at_the_root() -> None:
    target = "Logs_20140328.FilterLogEvents"
    assert get("/", method="POST", routes=("$default",), x_amz_target=target)[:2] == (200, b"logs")
    assert get("/x", method="POST", routes=("$default",), x_amz_target=target)[1] == b"route $default"
    assert get("/", method="POST", routes=("$default",), x_amz_target="Other.X")[1] == b"route $default"


def test_own_pages_and_invoke_go_before_routes_and_buckets_before_the_default_route() -> None:
    routes = ("ANY /{all+}", "$default")
    assert get(INVOKE, routes=routes)[1] == b"invoke"
    assert get("/metrics", routes=routes)[1] == b"# metrics as text/plain"
    assert get("/data/key", routes=routes)[1] == b"route ANY /{all+}"
    assert get("/data/key", routes=("$default",))[1] == b"objects"
    assert get("/other", routes=("$default",))[1] == b"route $default"


def test_a_table_is_counted_by_its_decoded_name_and_an_unknown_one_is_not_found() -> None:
    assert json.loads(get("/_thawd/tables/labels%2Fx")[1]) == {"name": "labels/x", "count": 7}
    assert get("/_thawd/tables/none")[0] == 404


def test_what_is_nowhere_is_a_404_that_says_so() -> None:
    code, body, headers = get("/nothing")
    assert (code, headers[b"x-amzn-errortype"]) == (404, b"ResourceNotFoundException")
    assert "/nothing" in json.loads(body)["Message"]
    assert get("/_thawd/nothing")[0] == 404


def test_a_method_without_a_route_is_told_which_there_are() -> None:
    code, _, headers = get("/c", method="DELETE", routes=("GET /c", "POST /c"))
    assert (code, headers[b"allow"]) == (405, b"GET, POST")


def test_metrics_have_the_format_for_which_the_client_asks() -> None:
    _, body, headers = get("/metrics", accept="application/openmetrics-text; version=1.0.0, text/plain; q=0.5")
    assert body == b"# metrics as application/openmetrics-text"
    assert headers[b"content-type"].startswith(b"application/openmetrics-text; version=1.0.0")
    assert headers[b"vary"] == b"accept"


def test_probes_need_no_key_and_tell_only_whether_the_server_is_ready() -> None:
    assert get("/_thawd/health", key="secret", phase="starting")[:2] == (200, b'{"status":"ok"}')
    assert get("/_thawd/ready", key="secret")[:2] == (200, b'{"status":"ready"}')
    assert get("/_thawd/ready", key="secret", phase="starting")[:2] == (503, b'{"status":"starting"}')
    assert get("/_thawd/ready", method="POST", key="secret")[0] == 405
    assert get("/_thawd/ready/", key="secret")[0] == 403


@pytest.mark.parametrize("path", [INVOKE, "/metrics", "/_thawd/status", "/classify", "/data/key", "/nothing"])
def test_with_a_key_nothing_is_answered_without_it(path: str) -> None:
    routes = ("GET /classify",)
    for headers in ({}, {"x_api_key": "wrong"}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
        code, _, answer = get(path, key="secret", routes=routes, **headers)
        if headers != {"authorization": "secret"}:
            assert (code, answer[b"x-amzn-errortype"]) == (403, b"AccessDeniedException")
    for headers in ({"x_api_key": "secret"}, {"authorization": "Bearer secret"}):
        assert get(path, key="secret", routes=routes, **headers)[0] != 403


@pytest.mark.parametrize("given", ["sécret", "\xff", ""])
def test_a_key_of_any_bytes_is_compared_and_refused(given: str) -> None:
    assert get("/metrics", key="secret", x_api_key=given)[0] == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost.evil.example", "http://127.0.0.1.evil.example:80", "null", ""]
)
def test_pages_from_elsewhere_cannot_reach_a_server_without_a_key(origin: str) -> None:
    assert get(INVOKE, method="POST", origin=origin)[0] == 403


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "http://localhost:3000",
        "http://127.0.0.1:8000",
        "https://127.0.0.1",
        "http://[::1]:80",
        "http://[::1]",
    ],
)
def test_pages_of_this_machine_can(origin: str) -> None:
    assert get(INVOKE, method="POST", origin=origin)[0] == 200


def test_other_protocols_than_http_are_passed_over() -> None:
    application = Application(None)  # type: ignore[arg-type]
    asyncio.run(application({"type": "lifespan"}, None, None))  # type: ignore[arg-type]


SHARED = Cors(allow_origins=("https://shop.example",))
ASKS = {"access_control_request_method": "POST"}


def test_a_preflight_request_for_a_route_is_answered_before_a_key_is_asked_for() -> None:
    for key in (None, "secret-key"):
        code, _, headers = get("/x", method="OPTIONS", key=key, cors=SHARED, origin="https://shop.example", **ASKS)
        assert (code, headers.get(b"answered")) == (204, b"preflight")


@pytest.mark.parametrize("path", [INVOKE, CONTROL, "/_thawd/status", "/metrics", "/data/key"])
def test_cors_opens_routes_and_nothing_else(path: str) -> None:
    assert get(path, cors=SHARED, routes=("$default",), origin="https://shop.example")[0] == 403
    assert get(path, method="OPTIONS", cors=SHARED, origin="https://shop.example", **ASKS)[0] == 403


def test_pages_of_allowed_origins_reach_routes_and_others_do_not() -> None:
    assert get("/x", cors=SHARED, routes=("$default",), origin="https://shop.example")[0] == 200
    assert get("/x", cors=SHARED, routes=("$default",), origin="https://evil.example")[0] == 403
    assert get("/x", cors=SHARED, routes=("$default",), origin="https://shop.example", key="secret-key")[0] == 403


def test_cors_opens_no_api_that_goes_by_a_header() -> None:
    headers = {"origin": "https://shop.example", "x_amz_target": "Logs_20140328.DescribeLogGroups"}
    assert get("/", method="POST", cors=SHARED, routes=("$default",), **headers)[0] == 403


@pytest.mark.parametrize("path", ["/metrics", "/_thawd/status", "/_thawd/tables/labels%2Fx", "/_thawd/sources"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_pages_of_thawds_own_are_read_and_nothing_else(path: str, method: str) -> None:
    code, _, headers = get(path, method=method)
    assert (code, headers[b"x-amzn-errortype"]) == (405, b"MethodNotAllowedException")
    assert headers[b"allow"] == b"GET, HEAD"
    assert get(path, method="HEAD")[0] == get(path)[0] == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_a_source_is_paused_and_resumed_by_post_only(method: str) -> None:
    for verb, paused in (("pause", True), ("resume", False)):
        code, _, headers = get(f"/_thawd/sources/a%2Fb/{verb}", method=method)
        assert (code, headers[b"allow"]) == (405, b"POST")
        code, body, _ = get(f"/_thawd/sources/a%2Fb/{verb}", method="POST")
        assert (code, json.loads(body)) == (200, {"name": "a/b", "paused": paused})


SIGNED = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/%s/aws4_request, SignedHeaders=host, Signature=0"
FORM = "application/x-www-form-urlencoded"


def test_requests_for_services_of_aws_are_refused_in_their_protocol_and_not_by_routes() -> None:
    asked = {"method": "POST", "authorization": SIGNED % "cloudformation", "content_type": FORM}
    for routes, key, code in (((), None, b"NotImplemented"), (("GET /",), None, b"NotImplemented"), ((), "k", b"Acc")):
        _, body, headers = get("/", routes=routes, key=key, **asked)
        assert body.startswith(b"<?xml")
        assert b"<Code>" + code in body
        assert headers[b"content-type"] == b"text/xml"
    assert get("/", method="POST", routes=("$default",), authorization=asked["authorization"])[1] == b"route $default"


def test_a_signed_request_to_an_api_or_to_lambda_is_no_request_to_another_service() -> None:
    for service in ("execute-api", "lambda"):
        status, body, _ = get("/nothing", authorization=SIGNED % service)
        assert (status, b"Nothing is served at /nothing" in body) == (404, True)


def test_the_status_has_the_memory_if_that_is_asked_for() -> None:
    assert get("/_thawd/status", query=b"memory=1")[1] == b'{"ok":true,"memory":7}'
