"""The snapshot of a replaced version is deleted immediately; one that the next server may use is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from thawd.snapshot.engine import unavailable

from .conftest import Project, Running, eventually
from .test_control_durability import create

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def images(project: Project) -> set[Path]:
    return set((project.data / "snapshots").glob("*.img"))


def set_variable(running: Running, value: str) -> None:
    client = running.client()
    client.update_function_configuration(FunctionName="f", Environment={"Variables": {"VALUE": value}})
    client.get_waiter("function_updated_v2").wait(FunctionName="f", WaiterConfig={"Delay": 0.05})
    assert running.invoke("f", {}) == ("first", None)


def test_a_function_has_a_snapshot_for_each_version_and_one_for_latest(project: Project) -> None:
    project.config("")
    with project.up() as running:
        client = running.client()
        create(running, "f", SnapStart={"ApplyOn": "PublishedVersions"})
        for value in ("a", "b", "c"):
            set_variable(running, value)
        eventually(lambda: len(images(project)) == 1, what="the end of the snapshots that $LATEST had before")
        client.publish_version(FunctionName="f")
        client.get_waiter("published_version_active").wait(
            FunctionName="f", Qualifier="1", WaiterConfig={"Delay": 0.05}
        )
        eventually(lambda: len(images(project)) == 2, what="the snapshot of version 1")
        set_variable(running, "d")
        eventually(lambda: len(images(project)) == 2, what="the end of the one of $LATEST before")
        assert running.invoke("f", {}, Qualifier="1") == ("first", None)
    # Stopping the server retires no version: the next server thaws what this one has frozen.
    assert len(images(project)) == 2


def test_the_snapshots_of_a_deleted_function_go(project: Project) -> None:
    project.config("")
    with project.up() as running:
        create(running, "f", SnapStart={"ApplyOn": "PublishedVersions"})
        set_variable(running, "a")
        eventually(lambda: len(images(project)) == 1, what="its snapshot")
        running.client().delete_function(FunctionName="f")
        eventually(lambda: not images(project), what="the end of it")
