"""Applications, generators and typed functions are called in every supported interpreter."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.unit.interpreters_here import INTERPRETERS

SOURCE = Path(__file__).parents[2] / "src"

PROGRAM = """
import asyncio, contextvars, dataclasses, json, sys, typing
sys.path.insert(0, sys.argv[1])
import thawd
from thawd.runtime import handler_kinds

def request(body, **more):
    headers = {"content-type": "application/json"}
    http = {"method": "POST"}
    return {"rawPath": "/", "headers": headers, "requestContext": {"http": http}, "body": body, **more}

@dataclasses.dataclass
class Point:
    x: float
    tags: typing.Optional[typing.List[str]] = None

@thawd.function
def typed(point: Point, times: int = 2) -> typing.Dict[str, float]:
    return {"x": point.x * times}

messages = []

async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        messages.append((await receive())["type"])
        await send({"type": "lifespan.startup.complete"})
        messages.append((await receive())["type"])
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 201, "headers": [(b"x-a", b"1"), (b"x-a", b"2")]})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"\\xff"})

async def silent(scope, receive, send):
    pass

def wsgi(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["wsgi.input"].read()]

async def generator(event, context):
    yield "a"
    yield "b"

async def broken(scope, receive, send):
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"a part", "more_body": True})
    raise ValueError("in the middle")

current = contextvars.ContextVar("current")

@thawd.function
async def counting(times: int):
    token = current.set(times)
    try:
        for number in range(times):
            yield number
    finally:
        current.reset(token)  # fails in another task than that of `set`

@thawd.function
def indirect() -> int:
    return asyncio.sleep(0, 3)  # an awaitable, although the function is not `async def`

closed = []

async def failing(event, context):
    try:
        yield "a"
        yield 1
    finally:
        closed.append(event)

def fails(handler, event):
    try:
        handler(event, None)
    except TypeError:
        return list(closed)

def page_at(path):
    more = {"rawPath": path, "headers": {"accept": "text/html"}, "requestContext": {"http": {"method": "GET"}}}
    return handler_kinds.adapted(typed)(request("", **more), None)["body"]

application = handler_kinds.adapted(asgi)
answers = {
    "typed": handler_kinds.adapted(typed)(request('{"x": 3, "tags": ["a"]}', rawQueryString="times=3"), None),
    "wrong": handler_kinds.adapted(typed)(request('{"x": "3"}'), None)["statusCode"],
    "asgi": application(request("hi"), None),
    "silent": handler_kinds.adapted(silent)(request("hi"), None)["statusCode"],
    "wsgi": handler_kinds.adapted(wsgi)(request("hi"), None)["body"],
    "generator": handler_kinds.adapted(generator)({}, None),
    "broken": handler_kinds.adapted(broken)(request(""), None)["body"],
    "counting": handler_kinds.adapted(counting)({"times": 2}, None),
    "counted": handler_kinds.adapted(counting)(request('{"times": 2}'), None)["body"],
    "indirect": handler_kinds.adapted(indirect)({}, None),
    "closed": fails(handler_kinds.adapted(failing), 1),
    "page": page_at("/a/javascript:b"),
}
application.closing()
print(json.dumps({**answers, "messages": messages}))
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_handlers_of_all_kinds_answer(python: str) -> None:
    done = subprocess.run([python, "-c", PROGRAM, str(SOURCE)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert json.loads(answers["typed"]["body"]) == {"x": 9.0}
    assert (answers["wrong"], answers["silent"], answers["wsgi"], answers["generator"]) == (422, 500, "hi", "ab")
    assert (answers["counting"], answers["counted"], answers["indirect"]) == ([0, 1], "0\n1\n", 3)
    assert answers["broken"] == "Internal Server Error"  # and nothing of the answer that the application had begun
    assert answers["closed"] == [1]
    assert '<a href="./javascript%3Ab/openapi.json">' in answers["page"]
    asgi = answers["asgi"]
    assert (asgi["statusCode"], asgi["headers"], asgi["body"], asgi["isBase64Encoded"]) == (
        201,
        {"x-a": "1, 2"},
        "aGn/",
        True,
    )
    assert answers["messages"] == ["lifespan.startup", "lifespan.shutdown"]


def test_an_application_keeps_its_event_loop_when_user_code_runs_another(tmp_path: Path) -> None:
    program = PROGRAM.partition("application = ")[0] + (
        "import asyncio\n"
        "application = handler_kinds.adapted(asgi)\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "assert application(request('hi'), None)['statusCode'] == 201\n"
        "application.closing()\n"
        "assert messages == ['lifespan.startup', 'lifespan.shutdown'], messages\n"
    )
    done = subprocess.run([INTERPRETERS[0], "-c", program, str(SOURCE)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
