"""Servers share snapshots through a registry: docker-registry, as Debian packages it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.registries import docker_registry
from thawd.snapshot.engine import unavailable

from .conftest import Project, eventually
from .frozen_app import CODE

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry that allows no deletion; yields a repository in it."""
    with docker_registry(tmp_path) as address:
        yield f"oci://{address}/team/snapshots"


def test_servers_with_a_common_registry_initialise_a_function_once(project: Project, registry: str) -> None:
    project.code(CODE)
    project.config(f'snapshot_store = "{registry}"\n[functions.app]\nhandler = "app.handler"\n')
    assert project.command("snapshot", "key").returncode == 0
    key = (project.data / "snapshots.key").read_bytes()
    with project.up() as running:
        assert running.invoke("app", {})[1] is None
        eventually(lambda: "app:$LATEST" in listed(project, registry), what="the snapshot in the registry")
    again = project.command("snapshot", "push", "app", registry)
    assert "0 were new" in again.stdout, again.stderr
    shutil.rmtree(project.data)
    project.data.mkdir(mode=0o700)
    (project.data / "snapshots.key").touch(0o600)
    (project.data / "snapshots.key").write_bytes(key)
    with project.up() as running:
        assert running.invoke("app", {})[1] is None
        assert running.function("app")["starts"].keys() == {"thaw"}
    assert "init runs" not in (project.data / "logs" / "app.log").read_text()

    verified = project.command("snapshot", "verify", "--store", registry)
    assert verified.returncode == 0 and "sound" in verified.stdout, verified.stderr
    assert "when it collects garbage" in project.command("snapshot", "gc", registry).stdout
    refused = project.command("snapshot", "gc", registry, "--max-age-s", "0")
    assert refused.returncode == 1 and "allows no deletion" in refused.stderr
    assert "app:$LATEST" in listed(project, registry)


def listed(project: Project, registry: str) -> str:
    return project.command("snapshot", "list", "--store", registry).stdout
