"""Snapshots of functions with container images travel through a store of chunks.

The other machine is simulated: it has the same paths, an empty data folder, and the image's files with other inodes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.image_roots import add_image
from tests.processes.registry_server import running_registry
from thawd.oci import image_lookup, references
from thawd.oci.image_store import Images
from thawd.snapshot.engine import unavailable

from .conftest import Project, eventually
from .frozen_app import none_alive, sent_keys

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

CODE = """
import json, os
print("init runs")
with open("/tmp/made-by-init", "w") as file:
    file.write("by init")
with open("/opt/alias/numbers.json") as file:
    numbers = json.load(file)
pid = os.getpid()

def handler(event, context):
    with open("/tmp/made-by-init") as file:
        return [pid, numbers, file.read(), os.environ["GREETING"]]
"""
FILES = {"var/task/app.py": CODE, "opt/data/numbers.json": "[1, 2]", "opt/alias": "->/opt/data"}
FUNCTION = '[functions.app]\nimage = "{image}"\nidle_timeout_s = 0\nenvironment = {{ GREETING = "hello" }}\n'


def add(project: Project, name: str = "app:1", files: dict[str, str] = FILES) -> str:
    return add_image(Images(project.data / "images"), name, files)


def to_another_machine(project: Project) -> None:
    """Leave nothing but the key."""
    key = (project.data / "snapshots.key").read_bytes()
    # The inodes of the old files must not be used again.
    project.data.rename(project.data.with_name(f"old-{len(list(project.root.iterdir()))}"))
    project.data.mkdir(mode=0o700)
    (project.data / "snapshots.key").touch(0o600)
    (project.data / "snapshots.key").write_bytes(key)


def sent(project: Project, store: Path, image: str) -> int:
    """Publish the function, stop the server, and send its snapshot; return the process id of its init."""
    project.config(FUNCTION.format(image=image))
    with project.up() as running:
        (pid, *answer), error = running.invoke("app", {})
        assert (answer, error) == ([[1, 2], "by init", "hello"], None)
        assert running.function("app")["start"] == "thaw"
    done = project.command("snapshot", "push", "app", str(store))
    assert done.returncode == 0, done.stderr
    return pid


def init_count(project: Project) -> int:
    return (project.data / "logs" / "app.log").read_text().count("init runs")


def test_a_function_with_an_image_is_thawed_on_a_machine_that_never_initialised_it(
    project: Project, tmp_path: Path
) -> None:
    add(project)
    pid = sent(project, tmp_path / "store", "app:1")
    to_another_machine(project)
    refused = project.command("snapshot", "pull", "app", str(tmp_path / "store"))
    assert refused.returncode == 1
    assert "runs in the container image app:1" in refused.stderr and "thawd image pull" in refused.stderr
    add(project)
    done = project.command("snapshot", "pull", "app", str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    with project.up() as running:
        for _ in range(2):
            assert running.invoke("app", {}) == ([pid, [1, 2], "by init", "hello"], None)
            none_alive(running)
        assert running.function("app")["starts"].keys() == {"thaw"}
    assert init_count(project) == 0


def test_the_image_is_fetched_from_its_registry_by_its_digest(project: Project, tmp_path: Path) -> None:
    with running_registry() as server:
        name = f"{server.host}/team/app:1"
        digest = add(project, name)
        image_lookup.push(Images(project.data / "images"), digest, references.parse(name), {})
        pid = sent(project, tmp_path / "store", name)
        to_another_machine(project)
        # Meanwhile the tag became that of another image.
        other = add(project, name, {"var/task/app.py": "handler = None"})
        server.contents[f"team/app/manifests/{digest}"] = server.contents.pop("team/app/manifests/1")
        server.types[f"team/app/manifests/{digest}"] = server.types.pop("team/app/manifests/1")
        assert project.command("snapshot", "pull", "app", str(tmp_path / "store")).returncode == 0
        images = Images(project.data / "images")
        assert images.names() == {name: other, f"{name}@{digest}": digest}
        images.set_name(name, digest)
        with project.up() as running:
            assert running.invoke("app", {}) == ([pid, [1, 2], "by init", "hello"], None)
    assert init_count(project) == 0


def test_servers_with_a_common_store_initialise_a_function_with_an_image_once(project: Project, tmp_path: Path) -> None:
    store = tmp_path / "store"
    add(project)
    project.config(f'snapshot_store = "{store}"\n{FUNCTION.format(image="app:1")}')
    assert project.command("snapshot", "key").returncode == 0
    with project.up() as running:
        pid = running.invoke("app", {})[0][0]
        eventually(lambda: sent_keys(store), what="the snapshot in the store")
    to_another_machine(project)
    add(project)
    with project.up() as running:
        assert running.invoke("app", {}) == ([pid, [1, 2], "by init", "hello"], None)
    assert init_count(project) == 0
    # The image's files are unpacked again, as after a power cut: the snapshot is received once more.
    for name in ("roots", "layers"):
        shutil.move(project.data / "images" / name, tmp_path / f"aside-{name}")
    with project.up() as running:
        assert running.invoke("app", {}) == ([pid, [1, 2], "by init", "hello"], None)
    assert init_count(project) == 0


def test_a_changed_file_of_the_image_is_noticed(project: Project, tmp_path: Path) -> None:
    add(project)
    pid = sent(project, tmp_path / "store", "app:1")
    to_another_machine(project)
    root = Images(project.data / "images").root(add(project)).folder
    (root / "opt/data/numbers.json").chmod(0o644)
    (root / "opt/data/numbers.json").write_text("[1, 3]")
    done = project.command("snapshot", "pull", "app", str(tmp_path / "store"))
    assert done.returncode == 1
    assert "opt/data/numbers.json has another content" in done.stderr
    with project.up() as running:
        assert running.invoke("app", {})[0][0] != pid
    assert init_count(project) == 1
