"""Applications of FastAPI, Flask and Django, generators and typed functions as handlers, frozen and thawed."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from thawd.gateway.function_urls.table import url_id

from .conftest import Project, Running, eventually
from .requests_to_applications import request

FASTAPI = """
import asyncio, contextlib, os, time
from fastapi import BackgroundTasks, FastAPI, Request, Response, UploadFile
from fastapi.responses import FileResponse, StreamingResponse

@contextlib.asynccontextmanager
async def lifespan(app):
    pid = os.getpid()
    queue = asyncio.Queue()
    yield {"started_in": pid, "queue": queue}
    print("shutdown ran", flush=True)

app = FastAPI(lifespan=lifespan)

@app.get("/seen/{name:path}")
def seen(name: str, request: Request):
    return {"name": name, "tags": request.query_params.getlist("tag"), "cookies": request.cookies,
            "client": request.client.host, "url": str(request.url), "many": request.headers.get("x-many"),
            "copied": request.state.started_in != os.getpid()}

@app.get("/queue")
async def queue(request: Request):
    await request.state.queue.put(1)
    return await request.state.queue.get()

@app.get("/events")
async def events(gate: str):
    async def parts():
        yield "data: 1\\n\\n"
        while not os.path.exists(gate):
            await asyncio.sleep(0.005)
        yield "data: 2\\n\\n"
    return StreamingResponse(parts(), media_type="text/event-stream")

@app.get("/part")
async def part():
    async def parts():
        yield "one"
        await asyncio.sleep(0.01)
        yield "two"
    return StreamingResponse(parts(), status_code=418)

@app.get("/broken")
def broken():
    def parts():
        yield "a part"
        raise ValueError("in the middle")
    return StreamingResponse(parts(), media_type="text/plain")

@app.get("/later")
def later(gate: str, tasks: BackgroundTasks):
    def work():
        while not os.path.exists(gate):
            time.sleep(0.005)
        print("background work done", flush=True)
    tasks.add_task(work)
    return {"accepted": True}

@app.post("/upload")
async def upload(file: UploadFile):
    data = await file.read()
    return Response(data[::-1], media_type="image/png", headers={"x-name": file.filename})

@app.get("/file")
def file():
    return FileResponse(__file__)

@app.head("/file")
def head():
    return FileResponse(__file__)

@app.get("/twice")
def twice():
    answer = Response("x", status_code=203)
    answer.headers.append("link", "</a>")
    answer.headers.append("link", "</b>")
    answer.set_cookie("a", "1")
    answer.set_cookie("b", "2")
    return answer

@app.get("/error")
def error():
    raise ValueError("bad pixel count")
"""
FLASK = """
import time
from flask import Flask, Response, jsonify, request

app = Flask(__name__)

@app.route("/flask/seen/<path:name>", methods=["GET", "POST"])
def seen(name):
    return jsonify(name=name, tags=request.args.getlist("tag"), form=request.form, cookies=request.cookies,
                   url=request.url, client=request.remote_addr)

@app.route("/flask/stream")
def stream():
    def parts():
        yield "one\\n"
        yield "two\\n"
    return Response(parts(), mimetype="text/plain")

@app.route("/flask/error")
def error():
    raise ValueError("bad pixel count")
"""
DJANGO = """
import django
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path

settings.configure(DEBUG=False, ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="k")

def seen(request, name):
    return JsonResponse({"name": name, "tags": request.GET.getlist("tag"), "body": request.body.decode(),
                         "cookies": request.COOKIES})

urlpatterns = [path("django/<kind>/seen/<path:name>", lambda request, kind, name: seen(request, name))]
wsgi = get_wsgi_application()
django.setup()
asgi = ASGIHandler()
"""
OTHERS = """
import asyncio, os
import thawd

def words(event, context):
    gate = event["queryStringParameters"]["gate"]
    yield "one "
    while not os.path.exists(gate):
        pass
    yield "two"

async def numbers(event, context):
    for number in range(3):
        await asyncio.sleep(0)
        yield "%d\\n" % number

@thawd.function
def area(width: float, height: float = 1.0) -> float:
    "The area of a rectangle."
    return width * height

