"""Processes that functions start and leave running: they end with their environment or the server."""

from __future__ import annotations

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .conftest import Project, Running, eventually, processes_of
from .handler_actions import CODE


def test_no_process_outlives_a_server_that_is_killed(project: Project) -> None:
    project.code(CODE)
    project.config(
        '[functions.app]\nhandler = "app.handler"\n[functions.cold]\nhandler = "app.handler"\nsnapshot = false\n'
    )
    with project.up() as running:
        with ThreadPoolExecutor(4) as threads:
            for name in ("app", "cold", "app", "cold"):
                threads.submit(lambda name=name: running.invoke(name, {"do": "sleep", "s": 60}))
            eventually(
                lambda: all(running.function(n)["environments"]["busy"] == 2 for n in ("app", "cold")), what="busy ones"
            )
            assert processes_of(project.data)
            running.process.kill()
        eventually(lambda: not processes_of(project.data), what="the end of all processes")


def test_detached_processes_end_with_their_environment_or_at_the_next_start(project: Project) -> None:
    seconds = 100_000 + os.getpid()  # no other test run on this machine has processes that sleep for this long
    project.code(
        f"""
        import os, subprocess

        def handler(event, context):
            child = subprocess.Popen(["setsid", "-f", "sleep", "{seconds}"], env={{"PATH": os.environ["PATH"]}})
            child.wait()
            if event.get("fork"):
                between = os.fork()
                if between == 0:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                    import time
                    time.sleep({seconds})
                os.waitpid(between, 0)
            return os.getpid()
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')

    def sleepers() -> list[str]:
        """Find the detached processes, including those killed before setsid had become sleep."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (entry / "cmdline").read_bytes().endswith(b"sleep\x00%d\x00" % seconds):
                    found.append(entry.name)
        return found

    def detached(running: Running) -> int:
        """Return the environment's process id once the process that it detached runs.

        thawd cannot tell which environment detached it. So it ends when any environment ends, such as the one in which
        the snapshot was tested.
        """
        pids = [0]
        eventually(lambda: pids.append(running.invoke("app", {})[0]) or sleepers(), what="the detached process")
        return pids[-1]

    with project.up() as running:
        os.kill(detached(running), signal.SIGKILL)
        eventually(lambda: not sleepers(), what="its end with its environment")
        detached(running)
    eventually(lambda: not sleepers(), what="its end with the server")
    with project.up() as running:
        running.invoke("app", {"fork": True})
        running.process.kill()
        running.process.wait()
        assert processes_of(project.data)
        with project.up():
            eventually(lambda: not processes_of(project.data), what="the end of all, there being no template")
    # without thawd's variables and without a cgroup, thawd cannot tell whose process it was
    for pid_text in sleepers():
        os.kill(int(pid_text), signal.SIGKILL)


def test_children_of_a_handler_leave_no_zombies(project: Project) -> None:
    project.code(
        """
        import os

        def handler(event, context):
            for _ in range(50):
                if os.fork() == 0:
                    os._exit(0)
            return os.getpid()
        """
    )
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up() as running:
        pid, _ = running.invoke("app", {})
        os.kill(pid, signal.SIGKILL)

        def zombies() -> int:
            children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
            states = []
            for child in children:
                with contextlib.suppress(OSError):  # it was reaped while the test read the list
                    states.append(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0])
            return states.count("Z")

        eventually(lambda: zombies() == 0, what="reaped children")


def test_a_function_that_floods_its_log_slows_nobody_else(project: Project) -> None:
    """It makes no difference whether init or the handler left the flooding process behind."""
    project.code(
        """
        import subprocess
        CHILD = subprocess.Popen(["yes"])

        def handler(event, context):
            return 1
        """,
        "flood.py",
    )
    project.code(CODE)
    project.config(
        """
        log_max_mb = 1
        [functions.flood]
        handler = "flood.handler"
        [functions.cold]
        handler = "flood.handler"
        snapshot = false
        [functions.app]
        handler = "app.handler"
        """
    )
    with project.up() as running:
        running.invoke("cold", {})
        for _ in range(100):
            assert running.invoke("app", {})[1] is None
        # This does not test a timing. It only rules out a server that does nothing but read the log.
        kinds = running.function("app")["invocations"]
        assert kinds["warm"]["p50_ms"] < 50 * max(1.0, kinds["thaw"]["p50_ms"])
        logs = sum(path.stat().st_size for path in (project.data / "logs").iterdir())
        assert logs < 2 * 4 * 3 * (1 << 20)
