"""Between invocations nothing in an environment runs; everything continues with the next invocation."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Project, eventually, processes_of

CODE = """
    import os, subprocess, sys, threading, time, signal

    LINK = (
        "import subprocess, sys, time; code, left = sys.argv[1], int(sys.argv[2]);"
        "left and subprocess.Popen([sys.executable, '-c', code, code, str(left - 1)], start_new_session=True);"
        "time.sleep(1000)"
    )
    counted = 0
    continued = 0
    children = []

    def count():
        global counted
        while True:
            counted += 1
            time.sleep(0.001)

    def on_continue(number, frame):
        global continued
        continued += 1

    def handler(event, context):
        if event == "thread":
            threading.Thread(target=count, daemon=True).start()
        elif event == "watch":
            signal.signal(signal.SIGCONT, on_continue)
        elif event == "child":
            children.append(subprocess.Popen(["sleep", "1000"]))
            return children[-1].pid
        elif event == "session":
            children.append(subprocess.Popen(["sh", "-c", "sleep 1000; true"], start_new_session=True))
            return children[-1].pid
        elif event == "orphan":
            done = subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE)
            return int(done.stdout)
        elif event == "chain":
            subprocess.Popen([sys.executable, "-c", LINK, LINK, "6"], start_new_session=True)
        elif event == "writer":
            children.append(subprocess.Popen(["sh", "-c", "while :; do echo " + "x" * 3000 + "; done"]))
            return children[-1].pid
        elif isinstance(event, list):
            return [open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] for pid in event]
        elif event == "end":
            children[-1].kill()
            children[-1].wait()
        return {"pid": os.getpid(), "counted": counted, "continued": continued, "clock": time.monotonic()}
"""


def state(pid: int) -> str:
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return "gone" if letter == "Z" else letter


def ticks(pid: int) -> int:
    """Return the processor time used, in clock ticks."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def stopped(*pids: int) -> None:
    for pid in pids:
        eventually(lambda pid=pid: state(pid) == "T", what=f"the stop of {pid}")


@pytest.fixture
def ready(project: Project) -> Project:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\n')
    return project


@pytest.mark.serial
@pytest.mark.parametrize("options", ["", "snapshot = false\n"])
def test_a_thread_does_not_run_on_and_goes_on_with_the_next_invocation(project: Project, options: str) -> None:
    project.code(CODE)
    project.config(f'[functions.f]\nhandler = "app.handler"\n{options}')
    with project.up() as server:
        first, _ = server.invoke("f", "thread")
        stopped(first["pid"])
        used = ticks(first["pid"])
        time.sleep(2)  # only waiting can show that nothing happens
        assert ticks(first["pid"]) == used
        second, _ = server.invoke("f")
        assert second["pid"] == first["pid"]
        # If it had continued meanwhile, it would have counted to about 2,000.
        assert second["counted"] < 1000
        assert second["clock"] - first["clock"] > 2
        counts = [second["counted"]]
        eventually(lambda: counts.append(server.invoke("f")[0]["counted"]) or counts[-1] > counts[0] + 20)


def test_children_are_stopped_wherever_they_went(ready: Project) -> None:
    with ready.up() as server:
        pid = server.invoke("f")[0]["pid"]
        others = [server.invoke("f", event)[0] for event in ("child", "session", "orphan")]

        def grandchildren() -> list[int]:
            return [int(pid) for pid in Path(f"/proc/{others[1]}/task/{others[1]}/children").read_text().split()]

        # The shell may have been stopped before it had started its child.
        (grandchild,) = eventually(lambda: server.invoke("f") and grandchildren(), what="the child of a child")
        stopped(pid, *others, grandchild)
        # All are continued together: when the next invocation looks, none is stopped any more.
        assert "T" not in server.invoke("f", [pid, *others, grandchild])[0]
        stopped(pid, *others, grandchild)
    eventually(lambda: {state(other) for other in (pid, *others, grandchild)} == {"gone"}, what="the end of all")


def test_a_chain_of_sessions_each_started_by_the_other_ends_with_the_server(ready: Project) -> None:
    with ready.up() as server:
        server.invoke("f", "chain")
        # The chain grows while the environment runs, and is stopped as a whole. `up` checks that all have ended.
        eventually(lambda: server.invoke("f") and len(processes_of(ready.data)) >= 8, what="the chain")
        # One that ended while it was listed is not listed any more.
        eventually(lambda: {state(pid) for pid in processes_of(ready.data)} == {"T"}, what="the stop of all")


def test_one_that_is_stopped_ends_when_it_is_idle_for_too_long(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\nidle_timeout_s = 3\n')
    with project.up() as server:
        pid = server.invoke("f", "child")[0]
        stopped(pid)
        eventually(lambda: state(pid) == "gone", what="the end")
        assert server.invoke("f")[1] is None


def test_those_that_are_stopped_die_with_a_server_that_is_killed(ready: Project) -> None:
    with ready.up() as server:
        pid = server.invoke("f")[0]["pid"]
        child = server.invoke("f", "child")[0]
        stopped(pid, child)
        server.stop(number=signal.SIGKILL)
        eventually(lambda: (state(pid), state(child)) == ("gone", "gone"), what="their end")


def test_a_child_that_was_stopped_while_it_wrote_goes_on_writing(ready: Project) -> None:
    with ready.up() as server:
        pid = server.invoke("f")[0]["pid"]
        child = server.invoke("f", "writer")[0]
        stopped(pid, child)
        for _ in range(20):
            answer, error = server.invoke("f")
            assert (answer["pid"], error) == (pid, None)
        server.invoke("f", "end")
        lines: list[str] = []

        def read() -> bool:
            lines[:] = ready.command("logs", "f", "--raw", "-n", "100000").stdout.splitlines()
            return "x" * 3000 in lines

        eventually(read, what="the log")
        # A line is split only where the platform's own lines came in between.
        assert [line for line in lines if set(line) == {"x"} and len(line) > 3000] == []


def test_provisioned_ones_are_stopped_and_answer(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\nprovisioned_concurrency = 2\nsnapshot = false\n')
    with project.up() as server:
        pids = processes_of(project.data)
        assert len(pids) >= 2
        eventually(lambda: [state(pid) for pid in processes_of(project.data)].count("T") == 2, what="their stop")
        assert server.invoke("f")[0]["pid"] in pids


def test_templates_are_not_stopped_and_fork_while_their_forks_are(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\n')
    with project.up(environ={"THAWD_SNAPSHOTS": "off"}) as server:
        pid = server.invoke("f")[0]["pid"]
        stopped(pid)
        (template,) = [other for other in processes_of(project.data) if other != pid]
        eventually(lambda: state(template) == "S", what="the template's rest")
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(server.function("f")["environments"].values()), what="the end")
        assert server.invoke("f")[0]["pid"] != pid
        eventually(lambda: state(template) == "S", what="the template's rest")


def test_a_function_may_keep_its_threads_running(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\nfreeze_idle = false\n')
    with project.up() as server:
        first, _ = server.invoke("f", "thread")
        time.sleep(2)  # the test needs time to pass
        second: Any = server.invoke("f")[0]
        assert second["pid"] == first["pid"]
        assert second["counted"] > first["counted"] + 100


def test_a_handler_that_watches_for_it_sees_that_it_was_continued(ready: Project) -> None:
    with ready.up() as server:
        pid = server.invoke("f", "watch")[0]["pid"]
        stopped(pid)
        assert server.invoke("f")[0]["continued"] == 1
