"""ASGI and WSGI applications as handlers on AWS: the layer makes Lambda's runtime call them."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.aws_orders import of_type
from thawd import config
from thawd.deploy.aws.assets import make_assets
from thawd.deploy.aws.stack import Code, DeploymentError, Order
from thawd.deploy.aws.template import make_model

ASGI = """
import json
started = []
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        assert (await receive())["type"] == "lifespan.startup"
        started.append(1)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        return
    if scope["path"] == "/fails":
        raise ValueError("a mistake in the application")
    body = (await receive())["body"].decode()
    seen = [started, scope["method"], scope["path"], scope["query_string"].decode(), body]
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(seen).encode()})
"""
WSGI = """
def app(environ, start_response):
    start_response("200 OK", [("set-cookie", "a=1"), ("set-cookie", "b=2")])
    yield environ["REQUEST_METHOD"].encode()
    yield environ["PATH_INFO"].encode()
"""
CONFIG = """
[functions.fast]
handler = "fast.app"
[functions.old]
handler = "pack/old.app"
"""
CALL = """
import importlib, json, sys
sys.path[:0] = sys.argv[1:3]  # a function's code, then its layers
handler = importlib.import_module("thawd.runtime.deployed_application").handler
assert "thawd.runtime.process" not in sys.modules
print(json.dumps([handler(event, None) for event in json.load(sys.stdin)]))
"""


def _event_2(method: str, path: str, body: str = "") -> dict[str, Any]:
    http = {"method": method, "path": path, "sourceIp": "127.0.0.1", "protocol": "HTTP/1.1"}
    return {"version": "2.0", "rawPath": path, "rawQueryString": "n=1", "requestContext": {"http": http}, "body": body}


def _event_1(method: str, path: str) -> dict[str, Any]:
    return {"httpMethod": method, "path": path, "requestContext": {"httpMethod": method}, "headers": {}, "body": None}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pack").mkdir(parents=True)
    (folder / "fast.py").write_text(ASGI)
    (folder / "pack" / "old.py").write_text(WSGI)
    (folder / "thawd.toml").write_text(CONFIG)
    return folder


def test_applications_answer_in_lambdas_runtime_with_the_layer(project: Path, tmp_path: Path) -> None:
    settings = config.load(project / "thawd.toml", environ={})
    made = make_assets(settings, stack="shop", folder=tmp_path, tries_imports=False, report=lambda line: None)
    model = make_model(Order(settings=settings, stack="shop", code=made.code, layer_key=made.layer_key))
    functions = {each["FunctionName"]: each for each in of_type(model, "AWS::Lambda::Function")}
    files = {asset.key: asset.file for asset in made.archives}
    [layer] = of_type(model, "AWS::Lambda::LayerVersion")

    def answers(name: str, *events: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
        shown = functions[f"shop-{name}"]
        assert shown["Handler"] == "thawd.runtime.deployed_application.handler"
        for key, place in ((shown["Code"]["S3Key"], "code"), (layer["Content"]["S3Key"], "opt")):
            with zipfile.ZipFile(files[key]) as archive:
                archive.extractall(tmp_path / name / place)
        called = subprocess.run(
            [sys.executable, "-I", "-S", "-c", CALL, tmp_path / name / "code", tmp_path / name / "opt" / "python"],
            input=json.dumps(events), env=shown["Environment"]["Variables"], capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(called.stdout), called.stderr

    (first, failed, third), log = answers(
        "fast", _event_2("POST", "/a", "text"), _event_2("GET", "/fails"), _event_1("GET", "/b")
    )
    assert (first["statusCode"], json.loads(first["body"])) == (201, [[1], "POST", "/a", "n=1", "text"])
    assert first["headers"] == {"content-type": "application/json"}
    assert (failed["statusCode"], failed["body"]) == (500, "Internal Server Error")
    assert "ValueError: a mistake in the application" in log
    assert json.loads(third["body"])[1:3] == ["GET", "/b"]
    (new, old), log = answers("old", _event_2("GET", "/c"), _event_1("PUT", "/d"))
    assert (new["body"], new["cookies"], log) == ("GET/c", ["a=1", "b=2"], "")
    assert (old["body"], old["multiValueHeaders"]["set-cookie"]) == ("PUT/d", ["a=1", "b=2"])


def test_an_application_whose_package_is_split_is_refused_with_a_way_out(project: Path) -> None:
    settings = config.load(project / "thawd.toml", environ={})
    code = {
        "fast": Code(key="k", runtime="python3.12", handler="thawd_parts.handler", part="part.tar.gz"),
        "old": Code(key="k", runtime="python3.12"),
    }
    with pytest.raises(DeploymentError, match=r"fast\.app is an ASGI .*too large.*with Mangum"):
        make_model(Order(settings=settings, stack="shop", code=code, layer_key="l"))
