"""`thawd.environments.processor_time`: how much processor time processes use, and whether they run or wait."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import pause
from thawd.environments.processor_time import Usage, runs_or_waits, usage_of

MS = 1_000_000


def test_the_usage_of_a_process_is_read_with_that_of_its_threads() -> None:
    program = (
        "import hashlib, sys, threading\n"
        "work = lambda: hashlib.pbkdf2_hmac('sha256', b'', b'', 200_000)\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "[each.start() for each in threads]; [each.join() for each in threads]\n"
        "import time; print(time.process_time_ns(), flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told_ns = int(child.stdout.readline())
    found = Usage.of(child.pid)
    assert 0 <= found.ran_ns - told_ns < 50 * MS
    assert found.waited_ns >= 0
    environment: Any = SimpleNamespace(child=child)
    begun_s = time.monotonic()
    while runs_or_waits(environment):  # until it blocks on its standard input
        pause(begun_s)
    child.communicate("")
    assert not runs_or_waits(environment)
    with pytest.raises(OSError):
        Usage.of(child.pid)


def test_a_process_is_seen_to_run_if_any_of_its_threads_does() -> None:
    program = (
        "import sys, threading\n"
        "def work():\n"
        "    print(flush=True)\n"
        "    while True: pass\n"
        "threading.Thread(target=work, daemon=True).start(); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        environment: Any = SimpleNamespace(child=child)
        assert runs_or_waits(environment)
        child.kill()


def test_an_environment_without_a_process_has_no_usage() -> None:
    environment: Any = SimpleNamespace(child=None)
    assert usage_of(environment) is None
    assert not runs_or_waits(environment)
