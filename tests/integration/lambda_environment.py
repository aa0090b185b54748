"""What Lambda has around a package: AWS's runtime client in an environment of its own, and a small Runtime API.

`bare_python` installs awslambdaric and boto3 once into `build/`, from the package index.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).parents[2] / "build" / f"awslambdaric-{sys.version_info[0]}.{sys.version_info[1]}"
_ENVIRON = dict(os.environ)
"""As the tests were started: a test may direct its own installations elsewhere."""
_PREFIX = "/2018-06-01/runtime/"
_HEADERS = {
    "Content-Type": "application/json",
    "Lambda-Runtime-Aws-Request-Id": "8f8e5c5e-0a5a-4a5e-9b5e-2f5e5c5e0a5a",
    "Lambda-Runtime-Deadline-Ms": "4102444800000",
    "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:000000000000:function:f",
    "Lambda-Runtime-Trace-Id": "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=0",
}


@cache
def _made() -> str | None:
    """Make the environment. Return why that failed, or None."""
    marker = _FOLDER / ".complete"
    if marker.exists():
        return None
    python = _FOLDER / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(_FOLDER)],
        [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "awslambdaric>=3", "boto3>=1.34"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, env=_ENVIRON)
        if done.returncode != 0:
            return (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
    marker.touch()
    return None


def bare_python() -> Path:
    """Return an interpreter that has awslambdaric and boto3 and nothing else. Skips the test if there is none."""
    reason = _made()
    if reason is not None:
        pytest.skip(f"awslambdaric cannot be installed: {reason}")
    return _FOLDER / "bin" / "python"


class _Server(ThreadingHTTPServer):
    """A server that says nothing about clients that were killed."""

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class LambdaService:
    """A Runtime API for one function, which also serves the files of a folder, as S3 does.

    Attributes:
        fetched: how often each file was requested, by path.
        before_body: called with the path before a file is sent, with half of it sent already.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: Counter[str] = Counter()
        self.before_body: Callable[[str], object] = lambda path: None
        self._events: queue.Queue[bytes | None] = queue.Queue()
        self._answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                service._get(self)

            def do_POST(self) -> None:
                service._post(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> LambdaService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _ in range(8):
            self._events.put(None)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def start(self, python: Path, handler: str, *, task: Path, tmp: Path, **environ: str) -> subprocess.Popen[bytes]:
        """Start an environment as Lambda does, in the folder of an unpacked package."""
        tmp.mkdir(exist_ok=True)
        return subprocess.Popen(
            [python, "-m", "awslambdaric", handler],
            cwd=task,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env={
                "AWS_LAMBDA_RUNTIME_API": self.address,
                "AWS_LAMBDA_FUNCTION_NAME": "f",
                "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1",
                "LAMBDA_TASK_ROOT": str(task),
                "TMPDIR": str(tmp),
                **environ,
            },
        )

    def answer(self, event: Any, python: Path, handler: str, *, task: Path, tmp: Path, **environ: str) -> Any:
        """Start an environment, and return its answer to an event, or its error's document."""
        self._events.put(json.dumps(event).encode())
        process = self.start(python, handler, task=task, tmp=tmp, **environ)
        try:
            return self.next_answer()[1]
        finally:
            process.kill()
            process.wait()

    def invoke(self, event: Any) -> None:
        """Let the next environment that asks have an event."""
        self._events.put(json.dumps(event).encode())

    def next_answer(self) -> tuple[str, Any]:
        """Return the next answer: ``response``, or ``error`` or ``init/error``, and the document."""
        return self._answers.get(timeout=120)

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        if request.path == _PREFIX + "invocation/next":
            event = self._events.get()
            if event is not None:
                self._send(request, 200, event, _HEADERS)
            return
        path = request.path.partition("?")[0]
        self.fetched[path] += 1
        file = self.folder / path.rpartition("/")[2]
        if not file.is_file():
            self._send(request, 404, b"", {})
            return
        content = file.read_bytes()
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        half = len(content) // 2
        try:
            request.wfile.write(content[:half])
            request.wfile.flush()
            self.before_body(path)
            request.wfile.write(content[half:])
        except OSError:
            request.close_connection = True  # the client has gone

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        body = self._body(request)
        self._send(request, 202, b"{}", {})
        self._answers.put((request.path.removeprefix(_PREFIX).removeprefix("invocation/id/"), json.loads(body)))

    def _body(self, request: BaseHTTPRequestHandler) -> bytes:
        if request.headers["Transfer-Encoding"] != "chunked":
            return request.rfile.read(int(request.headers["Content-Length"]))
        body = b""
        while size := int(request.rfile.readline(), 16):
            body += request.rfile.read(size)
            request.rfile.readline()
        request.rfile.readline()
        return body

    def _send(self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
