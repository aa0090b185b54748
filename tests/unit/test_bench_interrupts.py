"""Ctrl-C while `thawd bench` measures: the first one ends the load; the second one does not wait for answers.

Each test runs in a separate process, which sends the signal to itself. In pytest's process, a late signal would end the
tests.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.answering import OK, Request, answering
from tests.unit.test_bench_load import closed
from thawd.bench.load import Load
from thawd.errors import StoreError


def the_first_ends_the_load_and_what_was_measured_is_the_run() -> None:
    def answer(request: Request) -> bytes:
        if request.index == 5:
            interrupt()
        return OK

    with answering(answer) as server:
        run = closed(server.url, count=None)  # without end
    assert run.interrupted
    assert len(run.columns) >= 6


def the_second_gives_up_what_is_under_way_and_keeps_what_was_measured() -> None:
    ended = threading.Event()
    heard: list[bool] = []

    def answer(request: Request) -> bytes:
        if request.index == 3:
            interrupt()
            ended.wait()
        return OK

    def progress(load: Load, for_s: float) -> None:
        if load.stopped and not heard:  # the first one has been handled; a third one would end the process
            heard.append(True)
            interrupt()

    with answering(answer) as server:
        run = closed(server.url, count=10, progress=progress)
        ended.set()
    assert run.interrupted
    assert run.columns.outcome == [0] * 3
    assert run.notes == ["1 request was in flight when the run was ended; it is not counted"]


def it_ends_a_load_whose_connections_do_not_come_about() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and does not answer the TLS handshake
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(StoreError, match=r"cannot be reached: no connection within 0\.2 s"):
            closed(url, count=3, timeout_s=0.2)
        loads: list[Load] = []

        def progress(load: Load, for_s: float) -> None:
            loads.append(load)
            if len(loads) == 1:
                interrupt()

        run = closed(url, count=3, at_once=2, progress=progress)
    assert run.interrupted
    assert len(run.columns) == 0


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    "claim",
    [
        the_first_ends_the_load_and_what_was_measured_is_the_run,
        the_second_gives_up_what_is_under_way_and_keeps_what_was_measured,
        it_ends_a_load_whose_connections_do_not_come_about,
    ],
    ids=lambda claim: claim.__name__,
)
def test_ctrl_c(claim: Callable[[], None]) -> None:
    program = f"from {__name__} import {claim.__name__} as claim; claim()"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
