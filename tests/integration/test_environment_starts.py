"""How environments start: with which interpreter, forked or cold; and what happens when init fails."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .conftest import Project, Running, eventually
from .handler_actions import FORKED


def burst(running: Running, count: int, event: dict[str, Any]) -> list[tuple[Any, str | None]]:
    """Run `count` concurrent invocations."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda _: running.invoke("app", event), range(count)))


BROKEN = {
    "Runtime.ImportModuleError": ("app.handler", "import no_such_module\n", "No module named 'no_such_module'"),
    "Runtime.UserCodeSyntaxError": ("app.handler", "def handler(:\n", "Syntax error in module 'app'"),
    "Runtime.HandlerNotFound": ("app.handler", "other = 1\n", "Handler 'handler' missing on module 'app'"),
    "Runtime.HandlerNotFound ": ("app.handler", "handler = 1\n", "cannot be called: it is a int"),
    "ZeroDivisionError": ("app.handler", "x = 1 / 0\n", "division by zero"),
    "KeyError": ("app.handler", "import os\nx = os.environ['MODEL']\n", "'MODEL'"),
    "Runtime.ExitError": ("app.handler", "import os\nos._exit(3)\n", "exit status 3"),
    "Runtime.ExitError ": ("app.handler", "import sys\nsys.exit(5)\n", "exit status 5"),
}


def test_an_init_error_is_told_once_and_does_not_loop(project: Project) -> None:
    config = ""
    for number, (handler, code, _) in enumerate(BROKEN.values()):
        project.code(code, f"bad{number}/app.py")
        config += f'[functions.bad{number}]\nhandler = "{handler}"\ncode = "bad{number}"\n'
    project.code("def handler(event, context):\n    return 1\n", "good/good.py")
    project.config(f'{config}[functions.good]\nhandler = "good.handler"\ncode = "good"\n')
    with project.up() as running:
        for number, (kind, (_, _, said)) in enumerate(BROKEN.items()):
            name = f"bad{number}"
            function = running.function(name)
            assert function["state"] == "Failed"
            assert function["reason"].startswith((kind.strip(), "Runtime exited"))
            assert said in function["reason"]
            for _ in range(5):
                document, error = running.invoke(name, {})
                assert error == "Unhandled"
                assert document["errorType"] == kind.strip()
                assert said in document["errorMessage"]
            assert running.invoke("good", {}) == (1, None)
            log = (project.data / "logs" / f"{name}.log").read_text()
            assert 1 <= log.count("INIT_START") <= 2  # once when published, and once more with the first invocation
        eventually(
            lambda: sum("init failed" in line for line in running.output) >= len(BROKEN), what="the word of each"
        )


def test_an_init_phase_over_the_memory_limit_is_ended(project: Project) -> None:
    project.code(
        """
        import time
        data = bytearray(400 << 20)
        for at in range(0, len(data), 4096):
            data[at] = 1
        time.sleep(100)

        def handler(event, context):
            return 1
        """
    )
    project.config(
        """
        [functions.forked]
        handler = "app.handler"
        memory_mb = 128
        [functions.cold]
        handler = "app.handler"
        memory_mb = 128
        snapshot = false
        """
    )
    with project.up() as running:
        assert "signal: killed" in running.function("forked")["reason"]
        for name in ("forked", "cold"):
            document, error = running.invoke(name, {})
            assert error == "Unhandled"
            assert document["errorMessage"].endswith("signal: killed")


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        # Each way to start with one version, and each version with one way. The tests with `running` cover the rest.
        ("3.9", "thaw"),
        ("3.9", "fork"),
        ("3.9", "cold"),
        ("3.10", "fork"),
        ("3.11", "cold"),
        ("3.12", "thaw"),
        ("3.13", "thaw"),
    ],
)
def test_function_interpreters_from_3_9_to_3_13_work(project: Project, version: str, kind: str) -> None:
    project.code(
        """
        import sys
        import thawd

        def handler(event, context):
            thawd.table("t").put("version", {"version": "%d.%d" % sys.version_info[:2]})
            if event:
                raise KeyError("x")
            return thawd.table("t").get("version")
        """
    )
    snapshot = str(kind != "cold").lower()
    project.config(
        f'[functions.app]\nhandler = "app.handler"\npython = "{version}"\nsnapshot = {snapshot}\n[tables.t]\n'
    )
    with project.up(environ=FORKED if kind == "fork" else {}) as running:
        function = running.function("app")
        if function["state"] == "Failed" and "was not found" in str(function["reason"]):
            pytest.skip(f"no Python {version} on this machine")
        assert function["start"] == kind, function["start_reason"]
        assert running.invoke("app", {}) == ({"version": version}, None)
        document, _ = running.invoke("app", {"fail": True})
        assert document["errorType"] == "KeyError"


def test_the_runtime_needs_no_thawd_in_the_functions_interpreter(project: Project, tmp_path: Path) -> None:
    environment = tmp_path / "bare"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(environment)], check=True)
    project.code(
        """
        import sys, thawd
        def handler(event, context):
            return [sys.prefix, "msgspec" in sys.modules, any("msgspec" in p for p in sys.path)]
        """
    )
    project.config(f'[functions.app]\nhandler = "app.handler"\npython = "{environment}"\n')
    with project.up() as running:
        assert running.invoke("app", {}) == ([str(environment), False, False], None)


def test_a_function_with_native_threads_falls_back_to_cold_and_says_why(project: Project) -> None:
    project.code(
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="background").start()

        def handler(event, context):
            return threading.active_count()
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up(environ=FORKED) as running:
        function = running.function("app")
        assert function["start"] == "cold"
        assert "background" in function["start_reason"]
        assert running.invoke("app", {}) == (2, None)
        running.until_said("started cold")


def test_a_thread_pool_that_handles_forks_does_not_hinder_one(project: Project) -> None:
    """OpenBLAS stops its threads for a fork and starts them again. Nearly every function uses NumPy."""
    pytest.importorskip("numpy")
    project.code(
        """
        import os
        import numpy

        MATRIX = numpy.ones((800, 800))
        MATRIX @ MATRIX
        THREADS = len(os.listdir("/proc/self/task"))

        def handler(event, context):
            return [float((MATRIX @ MATRIX)[0, 0]), THREADS]
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\nenvironment = { OMP_NUM_THREADS = "4" }\n')
    with project.up(environ=FORKED) as running:
        assert running.function("app")["start"] == "fork", running.function("app")["start_reason"]
        for (product, threads), error in burst(running, 4, {}):
            assert (product, error) == (800.0, None)
            assert threads > 1


def test_an_ignored_sigchld_does_not_hinder_a_fork(project: Project) -> None:
    project.code(
        """
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        def handler(event, context):
            return 1
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up(environ=FORKED) as running:
        assert running.function("app")["start"] == "fork"
        assert running.invoke("app", {}) == (1, None)


@pytest.mark.parametrize("kind", ["thaw", "fork"])
def test_random_numbers_differ_between_environments(project: Project, kind: str) -> None:
    project.code(
        """
        import random, time, uuid
        def handler(event, context):
            time.sleep(0.5)
            return [random.random(), str(uuid.uuid4())]
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up(environ=FORKED if kind == "fork" else {}) as running:
        seen = [tuple(answer) for answer, _ in burst(running, 4, {})]
    assert len({s[0] for s in seen}) == len({s[1] for s in seen}) == 4
