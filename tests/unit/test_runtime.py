"""`thawd.runtime`: what handlers receive, and how errors, logs and ends are reported. Uses real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.unit.interpreters_here import INTERPRETERS
from tests.unit.runtime_process import BOOTSTRAP, ready, running
from thawd.wire import frames

CONTEXT = """
    import os
    def handler(event, context):
        c = context.client_context
        return {
            "event": event, "id": context.aws_request_id, "arn": context.invoked_function_arn,
            "name": context.function_name, "version": context.function_version,
            "memory": context.memory_limit_in_mb, "group": context.log_group_name,
            "stream": context.log_stream_name, "left": context.get_remaining_time_in_millis(),
            "tenant": context.tenant_id, "identity": context.identity.cognito_identity_id,
            "client": c and [c.custom, c.env, c.client and c.client.app_title],
            "trace": os.environ.get("_X_AMZN_TRACE_ID"), "cwd": os.getcwd(),
        }
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_the_context_has_lambdas_fields(tmp_path: Path, python: str) -> None:
    with running(tmp_path, CONTEXT, python=python) as process:
        ready(process)
        client = {"custom": {"a": 1}, "env": {"b": 2}, "client": {"app_title": "t"}}
        failed, answer = process.invoke({"n": 1}, client=json.dumps(client), trace="Root=1")
        assert not failed
        assert 2000 < answer.pop("left") <= 3000
        assert answer == {
            "event": {"n": 1},
            "id": "rid-1",
            "arn": "arn:f",
            "name": "f",
            "version": "$LATEST",
            "memory": "512",
            "group": "/aws/lambda/f",
            "stream": "stream",
            "tenant": None,
            "identity": None,
            "client": [{"a": 1}, {"b": 2}, "t"],
            "trace": "Root=1",
            "cwd": str(tmp_path),
        }
        _, answer = process.invoke({})
        assert (answer["trace"], answer["client"]) == (None, None)


