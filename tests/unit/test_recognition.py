"""Handlers are recognised in their source, as they are when they are imported; mistakes are found without an import."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from typing import Any

import pytest

from thawd.recognition.handlers import Examined, examine, left_out
from thawd.recognition.imports import missing, needed
from thawd.recognition.kinds import Kind
from thawd.recognition.modules import parse
from thawd.recognition.served_files import NothingToServeError, find
from thawd.resources import Batch, Function
from thawd.runtime import handler_kinds

SOURCE = """
import functools
import os as system
from flask import Flask
from fastapi import FastAPI
from mangum import Mangum
import thawd
from thawd import function, streaming
from other import elsewhere, app as renamed

def plain(event, context): return 1
async def asynchronous(event, context): return 1
def generator(event, context):
    yield 1
async def asynchronous_generator(event, context):
    yield 1
def outer(event, context):
    def inner():
        yield 1
    return list(inner())
@streaming.handler
def streaming_handler(event, stream, context): pass
@thawd.function
def typed(n: int) -> int: return n
@function
def typed_too(n: int) -> int: return n
async def asgi(scope, receive, send): pass
def wsgi(environ, start_response): return []
def short_wsgi(environ, start): return []
api = FastAPI()
site = Flask(__name__)
def create_app(debug=False):
    made = FastAPI()
    return made
made_by_factory = create_app()
with_mangum = Mangum(api)
alias = plain
lambda_expression = lambda event, context: 1
try:
    import json
except ImportError:
    json = None
else:
    def in_a_block(event, context): return 1
"""
KINDS = {
    "plain": Kind.LAMBDA,
    "asynchronous": Kind.ASYNC,
    "generator": Kind.GENERATOR,
    "asynchronous_generator": Kind.GENERATOR,
    "outer": Kind.LAMBDA,
    "streaming_handler": Kind.STREAMING,
    "typed": Kind.TYPED,
    "typed_too": Kind.TYPED,
    "asgi": Kind.ASGI,
    "wsgi": Kind.WSGI,
    "short_wsgi": Kind.WSGI,
    "api": Kind.ASGI,
    "site": Kind.WSGI,
    "made_by_factory": Kind.ASGI,
    "with_mangum": Kind.LAMBDA,
    "alias": Kind.LAMBDA,
    "lambda_expression": Kind.LAMBDA,
    "in_a_block": Kind.LAMBDA,
    "elsewhere": Kind.GENERATOR,
    "renamed": Kind.ASGI,
}
OTHER = """
from fastapi import FastAPI
app = FastAPI()
def elsewhere(event, context):
    yield 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    code = tmp_path_factory.mktemp("code")
    (code / "main.py").write_text(SOURCE)
    (code / "other.py").write_text(OTHER)
    return code


def examined(code: Path, handler: str, **options: Any) -> Examined:
    """Examine a handler of this interpreter."""
    return examine(Function(name="f", handler=handler, code=code, **options), version=None)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_handler_is_recognised_in_its_source(folder: Path, name: str) -> None:
    found = examined(folder, f"main.{name}")
    assert (found.recognised.kind, found.mistakes) == (KINDS[name], [])


