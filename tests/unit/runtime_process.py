"""A process of `thawd.runtime` with the platform's ends of its channels, over which a test exchanges frames."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from thawd.wire import frames

BOOTSTRAP = Path(__file__).parents[2] / "src" / "thawd" / "runtime" / "bootstrap.py"


class Process:
    """A runtime process and the test's ends of its channels."""

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
        """Invoke, and return whether the function failed and the answer. The process must keep running."""
        whole = {"id": "rid-1", "arn": "arn:f", "left_ms": 3000, **head}
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        self.control.sendall(frames.encode(frames.INVOKE, whole, body))
        frame = self.receive()
        assert frame is not None, f"it has ended: {self.printed()}"
        assert frame.kind == frames.RESULT
        assert frame.head["duration_ms"] >= 0
        return frame.head["failed"], json.loads(frame.body)

    def printed(self) -> str:
        """Return what it has written so far."""
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
    """Run a process with this code, and end it after the block."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    process = Process(folder, handler, python=python, mode=mode, variables=variables)
    try:
        yield process
    finally:
        process.close()


def ready(process: Process) -> Process:
    """Run a process and wait until init is over."""
    frame = process.receive()
    assert frame is not None
    assert frame.kind == frames.READY, frame
    assert frame.head["pid"] == process.process.pid
    return process
