"""Hooks of `snapshot_restore_py` when snapshots of a served function are made and thawed."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from thawd.snapshot.engine import unavailable

from .conftest import Project, eventually, processes_of
from .frozen_app import APP, make, none_alive

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


@pytest.fixture
def app(project: Project) -> Project:
    """A project with one function."""
    return make(project)


HOOKED = """
from snapshot_restore_py import register_after_restore, register_before_snapshot

CALLED = []

@register_before_snapshot
def one():
    CALLED.append("before one")

@register_before_snapshot
def two():
    CALLED.append("before two")
    {before}

@register_after_restore
def three():
    CALLED.append("after three")
    {after}

@register_after_restore
def four():
    CALLED.append("after four")

def handler(event, context):
    return CALLED
"""


def hooked(project: Project, *, before: str = "pass", after: str = "pass", options: str = "") -> None:
    project.code(HOOKED.format(before=before, after=after))
    project.config(APP + options)


@pytest.mark.parametrize("prime", ["", "prime = {}\n"], ids=["", "primed"])
def test_hooks_run_around_the_snapshot_as_on_lambda(app: Project, prime: str) -> None:
    hooked(app, options=prime)
    with app.up() as running:
        called = ["before two", "before one", "after three", "after four"]
        assert running.invoke("app", {}) == (called, None)
        with ThreadPoolExecutor(6) as threads:
            for answer in threads.map(lambda _: running.invoke("app", {}), range(6)):
                assert answer == (called, None), "forked ones are restored too"


def test_a_before_snapshot_hook_that_fails_fails_the_publication(app: Project) -> None:
    hooked(app, before='raise ValueError("no way")')
    with app.up() as running:
        function = running.function("app")
        assert function["state"] == "Failed"
        assert "no way" in function["reason"]
        document, error = running.invoke("app", {})
        assert error == "Unhandled"
        assert document["errorType"] == "Runtime.BeforeSnapshotError"
        assert "no way" in document["errorMessage"]
        assert any("app.py" in frame for frame in document["stackTrace"])


def test_an_after_restore_hook_that_fails_is_told_to_the_caller(app: Project) -> None:
    fail = app.root / "fail"
    hooked(app, after=f'import os\n    if os.path.exists({str(fail)!r}): raise OSError("the database is away")')
    with app.up() as running:
        running.invoke("app", {})
        for pid in processes_of(app.data):
            os.kill(pid, signal.SIGKILL)
        none_alive(running)
        fail.touch()
        document, error = running.invoke("app", {})
        assert error == "Unhandled"
        assert document["errorType"] == "Runtime.AfterRestoreError"
        assert "the database is away" in document["errorMessage"]
        fail.unlink()
        assert eventually(lambda: running.invoke("app", {})[1] is None, what="a good answer once the hook succeeds")
        assert running.function("app")["start"] == "thaw", "the image is not to blame"


def test_an_after_restore_hook_that_fails_in_the_self_test_fails_the_publication(app: Project) -> None:
    hooked(app, after='raise OSError("the database is away")')
    with app.up() as running:
        function = running.function("app")
        assert function["state"] == "Failed"
        assert "the database is away" in function["reason"]
        assert running.invoke("app", {})[0]["errorType"] == "Runtime.AfterRestoreError"
        assert not list((app.data / "snapshots").glob("*.img"))