@thawd.function
async def count(to: int):
    for number in range(to):
        yield {"number": number}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("web"))
    for name, code in (("app", FASTAPI), ("flaskapp", FLASK), ("djangoapp", DJANGO), ("others", OTHERS)):
        project.code(code, f"{name}.py")
    project.config(
        """
        [functions.web]
        handler = "app.app"
        url = { auth_type = "NONE" }
        [functions.flask]
        handler = "flaskapp.app"
        url = { auth_type = "NONE", invoke_mode = "RESPONSE_STREAM" }
        [functions.wsgi]
        handler = "djangoapp.wsgi"
        [functions.asgi]
        handler = "djangoapp.asgi"
        [functions.words]
        handler = "others.words"
        [functions.numbers]
        handler = "others.numbers"
        [functions.area]
        handler = "others.area"
        [functions.count]
        handler = "others.count"
        [routes]
        "$default" = "web"
        "ANY /first/{rest+}" = { function = "web", payload_format = "1.0" }
        "ANY /flask/{rest+}" = "flask"
        "ANY /django/wsgi/{rest+}" = "wsgi"
        "ANY /django/asgi/{rest+}" = "asgi"
        "GET /words" = "words"
        "GET /numbers" = "numbers"
        "ANY /area" = "area"
        "ANY /area/{rest+}" = "area"
        "POST /count" = "count"
        """
    )
    with project.up() as server:
        yield server


@pytest.mark.parametrize("prefix", ["", "/flask", "/django/wsgi", "/django/asgi"])
def test_an_application_sees_path_query_and_cookies(running: Running, prefix: str) -> None:
    status, _, body = request(running, "GET", f"{prefix}/seen/w%20w/%C3%A9?tag=a&tag=b%26c", Cookie="x=1; y=2")
    told = json.loads(body)
    assert (status, told["name"], told["tags"]) == (200, "w w/é", ["a", "b&c"])
    assert told["cookies"] == {"x": "1", "y": "2"}


def test_an_application_sees_the_address_that_the_client_used(running: Running) -> None:
    told = json.loads(request(running, "GET", "/seen/a?tag=1")[2])
    assert (told["url"], told["client"]) == (f"{running.url}/seen/a?tag=1", "127.0.0.1")


def test_startup_ran_before_the_freeze_and_its_state_is_in_the_copy(running: Running) -> None:
    assert json.loads(request(running, "GET", "/seen/x")[2])["copied"]
    assert [request(running, "GET", "/queue")[2] for _ in range(2)] == [b"1", b"1"]


def test_the_pages_of_fastapi_are_served(running: Running) -> None:
    assert b"swagger" in request(running, "GET", "/docs")[2]
    assert "/seen/{name}" in json.loads(request(running, "GET", "/openapi.json")[2])["paths"]


def test_an_application_at_a_function_url_knows_its_address(running: Running) -> None:
    prefix = f"/_urls/{url_id('web')}"
    assert json.loads(request(running, "GET", f"{prefix}/seen/x")[2])["url"] == f"{running.url}{prefix}/seen/x"
    assert f"{prefix}/openapi.json".encode() in request(running, "GET", f"{prefix}/docs")[2]
    assert json.loads(request(running, "GET", f"{prefix}/openapi.json")[2])["servers"] == [{"url": prefix}]
    prefix = f"/_urls/{url_id('flask')}"
    told = json.loads(request(running, "GET", f"{prefix}/flask/seen/x")[2])
    assert told["url"] == f"{running.url}{prefix}/flask/seen/x"


def test_a_client_cannot_move_an_application(running: Running) -> None:
    for prefix in ("/_urls/other", "/_urls/thawd"):  # the events of routes have the API id "thawd"
        told = json.loads(request(running, "GET", "/seen/x", X_Forwarded_Prefix=prefix)[2])
        assert told["url"] == f"{running.url}/seen/x"


def test_a_part_reaches_the_client_before_the_next_one_is_made(running: Running, tmp_path: Path) -> None:
    for path, first, rest in (("/events", b"data: 1\n\n", b"data: 2\n\n"), ("/words", b"one ", b"two")):
        gate = tmp_path / path[1:]
        connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
        connection.request("GET", f"{path}?gate={gate}")
        answer = connection.getresponse()
        assert answer.read(len(first)) == first
        gate.touch()
        assert answer.read() == rest
        connection.close()


