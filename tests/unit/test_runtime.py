"""Claims about `thawd.runtime` and the platform's side of a process: real processes, spoken to in frames."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.execution_fakes import until, within
from tests.unit.interpreters_here import INTERPRETERS
from thawd.environments import environment as environments
from thawd.environments.channels import Channels
from thawd.environments.children import Children
from thawd.environments.environment import Environment
from thawd.environments.init_phase import InitError
from thawd.environments.sandbox.memory import MemoryLimiter
from thawd.environments.starts.launcher import Launcher
from thawd.environments.starts.spawner import Spawner
from thawd.environments.version import Version, variables_of
from thawd.errors import ServiceException
from thawd.invocation import Invocation, StartKind
from thawd.resources import Function
from thawd.telemetry.logs.writer import FunctionLog, LogStream, read_lines
from thawd.telemetry.metrics import Metrics
from thawd.wire import frames

BOOTSTRAP = Path(__file__).parents[2] / "src" / "thawd" / "runtime" / "bootstrap.py"


class Process:
    """A runtime process and our ends of its channels."""

    def __init__(self, folder: Path, handler: str, *, python: str, mode: str, variables: dict[str, str]) -> None:
        self.control, control = socket.socketpair()
        self.services, services = socket.socketpair()
        lifeline, self.lifeline = os.pipe()
        self.output, output = os.pipe()
        self.control.settimeout(120)
        self.services.settimeout(120)
        self.decoder = frames.Decoder()
        theirs = (control.fileno(), services.fileno(), lifeline)
        self.process = subprocess.Popen(
            [python, str(BOOTSTRAP), mode, *map(str, theirs)],
            env={
                "PATH": os.environ["PATH"],
                "_HANDLER": handler,
                "LAMBDA_TASK_ROOT": str(folder),
                "AWS_LAMBDA_FUNCTION_NAME": "f",
                "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
                "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/f",
                "AWS_LAMBDA_LOG_STREAM_NAME": "stream",
                **variables,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=theirs,
            start_new_session=True,
        )
        for end in (control, services):
            end.close()
        os.close(lifeline)
        os.close(output)

    def receive(self) -> frames.Frame | None:
        while True:
            frame = self.decoder.take()
            if frame is not None:
                return frame
            data = self.control.recv(1 << 18)
            if not data:
                return None
            self.decoder.feed(data)

    def invoke(self, event: Any, **head: Any) -> tuple[bool, Any]:
        """Whether it failed, and the answer; the process must live."""
        whole = {"id": "rid-1", "arn": "arn:f", "left_ms": 3000, **head}
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        self.control.sendall(frames.encode(frames.INVOKE, whole, body))
        frame = self.receive()
        assert frame is not None, f"it has ended: {self.printed()}"
        assert frame.kind == frames.RESULT
        assert frame.head["duration_ms"] >= 0
        return frame.head["failed"], json.loads(frame.body)

    def printed(self) -> str:
        """What it has written so far."""
        text = b""
        while select.select([self.output], [], [], 0)[0] and (data := os.read(self.output, 1 << 16)):
            text += data
        return text.decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(120)
        self.control.close()
        self.services.close()
        for fd in (self.lifeline, self.output):
            if fd >= 0:
                os.close(fd)


@contextmanager
def running(
    folder: Path,
    code: str,
    *,
    handler: str = "app.handler",
    file: str = "app.py",
    python: str = sys.executable,
    mode: str = "environment",
    **variables: str,
) -> Iterator[Process]:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    process = Process(folder, handler, python=python, mode=mode, variables=variables)
    try:
        yield process
    finally:
        process.close()


def ready(process: Process) -> Process:
    frame = process.receive()
    assert frame is not None
    assert frame.kind == frames.READY, frame
    assert frame.head["pid"] == process.process.pid
    return process


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
        assert not [line for line in document["stackTrace"] if "thawd" in line or "importlib" in line]
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


# --- the platform's side, with real processes ---


async def no_services(head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    return {"error": "there are none"}, b""


class Platform:
    """A spawner for one function, and what it starts."""

    def __init__(self, folder: Path, code: str, **function: Any) -> None:
        self.folder = folder
        (folder / "code").mkdir(exist_ok=True)
        (folder / "code" / "app.py").write_text(textwrap.dedent(code))
        self.told: list[str] = []
        self.metrics = Metrics()
        self.launcher = Launcher(log_folder=folder, log_max_bytes=1 << 20)
        self.spawner = Spawner(
            self.launcher,
            limiter=MemoryLimiter(),
            services=no_services,
            metrics=self.metrics,
            report=self.told.append,
        )
        self.version = self.make(**function)

    def make(self, *, python: str = sys.executable, **function: Any) -> Version:
        declared = Function(name="f", handler="app.handler", code=self.folder / "code", **{"timeout_s": 10, **function})
        variables = variables_of(declared, task_root=declared.code, python_version="3.11.7", buckets={}, own=os.environ)
        return Version(declared, 1, Path(python), "3.11.7", declared.code, variables)

    def log(self) -> list[bytes]:
        self.launcher.flush_logs()
        return [line.split(b"\t", 2)[2].rstrip(b"\n") for line in read_lines(self.folder / "f.log")]

    async def end(self) -> None:
        self.spawner.retire(self.version)
        self.launcher.children.kill_all()
        await within(self.launcher.children.all_ended())
        await asyncio.sleep(0.7)  # the patience with last words


@asynccontextmanager
async def platform(folder: Path, code: str, **function: Any) -> AsyncIterator[Platform]:
    made = Platform(folder, code, **function)
    try:
        yield made
    finally:
        await made.end()


def claim(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(300):
            await work()

    asyncio.run(main())


def invocation(event: Any = None) -> Invocation:
    return Invocation("f", json.dumps(event).encode(), time.monotonic() + 10)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_starts_of_both_kinds_serve_and_leave_no_descriptor_open(tmp_path: Path) -> None:
    async def work() -> None:
        before = descriptors()
        async with platform(tmp_path, "import os\ndef handler(e, c): return os.getpid()") as made:
            forked = await made.spawner.start(made.version)
            assert forked.kind == StartKind.FORK
            cold = await made.spawner.start(made.make(snapshot=False))  # same generation, so the same origin
            for environment in (forked, cold):
                result = await environment.invoke(invocation(), init_ms=None)
                assert json.loads(result.payload) == environment.child.pid  # type: ignore[union-attr]
                environment.kill()
                await within(environment.ended.wait())
        await until(lambda: descriptors() == before)

    claim(work)


def test_a_template_that_hangs_makes_nobody_wait_for_ever(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 1", init_timeout_s=1) as made:
            await made.spawner.prepare(made.version)
            template = made.spawner.origin(made.version).template
            assert template is not None
            assert template.child is not None
            os.kill(template.child.pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(60):
                    environment = await made.spawner.start(made.version)
            except InitError:
                return
            assert environment.kind == StartKind.COLD

    claim(work)


def test_a_template_that_is_killed_while_forks_are_asked_for_harms_none_of_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 1") as made:
            await made.spawner.prepare(made.version)
            template = made.spawner.origin(made.version).template
            assert template is not None
            starts = [asyncio.ensure_future(made.spawner.start(made.version)) for _ in range(4)]
            await asyncio.sleep(0)
            template.kill()
            environments = await within(asyncio.gather(*starts))
            for environment in environments:
                result = await environment.invoke(invocation(), init_ms=None)
                assert result.payload in (b"1",) or b"Runtime.ExitError" in result.payload

    claim(work)


def test_a_template_killed_now_and_then_is_always_started_again(tmp_path: Path) -> None:
    """A kill now and then, by an operator or for memory, must not end the forks of a version."""

    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 1") as made:
            kinds = []
            for _ in range(3):
                environment = await within(made.spawner.start(made.version))
                kinds.append(environment.kind)
                template = made.spawner.origin(made.version).template
                if template is not None:
                    template.kill()
                    await within(template.ended.wait())
            assert kinds == [StartKind.FORK] * 3

    claim(work)


def test_a_version_retired_before_its_start_begins_leaves_no_template_behind(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 1") as made:
            await made.spawner.prepare(made.version)
            made.spawner.retire(made.version)
            try:
                environment = await within(made.spawner.start(made.version))
                environment.kill()
                await within(environment.ended.wait())
            except (InitError, ServiceException):
                pass
            await until(lambda: len(made.launcher.children._alive) == 0)

    claim(work)


@pytest.mark.parametrize("snapshot", [True, False])
def test_an_interpreter_that_is_gone_is_a_service_exception_everywhere(tmp_path: Path, snapshot: bool) -> None:
    async def work() -> None:
        before = descriptors()
        async with platform(tmp_path, "", snapshot=snapshot, python="/nowhere/python") as made:
            with pytest.raises(ServiceException):
                await made.spawner.start(made.version)
            if snapshot:
                with pytest.raises(ServiceException):
                    await made.spawner.prepare(made.version)
        await until(lambda: descriptors() == before)

    claim(work)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_running_out_of_descriptors_leaks_none() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    free = [fd for fd in range(256) if not is_open(fd)]
    leaks = []
    for room in range(8):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[room], hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                Channels.open()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        leaks.append(descriptors() - before)
    assert leaks == [0] * 8


def test_channels_closed_twice_close_no_other_descriptors() -> None:
    """A cancelled fork closes its channels; the frame with them may still be unsent, and closes them again later."""
    channels = Channels.open()
    channels.close()
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(12)]
    try:
        try:
            channels.close_process_ends()
        except OSError:
            pass
        for fd in others:
            os.fstat(fd)
    finally:
        for fd in others:
            try:
                os.close(fd)
            except OSError:
                pass


def test_last_words_without_a_newline_are_in_the_log(tmp_path: Path) -> None:
    async def work() -> None:
        code = "import os\nos.write(2, b'my last words')\nos._exit(7)"
        async with platform(tmp_path, code, snapshot=False) as made:
            with pytest.raises(InitError, match="exit status 7"):
                await made.spawner.start(made.version)
        assert b"my last words" in made.log()

    claim(work)


def test_an_environment_killed_while_it_is_idle_is_known_to_be_unusable_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "_LAST_WORDS_S", 3600.0)  # it is not that patience which ends

    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 1") as made:
            environment = await within(made.spawner.start(made.version))
            assert environment.child is not None
            os.kill(environment.child.pid, signal.SIGKILL)
            await within(environment.ended.wait())

    claim(work)


def test_a_forked_process_that_was_reaped_before_it_is_watched_keeps_its_status() -> None:
    """FORKED and EXITED can come in one piece: the second is told before anyone has had the time to watch."""

    async def work() -> None:
        children = Children()
        process = subprocess.Popen(["true"])  # noqa: ASYNC220
        process.wait()
        children.report_exit(process.pid, 9)
        child = children.watch(process.pid)
        assert await within(child.ended) == 9

    claim(work)


def test_a_process_that_outlasts_the_functions_is_neither_ended_nor_awaited_with_them() -> None:
    async def work() -> None:
        children = Children()
        started = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2)]  # noqa: ASYNC220
        for process in started:
            process.returncode = 0  # `Children` reaps it, not Popen
        function, beside = (children.watch(process.pid) for process in started)
        beside.outlasts = True
        children.kill_all()
        await within(children.all_ended())
        assert (function.killed, beside.killed, beside.ended.done()) == (True, False, False)
        beside.kill()
        await within(beside.ended)

    claim(work)


def test_sweeping_strays_takes_no_exit_status_from_the_platforms_own_programs() -> None:
    """pip, for one, ends as our child and is awaited by asyncio; reaped by the sweep, its end is never learnt."""
    process = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    Children().kill_strays(lambda identifier: True, spare_unknown=True)
    assert process.wait() == 7


def test_a_process_without_variables_is_nobodys_only_if_it_was_so_a_while_ago_too() -> None:
    """One that executes a program has none for a moment, whoever's it is."""
    # In a process of its own: the children of this one are not all of this test.
    script = textwrap.dedent("""
        import signal, subprocess
        from thawd.environments.children import Children

        children = Children()
        process = subprocess.Popen(["sleep", "1000"], env={}, start_new_session=True)
        assert children.kill_strays(lambda identifier: True, spare_unknown=False, patience_s=1000)
        assert process.poll() is None
        assert children.kill_strays(lambda identifier: True, spare_unknown=False, patience_s=0)
        assert process.wait() == -signal.SIGKILL
        assert not children.kill_strays(lambda identifier: True, spare_unknown=False)
    """)
    subprocess.run([sys.executable, "-c", script], check=True)


