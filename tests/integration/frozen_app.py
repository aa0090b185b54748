"""A function that is thawed from snapshots, for the tests of snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thawd.stores.chunk_places import FolderPlace

from .conftest import Project, Running, eventually

CODE = """
import os, time
print("init runs")
COUNTER = 0

def handler(event, context):
    global COUNTER
    COUNTER += 1
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.005)
    return {"pid": os.getpid(), "counter": COUNTER, "stream": context.log_stream_name, "variables": dict(os.environ)}
"""
APP = '[functions.app]\nhandler = "app.handler"\n'


def make(project: Project) -> Project:
    """Make the project with one function. Its environments end as soon as they are idle."""
    project.code(CODE)
    project.config(APP + "idle_timeout_s = 0\n")
    return project


def log(project: Project) -> list[list[str]]:
    """Return the function's log: stream and message of each line."""
    lines = (project.data / "logs" / "app.log").read_text().splitlines()
    return [line.split("\t", 2)[1:] for line in lines]


def inits(project: Project) -> int:
    """Return how often init has run. Call this when the server has stopped: it writes its log a moment later."""
    return [message for _, message in log(project)].count("init runs")


def none_alive(running: Running) -> None:
    eventually(lambda: not any(running.function("app")["environments"].values()), what="the end of the environments")


def refused(project: Project, *, options: str = "") -> tuple[dict[str, Any], list[str]]:
    """Publish a function that cannot be frozen.

    Return its status after a successful invocation, and the server's output.
    """
    project.config(APP + options)
    with project.up() as running:
        document, error = running.invoke("app", {})
        assert error is None, document
        function = running.function("app")
        assert function["snapshot"]["ApplyOn"] == "PublishedVersions"
        assert function["snapshot"]["OptimizationStatus"] == "Off"
        assert function["fallbacks_by_reason"] == {"snapshot_refused": 1}
        return function, running.output


def sent_keys(store: Path) -> list[str]:
    """The keys under which snapshots can be found in a store of chunks; each is written last, after its snapshot."""
    return [one.key for one in FolderPlace(store).listed("keys")]
