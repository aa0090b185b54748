"""An unmodified FastAPI application with Mangum, behind routes of both payload formats and a function URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from thawd.gateway.function_urls.table import url_id

from .conftest import Project, Running
from .requests_to_applications import request

CODE = """
from fastapi import FastAPI, Request, Response
from mangum import Mangum

app = FastAPI()

@app.get("/hello/{name}")
def hello(name: str, request: Request):
    return {"name": name, "tags": request.query_params.getlist("tag"), "cookies": request.cookies,
            "client": request.client.host, "many": request.headers.get("x-many")}

@app.post("/echo")
async def echo(request: Request):
    body = await request.body()
    return Response(body[::-1], media_type="application/octet-stream", headers={"x-length": str(len(body))})

@app.get("/cookies")
def cookies(response: Response):
    response.set_cookie("a", "1")
    response.set_cookie("b", "2")
    return {}

handler = Mangum(app, lifespan="off")
"""
PREFIXES = ("one", "two", f"_urls/{url_id('web')}")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("mangum"))
    project.code(CODE)
    for name in ("one", "two"):
        project.code(CODE.replace('lifespan="off"', f'lifespan="off", api_gateway_base_path="/{name}"'), f"{name}.py")
    project.config(
        """
        [functions.web]
        handler = "app.handler"
        url = { auth_type = "NONE" }
        [functions.one]
        handler = "one.handler"
        [functions.two]
        handler = "two.handler"
        [routes]
        "ANY /one/{proxy+}" = { function = "one", payload_format = "1.0" }
        "ANY /two/{proxy+}" = "two"
        """
    )
    with project.up() as server:
        yield server


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_application_sees_path_query_cookies_and_client(running: Running, prefix: str) -> None:
    path = f"/{prefix}/hello/w%20w?tag=a&tag=b%26c"
    status, headers, body = request(running, "GET", path, Cookie="x=1; y=2", X_Many="1")
    told: dict[str, Any] = json.loads(body)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert (told["name"], told["cookies"], told["client"]) == ("w w", {"x": "1", "y": "2"}, "127.0.0.1")
    assert (told["tags"], told["many"]) == (["a", "b&c"], "1")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_binary_bodies_go_both_ways(running: Running, prefix: str) -> None:
    body = bytes(range(256)) * 10
    status, headers, answer = request(running, "POST", f"/{prefix}/echo", body, Content_Type="image/png")
    assert (status, headers["x-length"], answer) == (200, str(len(body)), body[::-1])


@pytest.mark.parametrize("prefix", PREFIXES)
def test_several_cookies_are_set(running: Running, prefix: str) -> None:
    _, headers, _ = request(running, "GET", f"/{prefix}/cookies")
    assert [value.partition(";")[0] for value in headers.get_all("set-cookie") or []] == ["a=1", "b=2"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_the_application_does_not_have_is_its_own_404(running: Running, prefix: str) -> None:
    status, _, body = request(running, "GET", f"/{prefix}/nothing")
    assert (status, json.loads(body)) == (404, {"detail": "Not Found"})
