"""A runtime process that is to be frozen: what it reports at each step, also if it cannot be frozen."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.interpreters_here import INTERPRETERS
from tests.unit.runtime_process import Process, ready, running
from thawd.snapshot import engine
from thawd.snapshot.engine import LIBRARY_NAME, native_folder, unavailable
from thawd.wire import frames

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

CODE = """
import os
CALLS = []
def handler(event, context):
    CALLS.append(event)
    print("called", context.aws_request_id)
    return event
"""


@contextmanager
def frozen(
    folder: Path, code: str, *, prime: Any = None, python: str = sys.executable
) -> Iterator[tuple[Process, Path]]:
    """Start a process and ask it to freeze itself into a file."""
    image = folder / "image"
    with running(folder, code, mode="snapshot", python=python) as process:
        ready(process)
        head = {
            "path": str(image),
            "library": str(Path(native_folder() or "") / LIBRARY_NAME),
            "connections": "drop",
            "listeners": "refuse",
            "ids": [] if prime is None else ["one", "two"],
            "arn": "arn:f",
            "left_ms": 5000,
            "disk": None,
        }
        process.control.sendall(frames.encode(frames.FREEZE, head, json.dumps(prime).encode()))
        yield process, image


def stages(process: Process) -> tuple[list[str], frames.Frame]:
    """Return the stages that it reports, and the next frame."""
    passed = []
    while True:
        frame = process.receive()
        assert frame is not None, process.printed()
        if frame.kind != frames.STAGE:
            return passed, frame
        passed.append(frame.head["stage"])


@pytest.mark.parametrize("python", INTERPRETERS)
def test_it_freezes_itself_and_tells_each_stage(tmp_path: Path, python: str) -> None:
    with frozen(tmp_path, CODE, prime={"x": 1}, python=python) as (process, image):
        passed, frame = stages(process)
        assert passed == ["hooks", "priming", "freezing"]
        assert frame.kind == frames.FROZEN
        assert frame.head["refused"] is None
        assert frame.head["fork_refused"] is None
        assert frame.head["answers_differ"] is False
        assert json.loads(frame.body) == {"x": 1}
        assert image.stat().st_size == frame.head["image_bytes"] > frame.head["data_bytes"] > 0
        assert image.stat().st_mode & 0o777 == 0o600
        assert process.invoke({"y": 2}) == (False, {"y": 2}), "the original answers on"
        printed = process.printed().split("\n")
        assert printed[0] == "PRIME_START RequestId: one"
        assert printed[1] == "called one"
        assert printed[2].startswith("PRIME_END RequestId: one\tDuration: ")
        assert printed[3:5] == ["PRIME_START RequestId: two", "called two"]
        process.control.sendall(frames.encode(frames.GO_ON, {}))
        frame = process.receive()
        assert frame is not None
        assert (frame.kind, frame.head) == (frames.STAGE, {"stage": "template"})
        assert forks(process)


def forks(process: Process) -> bool:
    """Return whether the process is a template."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open("/dev/null", "w") as nothing:
        frame = frames.encode(frames.FORK, {"n": 1, "environ": {}})
        fds = [theirs.fileno(), theirs.fileno(), theirs.fileno(), nothing.fileno()]
        socket.send_fds(process.control, [frame], fds)
        answer = process.receive()
        return answer is not None and answer.kind == frames.FORKED and "pid" in answer.head


def test_without_a_priming_event_it_runs_none(tmp_path: Path) -> None:
    with frozen(tmp_path, CODE) as (process, _):
        passed, frame = stages(process)
        assert passed == ["hooks", "freezing"]
        assert (frame.head["refused"], frame.body) == (None, b"")
        assert "called" not in process.printed()


LOOP = """
import asyncio, threading, uvloop
started = threading.Event()

async def forever():
    started.set()
    await asyncio.sleep(1000)

def work():
    LOOP.run_until_complete(forever())

threading.Thread(target=work, daemon=True).start()
started.wait()

def handler(event, context):
    return 1
"""


@pytest.mark.parametrize("loop", ["asyncio.new_event_loop()", "uvloop.new_event_loop()"])
def test_a_loop_that_runs_in_another_thread_is_no_reason(tmp_path: Path, loop: str) -> None:
    with frozen(tmp_path, LOOP.replace("LOOP", loop)) as (process, image):
        _, frame = stages(process)
        assert (frame.kind, frame.head["refused"]) == (frames.FROZEN, None)
        assert image.exists()


def test_a_loop_that_has_ended_is_no_reason(tmp_path: Path) -> None:
    code = "import asyncio\nasyncio.run(asyncio.sleep(0))\nLOOP = asyncio.new_event_loop()\nLOOP.close()\n" + CODE
    with frozen(tmp_path, code) as (process, image):
        _, frame = stages(process)
        assert frame.head["refused"] is None
        assert image.exists()


def test_an_image_that_cannot_be_written_is_told_and_the_process_lives(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    with frozen(tmp_path, CODE) as (process, image):
        _, frame = stages(process)
        assert frame.kind == frames.FROZEN
        assert "image" in frame.head["refused"]
        assert not list(image.iterdir())
        assert process.invoke({"y": 2}) == (False, {"y": 2})


def test_a_handler_that_forks_while_it_is_primed_freezes_once(tmp_path: Path) -> None:
    code = """
        import os
        def handler(event, context):
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
            return "parent" if pid else "child"
    """
    with frozen(tmp_path, code, prime={}) as (process, _):
        _, frame = stages(process)
        assert (frame.head["refused"], json.loads(frame.body)) == (None, "parent")


def test_the_descriptors_of_the_platform_are_under_known_numbers(tmp_path: Path) -> None:
    code = """
        import os
        def handler(event, context):
            return sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
    """
    with frozen(tmp_path, code) as (process, _):
        stages(process)
        _, numbers = process.invoke({})
        # 6 is the descriptor of the folder while it is being listed.
        assert numbers == [0, 1, 2, *frames.DESCRIPTORS, 6]


def test_it_ends_when_the_platform_is_gone_before_and_after_the_freeze(tmp_path: Path) -> None:
    with running(tmp_path, CODE, mode="snapshot") as process:
        ready(process)
        process.control.shutdown(socket.SHUT_RDWR)
        assert process.process.wait(120) == 0
    with frozen(tmp_path, CODE) as (process, _):
        stages(process)
        process.control.shutdown(socket.SHUT_RDWR)
        assert process.process.wait(120) == 0


def test_a_thread_that_was_woken_and_waits_for_a_processor_is_waited_for() -> None:
    # Given a thread that has only the time that a busy processor leaves over
    cpu = min(os.sched_getaffinity(0))
    ready, stop = threading.Event(), threading.Event()

    def starve() -> None:
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        ready.set()
        while not stop.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)  # without the GIL

    busy = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    computes = threading.Thread(target=starve)
    computes.start()
    ready.wait()
    sleep = engine._load(engine.freeze_library_path()).thawd_others_sleep
    # Then a thread that computes is not waited for
    assert sleep(60_000_000_000)
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # and one that is not let to compute is.
        assert any(not sleep(1_000_000) for _ in range(20))
        process.kill()
    stop.set()
    computes.join()
    assert sleep(60_000_000_000)