FAILING = """
    import json, sys
    def inner(event):
        raise ValueError("boom \\u00e9")
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError
    def handler(event, context):
        what = event["what"]
        if what == "raise": inner(event)
        if what == "odd": raise Odd
        if what == "exit_base": raise KeyboardInterrupt("stop")
        if what == "library": json.loads("{")
        if what == "set": return {1}
        if what == "circle":
            a = []; a.append(a); return a
        if what == "large": return "x" * 7_000_000
        if what == "generator": raise GeneratorExit
        if what == "surrogate": raise ValueError("\\udc80")
        if what == "close_and_raise": sys.stderr.close(); raise ValueError("told all the same")
        if what == "none_and_raise": sys.stderr = None; raise ValueError("told all the same")
        return "fine"
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_an_exception_becomes_lambdas_error_document_without_our_frames(tmp_path: Path, python: str) -> None:
    with running(tmp_path, FAILING, python=python) as process:
        ready(process)
        failed, document = process.invoke({"what": "raise"})
        assert failed
        assert set(document) == {"errorMessage", "errorType", "requestId", "stackTrace"}
        assert (document["errorType"], document["errorMessage"]) == ("ValueError", "boom é")
        assert document["requestId"] == "rid-1"
        trace = "".join(document["stackTrace"])
        assert "in handler" in document["stackTrace"][0]
        assert "in inner" in document["stackTrace"][1]
        assert "thawd" not in trace
        text = process.printed()
        assert text.startswith("[ERROR] ValueError: boom é\nTraceback (most recent call last):\n")
        assert "in inner" in text
        assert process.invoke({"what": ""}) == (False, "fine")


@pytest.mark.parametrize(
    ("what", "error_type"),
    [
        ("odd", "Odd"),
        ("exit_base", "KeyboardInterrupt"),
        ("library", "JSONDecodeError"),
        ("set", "Runtime.MarshalError"),
        ("circle", "Runtime.MarshalError"),
        ("large", "Function.ResponseSizeTooLarge"),
        ("generator", "GeneratorExit"),
        ("surrogate", "ValueError"),
        ("close_and_raise", "ValueError"),
        ("none_and_raise", "ValueError"),
    ],
)
def test_whatever_a_handler_does_its_error_is_told_and_it_serves_on(tmp_path: Path, what: str, error_type: str) -> None:
    with running(tmp_path, FAILING) as process:
        ready(process)
        failed, document = process.invoke({"what": what})
        assert (failed, document["errorType"]) == (True, error_type)
        assert process.invoke({"what": ""}) == (False, "fine")


def test_an_event_that_is_no_json_is_told(tmp_path: Path) -> None:
    with running(tmp_path, FAILING) as process:
        ready(process)
        failed, document = process.invoke(b"{")
        assert (failed, document["errorType"]) == (True, "Runtime.UnmarshalError")


def test_an_error_raised_in_a_table_call_shows_the_users_frames_only(tmp_path: Path) -> None:
    code = """
        import thawd
        def handler(event, context):
            thawd.table("t").put(object(), {})
    """
    with running(tmp_path, code) as process:
        ready(process)
        failed, document = process.invoke({})
        assert failed
        assert not [frame for frame in document["stackTrace"] if str(BOOTSTRAP.parent.parent) in frame]


INIT_FAILURES = [
    ("def other(e, c): pass", "app.handler", "Runtime.HandlerNotFound", "Handler 'handler' missing on module 'app'"),
    ("handler = 5", "app.handler", "Runtime.HandlerNotFound", "it is a int"),
    ("def handler(e, c) pass", "app.handler", "Runtime.UserCodeSyntaxError", "Syntax error in module 'app'"),
    ("import nothing_such", "app.handler", "Runtime.ImportModuleError", "No module named 'nothing_such'"),
    ("", "elsewhere.handler", "Runtime.ImportModuleError", "Unable to import module 'elsewhere'"),
    ("", "handler", "Runtime.MalformedHandlerName", "Bad handler 'handler'"),
    ("", ".handler", "Runtime.MalformedHandlerName", "Bad handler"),
    ("", "app.", "Runtime.MalformedHandlerName", "Bad handler"),
    ("1 / 0", "app.handler", "ZeroDivisionError", "division by zero"),
    ("import sys; sys.exit(3)", "app.handler", "Runtime.ExitError", "exit status 3"),
    ("import sys; sys.exit(0)", "app.handler", "Runtime.ExitError", "Error: Runtime exited without providing a reason"),
    ("raise KeyboardInterrupt", "app.handler", "KeyboardInterrupt", ""),
    ("def f(): f()\nf()", "app.handler", "RecursionError", "maximum recursion depth"),
]


@pytest.mark.parametrize("mode", ["environment", "template"])
@pytest.mark.parametrize(("code", "handler", "error_type", "message"), INIT_FAILURES)
def test_an_init_that_fails_is_told_with_its_kind_and_ends_the_process(
    tmp_path: Path, mode: str, code: str, handler: str, error_type: str, message: str
) -> None:
    with running(tmp_path, code, handler=handler, mode=mode) as process:
        frame = process.receive()
        assert frame is not None
        assert frame.kind == frames.INIT_ERROR
        document = json.loads(frame.body)
        assert document["errorType"] == frame.head["type"] == error_type
        assert message in document["errorMessage"]
        assert not [line for line in document.get("stackTrace", []) if "thawd" in line or "importlib" in line]
        assert process.receive() is None
        assert process.process.wait(120) == 1
        assert error_type in process.printed()


@pytest.mark.parametrize("handler", ["pkg.deep.app.handler", "pkg/deep/app.handler"])
def test_a_handler_may_be_in_a_package(tmp_path: Path, handler: str) -> None:
    with running(tmp_path, "def handler(e, c): return __name__", handler=handler, file="pkg/deep/app.py") as process:
        ready(process)
        assert process.invoke({}) == (False, "pkg.deep.app")


def test_modules_of_the_function_win_over_ours_and_the_platforms_are_unseen(tmp_path: Path) -> None:
    for name in ("handler", "loop", "logs", "services", "template"):
        (tmp_path / f"{name}.py").write_text(f"whose = 'user'\ndef handler(e, c): return '{name}'")
    code = """
        import handler as h, logs, loop, sys
        def handler(event, context):
            return [h.whose, logs.whose, loop.whose, "msgspec" in sys.modules, sys.path[0]]
    """
    with running(tmp_path, code) as process:
        ready(process)
        assert process.invoke({}) == (False, ["user", "user", "user", False, str(tmp_path)])


def test_logging_is_lambdas(tmp_path: Path) -> None:
    code = """
        import logging
        def handler(event, context):
            logging.info("not this")
            logging.warning("this %s", "one")
            logging.getLogger("x").error("two")
            context.log("raw\\n")
            print("prin\\udc80ted")
    """
    with running(tmp_path, code) as process:
        ready(process)
        process.invoke({})
        lines = process.printed().splitlines()
        assert len(lines) == 4
        level, stamp, request_id, message = lines[0].split("\t")
        assert (level, request_id, message) == ("[WARNING]", "rid-1", "this one")
        time.strptime(stamp, "%Y-%m-%dT%H:%M:%S." + stamp[20:])
        assert lines[1].startswith("[ERROR]\t")
        assert lines[2:] == ["raw", "prin\\udc80ted"]


def test_what_is_printed_is_out_before_the_answer(tmp_path: Path) -> None:
    code = """
        import sys
        def handler(event, context):
            sys.stdout.write("no newline"); sys.stderr.write("nor here")
    """
    with running(tmp_path, code) as process:
        ready(process)
        process.invoke({})
        assert sorted(process.printed()) == sorted("no newlinenor here")


@pytest.mark.parametrize(("call", "status"), [("sys.exit(4)", 4), ("sys.exit()", 0), ("os._exit(5)", 5)])
def test_an_exit_ends_the_process_with_its_status(tmp_path: Path, call: str, status: int) -> None:
    with running(tmp_path, f"import os, sys\ndef handler(e, c): {call}") as process:
        ready(process)
        process.control.sendall(frames.encode(frames.INVOKE, {"id": "1", "arn": "", "left_ms": 1}, b"{}"))
        assert process.receive() is None
        assert process.process.wait(120) == status


def test_a_handler_that_forks_answers_once(tmp_path: Path) -> None:
    code = """
        import os
        def handler(event, context):
            pid = os.fork()
            if pid == 0:
                return "child"
            os.waitpid(pid, 0)
            return "parent"
    """
    with running(tmp_path, code) as process:
        ready(process)
        assert process.invoke({}) == (False, "parent")
        assert process.invoke({}) == (False, "parent")


@pytest.mark.parametrize("mode", ["environment", "template"])
@pytest.mark.parametrize("end", ["control", "lifeline"])
def test_the_process_ends_when_the_platform_is_gone(tmp_path: Path, mode: str, end: str) -> None:
    with running(tmp_path, "def handler(e, c): return 1", mode=mode) as process:
        ready(process)
        if end == "control":
            process.control.shutdown(socket.SHUT_RDWR)
        else:
            os.close(process.lifeline)
            process.lifeline = -1
        assert process.process.wait(120) == (0 if end == "control" else -signal.SIGKILL)


def test_a_busy_handler_dies_with_the_platform(tmp_path: Path) -> None:
    with running(tmp_path, "def handler(e, c):\n  while True: pass") as process:
        ready(process)
        process.control.sendall(frames.encode(frames.INVOKE, {"id": "1", "arn": "", "left_ms": 1}, b"{}"))
        os.close(process.lifeline)
        process.lifeline = -1
        assert process.process.wait(120) == -signal.SIGKILL


def test_a_template_with_threads_refuses_by_name(tmp_path: Path) -> None:
    code = """
        import threading
        threading.Thread(target=threading.Event().wait, name="poller", daemon=True).start()
        def handler(e, c): return 1
    """
    with running(tmp_path, code, mode="template") as process:
        frame = process.receive()
        assert frame is not None
        assert "poller" in frame.head["fork_refused"]
