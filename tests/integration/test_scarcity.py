"""A machine with too few threads or too little memory: a start reports it and ends; a running server continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from botocore.exceptions import ClientError

from .conftest import DEADLINE_S, Project, Running, eventually

# Loaded by the server's interpreter. Starting a thread fails, as when the kernel refuses it, after `THREADS` threads or
# while the file `no-threads` exists.
REFUSING = """
import os
import threading

started = 0
real = threading.Thread.start


def start(self):
    global started
    if started >= int(os.environ["THREADS"]) or os.path.exists("no-threads"):
        raise RuntimeError("can't start new thread")
    started += 1
    real(self)


threading.Thread.start = start
"""
CODE = """
import thawd

def handler(event, context):
    if "put" in event:
        thawd.table("labels").put(event["put"], {"n": 1})
    return "done"
"""


@pytest.fixture
def app(project: Project) -> Project:
    """A project with everything that needs threads, for a server that cannot always start them."""
    (project.root / "faults").mkdir()
    (project.root / "faults" / "sitecustomize.py").write_text(REFUSING)
    project.code(CODE, "code/app.py")
    project.config(
        """
        [functions.app]
        handler = "app.handler"
        code = "code"
        [buckets.uploads]
        notify = [{ function = "app" }]
        [tables.labels]
        """
    )
    return project


def environ(project: Project, threads: int) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(project.root / "faults"), "THREADS": str(threads)}


def start(project: Project, *, threads: int = 1000, address_space: int | None = None) -> subprocess.Popen[str]:
    """Start a server that may fail to start."""
    limit = "unlimited" if address_space is None else str(address_space >> 10)
    return subprocess.Popen(
        ["sh", "-c", f'ulimit -v {limit}; exec "$@"', "sh"]
        + [sys.executable, "-m", "thawd", "up", "--ready-file", "ready.json", "--ready-when", "published"],
        cwd=project.root,
        env=environ(project, threads),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(project: Project, process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return status and output of a server. If it has started, stop it first."""
    ready = project.root / "ready.json"
    eventually(lambda: process.poll() is not None or ready.exists(), what="the start or its end")
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE_S)
    ready.unlink(missing_ok=True)
    return process.returncode, output


def test_a_start_without_enough_threads_ends_with_a_line_and_a_status_of_its_own_else_it_works(app: Project) -> None:
    statuses = []
    for threads in (0, 1, 5, 9, 13, 100):
        status, output = ended(app, start(app, threads=threads))
        assert "Traceback" not in output, output
        if status:
            assert status == 71, output
            assert "can't start new thread" in output
            assert "ulimit -v" in output
        statuses.append(status)
    assert (statuses[0], statuses[-1]) == (71, 0)
    assert sorted(statuses, reverse=True) == statuses, "with more threads it never fails where it worked with fewer"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold to RLIMIT_AS")
def test_a_start_in_little_address_space_works_or_ends_with_a_line(app: Project) -> None:
    for megabytes in (50, 160, 300):
        status, output = ended(app, start(app, address_space=megabytes << 20))
        assert "Traceback" not in output, output
        assert status in (0, 71), output
        if status:
            assert "ulimit -v" in output


def test_a_server_that_runs_needs_no_more_threads_and_what_does_fails_alone(app: Project) -> None:
    names = ("PYTHONPATH", "THREADS")
    given = environ(app, 1000)
    with app.up(environ={name: given[name] for name in names}) as running:
        refusing = app.root / "no-threads"
        refusing.touch()
        document, error = running.invoke("app", {"put": "a"})
        assert error == "Unhandled", document
        assert "can't start new thread" in document["errorMessage"]
        assert running.invoke("app", {}) == ("done", None)
        used(running, app)
        refusing.unlink()
        assert running.invoke("app", {"put": "a"}) == ("done", None)
        with pytest.raises(ClientError):
            running.invoke("nobody", {})
        refusing.touch()  # also while the server stops


def used(running: Running, project: Project) -> None:
    """Make the server do what needs threads: objects, reloads, asynchronous events, new environments."""
    running.s3().put_object(Bucket="uploads", Key="a.txt", Body=b"a")
    assert running.s3().get_object(Bucket="uploads", Key="a.txt")["Body"].read() == b"a"
    running.client().invoke(FunctionName="app", InvocationType="Event", Payload=b"{}")
    eventually(lambda: running.function("app")["queued"] == 0, what="the events")
    project.code(CODE.replace("done", "new"), "code/app.py")
    running.process.send_signal(signal.SIGHUP)
    running.until_said("configuration reloaded")
    assert running.invoke("app", {}) == ("new", None)
    project.code(CODE, "code/app.py")
    running.process.send_signal(signal.SIGHUP)
    eventually(lambda: running.invoke("app", {}) == ("done", None), what="the reload")