def test_an_answer_whose_client_has_gone_is_logged_with_499(running: Running, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
    connection.request("GET", f"/events?gate={gate}")
    answer = connection.getresponse()
    assert answer.read(9) == b"data: 1\n\n"
    answer.close()
    connection.close()
    running.status()  # the server has noticed the end of the connection before it answers this
    gate.touch()
    running.until_said("GET /events 499 ")


def test_generators_stream_text(running: Running) -> None:
    _, headers, body = request(running, "GET", "/numbers")
    assert (headers["content-type"], body) == ("text/plain; charset=utf-8", b"0\n1\n2\n")
    assert headers["transfer-encoding"] == "chunked"


def test_a_failure_in_the_middle_of_an_answer_is_visible_to_the_client(running: Running) -> None:
    with pytest.raises(http.client.IncompleteRead):
        request(running, "GET", "/broken")


def test_background_work_does_not_delay_the_answer(running: Running, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    status, headers, body = request(running, "GET", f"/later?gate={gate}")
    assert (status, headers["content-length"], json.loads(body)) == (200, "17", {"accepted": True})
    answered_s = time.monotonic()
    eventually(lambda: time.monotonic() - answered_s > 0.1, what="work that takes long enough to be named")
    gate.touch()
    logged = running.project.data / "logs" / "web.log"
    eventually(lambda: "background work done" in logged.read_text(), what="the background work")
    running.until_said(" ms in the background)")


def test_binary_bodies_go_both_ways(running: Running) -> None:
    data = bytes(range(256)) * 8000
    form = b'--b\r\ncontent-disposition: form-data; name="file"; filename="p.png"\r\n\r\n' + data + b"\r\n--b--\r\n"
    status, headers, body = request(running, "POST", "/upload", form, Content_Type="multipart/form-data; boundary=b")
    assert (status, headers["x-name"], headers["content-type"]) == (200, "p.png", "image/png")
    assert body == data[::-1]


def test_a_body_that_is_too_large_is_refused(running: Running) -> None:
    assert request(running, "POST", "/upload", bytes(5_000_000), Content_Type="text/plain")[0] == 413


def test_head_announces_the_length_of_get(running: Running) -> None:
    _, headers, body = request(running, "GET", "/file")
    assert request(running, "HEAD", "/file")[1]["content-length"] == headers["content-length"] == str(len(body))


@pytest.mark.parametrize("prefix", ["", f"/_urls/{url_id('web')}"])
def test_repeated_headers_and_cookies_are_separate(running: Running, prefix: str) -> None:
    status, headers, body = request(running, "GET", f"{prefix}/twice")
    assert (status, body, headers["content-length"]) == (203, b"x", "1")
    assert [value.partition(";")[0] for value in headers.get_all("set-cookie") or []] == ["a=1", "b=2"]
    assert ", ".join(headers.get_all("link") or []) == "</a>, </b>"


def test_the_payload_format_1_works_too(running: Running) -> None:
    status, headers, body = request(running, "GET", "/first/twice")
    assert (status, json.loads(body)) == (404, {"detail": "Not Found"})
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/error", "/flask/error"])
def test_an_exception_is_answered_with_500_and_logged(running: Running, path: str) -> None:
    status, _, body = request(running, "GET", path)
    assert status == 500
    assert b"Internal Server Error" in body
    name = "flask" if "flask" in path else "web"
    log = running.project.data / "logs" / f"{name}.log"
    eventually(lambda: "bad pixel count" in log.read_text(), what="the traceback")
    line = re.compile(rf"\S+ {name} GET {path} 500 .* ms\)? ValueError: bad pixel (count|.*…)")  # of 80 columns
    eventually(lambda: any(map(line.fullmatch, running.output)), what="a line with the exception")


@pytest.mark.parametrize("prefix", ["", f"/_urls/{url_id('web')}"])
@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        ("web", "/error", 500),
        ("web", "/nothing-here", 404),
        ("web", "/twice", 203),
        ("web", "/part", 418),
        ("flask", "/flask/error", 500),
        ("flask", "/flask/nothing", 404),
    ],
)
def test_the_status_that_the_client_got_is_recorded(
    running: Running, prefix: str, name: str, path: str, status: int
) -> None:
    prefix = prefix and f"/_urls/{url_id(name)}"
    assert request(running, "GET", f"{prefix}{path}?once=1")[0] == status
    query = f"/_thawd/invocations?function={name}&text=GET+{path}&failed={int(status >= 500)}"
    _, _, body = request(running, "GET", query)
    record = json.loads(body)["invocations"][0]
    assert (record["status"], record["source"]) == (status, f"GET {path}")
    error = ("ValueError", "bad pixel count") if status == 500 else ("", "")
    assert (record["error_type"], record["error"]) == error