HOSTILE = [
    frames.encode(frames.RESULT, {"duration_ms": "abc", "peak_kib": 0, "failed": False}, b"1"),
    frames.encode(frames.RESULT, {"duration_ms": "5", "peak_kib": "5", "failed": False}, b"1"),
    frames.encode(frames.RESULT, {"duration_ms": float("nan"), "peak_kib": 0, "failed": False}, b"1"),
    frames.encode(frames.RESULT, {"duration_ms": 1, "peak_kib": float("inf"), "failed": False}, b"1"),
    frames.encode(frames.RESULT, {"duration_ms": -1e300, "peak_kib": -5, "failed": False}, b"1"),
    frames.encode(frames.RESULT, [1], b"1"),
    frames.encode(frames.RESULT, None, b"1"),
    frames.encode(frames.RESULT, {"duration_ms": 1, "peak_kib": 1, "failed": False}, b"\xff is no text"),
    frames.encode(frames.READY, {}, b""),
    frames.encode(frames.INIT_ERROR, {}, b""),
    frames.encode(99, {}, b""),
    b"\xff" * 64,
    frames.HEADER.pack(200_000, 0, frames.RESULT) + b"[" * 200_000,
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_process_sends_its_invocation_ends_in_a_result_and_not_in_an_exception(
    tmp_path: Path, data: bytes
) -> None:
    async def work() -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        version = Platform(tmp_path, "").version
        stream = LogStream(FunctionLog(tmp_path / "f.log", max_bytes=1 << 20), version="1", identifier="x")
        channels = Channels.open()
        theirs = socket.socket(fileno=os.dup(channels.process_ends[0]))
        environment = Environment(version, identifier="x", kind=StartKind.COLD, stream=stream, channels=channels)
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)  # noqa: ASYNC220
        process.returncode = 0
        channels.close_process_ends()
        children = Children()
        await environment.connect(no_services)
        environment.adopt(children.watch(process.pid))
        theirs.sendall(frames.encode(frames.READY, {"pid": 1, "init_ms": 1.0}))
        await within(environment.ready)
        running = asyncio.ensure_future(environment.invoke(invocation(), init_ms=None))
        await asyncio.sleep(0)
        theirs.sendall(data)
        theirs.settimeout(None)
        try:
            result = await within(running)
            assert result.duration_ms >= 0
            json.loads(result.payload)
        finally:
            environment.kill()
            theirs.close()
            await within(environment.ended.wait())
            await asyncio.sleep(0.01)
        assert complaints == []

    claim(work)