def test_the_runtime_decides_as_the_source_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("main_of_recognition", folder / "main.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    own_loop = asyncio.new_event_loop()  # Mangum makes a loop that nobody closes, unless there is one
    asyncio.set_event_loop(own_loop)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules.pop("other", None)
        asyncio.set_event_loop(None)
        own_loop.close()
    for name, kind in KINDS.items():
        handler = getattr(module, name)
        decided = {
            Kind.ASGI: handler_kinds.is_asgi(handler),
            Kind.WSGI: handler_kinds.is_wsgi(handler),
            Kind.GENERATOR: handler_kinds.is_generator(handler) and getattr(handler, "streams", None) is not True,
            Kind.TYPED: getattr(handler, "is_typed_function", None) is True,
            Kind.STREAMING: getattr(handler, "streams", None) is True,
        }
        assert [each for each, is_so in decided.items() if is_so] == ([kind] if kind in decided else []), name
        # `thawd.runtime.batches` and `thawd.runtime.concurrent` refuse the others.
        is_ordinary = not any(decided.values())
        runs_many = decided[Kind.ASGI] or (is_ordinary and handler_kinds.is_asynchronous(handler))
        assert (not examined(folder, f"main.{name}", batch=Batch(size=2)).mistakes) == is_ordinary, name
        assert (not examined(folder, f"main.{name}", concurrency=2).mistakes) == runs_many, name


@pytest.mark.parametrize(
    ("code", "handler", "mistake"),
    [
        ("def handler(event, context): pass", "app.handle", "app.py has no `handle`; did you mean app.handler?"),
        ("from fastapi import FastAPI\napp = FastAPI()", "app.handler", "app.py has no `handler`; there is `app`"),
        ("X = 1", "app.handler", "app.py has no `handler`; nothing in it can be a handler"),
        ("def handler(event, context): pass", "ap.handler", "did you mean app.handler?"),
        ("def handler(event, context): pass", "app.app.handler", "did you mean app.handler?"),
        ("def handler(event, context): pass", "main.start", "there is no module main in"),
        ("def handler(event context): pass", "app.handler", "app.py:1: syntax error: "),
        ("handler = {'a': 1}", "app.handler", "app.handler is no handler: it is a dict, which cannot be called"),
        ("import json as handler", "app.handler", "it is the module json, which cannot be called"),
        ("def predict(text: str): pass", "app.predict", "put @thawd.function above it"),
        ("def f(event, context, more): pass", "app.f", "it takes (event, context, more)"),
    ],
)
def test_a_mistake_says_what_is_wrong_and_what_is_there(tmp_path: Path, code: str, handler: str, mistake: str) -> None:
    (tmp_path / "app.py").write_text(code)
    [found] = examined(tmp_path, handler).mistakes
    assert mistake in found


@pytest.mark.parametrize(
    "code",
    [
        "from fastapi import *",
        "globals()['handler'] = print",
        "def __getattr__(name): return print",
        "exec('def handler(event, context): pass')",
        "import somewhere\nhandler = somewhere.make()",
        "from somewhere import handler",
        "class Handler:\n    def __call__(self, event, context): pass\nhandler = Handler()",
        "with open('x') as file:\n    def handler(event, context): pass",
        "if (handler := print): pass",
    ],
)
def test_nothing_is_said_about_what_the_source_does_not_show(tmp_path: Path, code: str) -> None:
    (tmp_path / "app.py").write_text(code)
    assert examined(tmp_path, "app.handler").mistakes == []


def test_syntax_that_an_older_interpreter_does_not_have_is_named(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def handler(event, context):\n    match event:\n        case _: pass\n")
    function = Function(name="f", handler="app.handler", code=tmp_path)
    assert examine(function, version=(3, 10)).mistakes == []
    [mistake] = examine(function, version=(3, 9)).mistakes
    assert "syntax that Python 3.9 does not have" in mistake


def test_syntax_of_a_newer_interpreter_than_this_one_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("type newer than all\ndef handler(event, context): pass\n")
    function = Function(name="f", handler="app.handler", code=tmp_path)
    assert "syntax error" in examine(function, version=sys.version_info[:2]).mistakes[0]
    newer = examine(function, version=(3, sys.version_info[1] + 1))
    assert (newer.mistakes, newer.recognised.kind) == ([], Kind.OTHER)


def test_a_package_that_is_installed_editable_is_not_missing(tmp_path: Path) -> None:
    hook = """
    import importlib.machinery, sys
    class Finder:
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            return importlib.machinery.ModuleSpec(name, None) if name == "editable_package" else None
    sys.meta_path.append(Finder)
    """
    environment = tmp_path / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    [site] = environment.glob("lib/python*/site-packages")
    (site / "editable_hook.py").write_text(textwrap.dedent(hook))
    (site / "editable_hook.pth").write_text("import editable_hook\n")
    names = ["editable_package", "no_such_package"]
    assert missing(names, python, []) == ["no_such_package"]
    source = "import sys; from pathlib import Path; from thawd.recognition.imports import missing; "
    asked = f"{source}print(missing({names}, Path(sys.executable), []))"
    path = os.pathsep.join(sys.path)
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, env={"PYTHONPATH": path})
    assert done.stdout == "['no_such_package']\n", done.stderr


def test_options_that_an_application_cannot_have_are_mistakes(folder: Path) -> None:
    assert "cannot have the option batch" in examined(folder, "main.api", batch=Batch(size=2)).mistakes[0]
    assert "cannot have the option concurrency" in examined(folder, "main.typed", concurrency=2).mistakes[0]
    assert (
        examined(folder, "main.api", batch=Batch(size=2))
        .mistakes[0]
        .startswith("main.api is an ASGI application (fastapi), which cannot")
    )


def test_packages_that_are_missing_are_named_with_the_place_of_the_import(tmp_path: Path) -> None:
    code = """
    import json, no_such_package
    from package.inner import x
    import helper
    try:
        import optional_package
    except ImportError:
        pass
    """
    (tmp_path / "app.py").write_text(textwrap.dedent(code))
    (tmp_path / "helper.py").write_text("import numpy\nfrom another_missing import y\n")
    (tmp_path / "package").mkdir()
    places = needed(parse(tmp_path / "app.py"), tmp_path)
    python = Path(sys.executable)
    assert missing(list(places), python, [tmp_path]) == ["no_such_package", "another_missing"]
    assert (places["no_such_package"], places["another_missing"]) == ("app.py:2", "helper.py:2")
    link = tmp_path / "python"
    link.symlink_to(python)
    assert {"no_such_package", "another_missing"} <= set(missing(list(places), link, [tmp_path]))


def test_files_that_copies_leave_out_are_named(tmp_path: Path) -> None:
    (tmp_path / ".models").mkdir()
    (tmp_path / ".models" / "a.onnx").touch()
    (tmp_path / "b.onnx").touch()
    (tmp_path / "app.py").write_text("a = open('.models/a.onnx')\nb = open('b.onnx')\nc = open('c.onnx')\n")
    notes = list(left_out(parse(tmp_path / "app.py"), tmp_path, lambda path: ".models" in path.parts))
    assert notes == ["app.py:1 names .models/a.onnx, which copies of the code do not contain"]


@pytest.mark.parametrize(
    ("code", "is_named"),
    [
        ("import os\ndef f(): return {'pid': os.getpid()}", False),
        ("def f(event): return event['pid']", False),
        ("def f(event): return event.get('pid') == 'pid'", False),
        ("open('pid')", True),
        ("import pathlib\nplace = pathlib.Path(__file__).parent / 'pid'", True),
        ("import numpy\nnumpy.load(file='pid')", True),
    ],
)
def test_a_word_is_a_file_only_where_files_are_opened(tmp_path: Path, code: str, is_named: bool) -> None:
    (tmp_path / "pid").touch()
    (tmp_path / "app.py").write_text(code)
    notes = list(left_out(parse(tmp_path / "app.py"), tmp_path, lambda path: path.name == "pid"))
    assert bool(notes) is is_named


@pytest.mark.parametrize(
    ("code", "served"),
    [
        ("from fastapi import FastAPI\napp = FastAPI()\n@app.get('/')\ndef index(): pass", ["app"]),
        ("import thawd\n@thawd.function\ndef a(n: int): pass\n@thawd.function\ndef b(n: int): pass", ["a", "b"]),
        ("def handler(event, context): pass\ndef other(event, context): pass", ["handler"]),
        ("def serve(event, context): pass", ["serve"]),
        ("import framework\napp = framework.make()", ["app"]),
        ("def create_app(): pass\nimport flask\napp = flask.Flask(__name__)", ["app"]),
    ],
)
def test_what_a_file_serves_is_found(tmp_path: Path, code: str, served: list[str]) -> None:
    (tmp_path / "app.py").write_text(code)
    assert list(find(tmp_path / "app.py", None).handlers) == served


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("X = 1", None, "contains nothing to serve"),
        ("def a(event, context): 1\ndef b(event, context): 1", None, "several things to serve"),
        ("def a(event, context): 1", "b", "has no b; there is a (Lambda handler)"),
        ("a = 1", "a", "cannot be served: it is the value 1"),
        ("def a(:", None, "syntax error"),
    ],
)
def test_a_file_that_cannot_be_served_is_refused_with_a_reason(
    tmp_path: Path, code: str, name: str | None, message: str
) -> None:
    (tmp_path / "app.py").write_text(code)
    with pytest.raises(NothingToServeError) as caught:
        find(tmp_path / "app.py", name)
    assert message in str(caught.value)