def test_flask_streams(running: Running) -> None:
    for prefix in ("", f"/_urls/{url_id('flask')}"):
        _, headers, body = request(running, "GET", f"{prefix}/flask/stream")
        assert (headers["transfer-encoding"], body) == ("chunked", b"one\ntwo\n")


def test_flask_gets_forms(running: Running) -> None:
    kind = "application/x-www-form-urlencoded"
    told = json.loads(request(running, "POST", "/flask/seen/x", b"a=1&b=%C3%A9", Content_Type=kind)[2])
    assert (told["form"], told["url"]) == ({"a": "1", "b": "é"}, f"{running.url}/flask/seen/x")


def test_websockets_are_refused(running: Running) -> None:
    status, _, body = request(running, "GET", "/ws", Connection="Upgrade", Upgrade="websocket")
    assert status == 501
    assert b"does not serve WebSockets" in body


def test_an_event_that_is_no_http_request_is_refused(running: Running) -> None:
    answer, failed = running.invoke("web", {"Records": []})
    assert (failed, answer["errorType"]) == ("Unhandled", "Runtime.NotAnHttpEvent")


def test_invoking_an_application_returns_a_response_document(running: Running) -> None:
    http_part = {"method": "GET", "path": "/seen/x", "sourceIp": "1.2.3.4", "protocol": "HTTP/1.1"}
    answer, failed = running.invoke("web", {"rawPath": "/seen/x", "requestContext": {"http": http_part}})
    assert (failed, answer["statusCode"], json.loads(answer["body"])["client"]) == (None, 200, "1.2.3.4")


def test_a_typed_function_checks_requests(running: Running) -> None:
    kind = "application/json"
    assert request(running, "POST", "/area", b'{"width": 3, "height": 2}', Content_Type=kind)[2] == b"6.0"
    assert request(running, "GET", "/area?width=1.5")[2] == b"1.5"
    status, _, body = request(running, "POST", "/area", b'{"widht": 3}', Content_Type=kind)
    assert status == 422
    assert [mistake["loc"] for mistake in json.loads(body)["detail"]] == [["body", "widht"], ["body", "width"]]
    line = re.compile(r"\S+ area POST /area 422 .* ms\)? body\.widht: .*")

    def has_line() -> bool:  # of many requests at once, only some get a line
        request(running, "POST", "/area", b'{"widht": 3}', Content_Type=kind)
        return any(map(line.fullmatch, running.output))

    eventually(has_line, what="a line that says why")
    assert running.invoke("area", {"width": 2}) == (2.0, None)


def test_a_typed_function_has_a_page_and_a_document(running: Running) -> None:
    _, headers, body = request(running, "GET", "/area", Accept="text/html")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert b'name="width"' in body
    assert b"://" not in body  # nothing is loaded from elsewhere
    document = json.loads(request(running, "GET", "/area/openapi.json")[2])
    assert list(document["paths"]) == ["/area"]


def test_a_typed_generator_streams_lines_or_events(running: Running) -> None:
    status, headers, body = request(running, "POST", "/count?to=2")
    assert (status, headers["content-type"], body) == (200, "application/x-ndjson", b'{"number": 0}\n{"number": 1}\n')
    _, _, body = request(running, "POST", "/count?to=1", Accept="text/event-stream")
    assert body == b'data: {"number": 0}\n\n'


def test_shutdown_runs_at_the_end(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.code(FASTAPI)
    project.config('[functions.web]\nhandler = "app.app"\n[routes]\n"$default" = "web"\n')
    with project.up() as server:
        assert request(server, "GET", "/queue")[0] == 200
    assert "shutdown ran" in (project.data / "logs" / "web.log").read_text()
