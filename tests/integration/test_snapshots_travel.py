"""Snapshots that travel through a store of chunks.

The other machine is simulated: it has the same paths, an empty data folder, and files with other inodes and times.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.unit.chunk_stores import KEY, Machine
from thawd.snapshot.engine import unavailable
from thawd.stores.chunk_places import BucketPlace
from thawd.transfer import receiving, sending, upkeep
from thawd.transfer.chunk_downloads import ChunkSource

from .conftest import Project, eventually
from .emulated import There
from .frozen_app import inits, none_alive, sent_keys
from .remote_buckets import bucket_of

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

CODE = """
import importlib.util, os, sys, tempfile
print("init runs")
sys.path.insert(0, {outside!r})
import helper
spec = importlib.util.spec_from_file_location("_heapq", {extension!r})
extension = importlib.util.module_from_spec(spec)
spec.loader.exec_module(extension)
path = os.path.join(tempfile.gettempdir(), "made-by-init")
with open(path, "w") as file:
    file.write("by init")
pid, counter = os.getpid(), 0

def handler(event, context):
    global counter
    counter += 1
    heap = [3, 1, 2]
    extension.heapify(heap)
    with open(path) as file:
        return [pid, counter, helper.VALUE, heap[0], file.read()]
"""


@pytest.fixture
def outside(project: Project) -> Path:
    """A folder with a module and a library that the function loads from outside of its code."""
    folder = project.root.parent / f"outside-{project.root.name}"
    folder.mkdir()
    (folder / "helper.py").write_text("VALUE = 42\n")
    os.utime(folder / "helper.py", (1_700_000_000, 1_700_000_000))  # not a moment before init
    spec = importlib.machinery.PathFinder.find_spec("_heapq", sys.path)
    if spec is None or spec.origin is None:
        pytest.skip("this interpreter has no _heapq in a file of its own")
    shutil.copy2(spec.origin, folder)
    project.code(CODE.format(outside=str(folder), extension=str(folder / Path(spec.origin).name)))
    return folder


def sent(project: Project, store: Path, *, options: str) -> int:
    """Publish the function, stop the server, and send its snapshot; return the process id of its init."""
    project.config(f'{options}\n[functions.app]\nhandler = "app.handler"\nidle_timeout_s = 0\n')
    with project.up() as running:
        (pid, *answer), error = running.invoke("app", {})
        assert (answer, error) == ([1, 42, 1, "by init"], None)
        assert running.function("app")["start"] == "thaw"
    done = project.command("snapshot", "push", "app", str(store))
    assert done.returncode == 0, done.stderr
    assert "chunks, of which" in done.stdout
    (row,) = json.loads(project.command("snapshot", "list", "--json", "--store", str(store)).stdout)
    assert (row["function"], row["data folder"]) == ("app:$LATEST", str(project.data))
    return pid


def move_to_another_machine(project: Project, outside: Path) -> None:
    key = (project.data / "snapshots.key").read_text()
    shutil.rmtree(project.data)
    project.data.mkdir(mode=0o700)
    (project.data / "snapshots.key").touch(0o600)
    (project.data / "snapshots.key").write_text(key)
    aside = outside.with_name("aside")
    outside.rename(aside)
    shutil.copytree(aside, outside, copy_function=shutil.copy)  # other inodes, and the times of now


@pytest.mark.parametrize("options", ['bases = "auto"', 'bases = "off"'])
def test_a_function_is_thawed_on_a_machine_that_has_never_initialised_it(
    options: str, project: Project, outside: Path, tmp_path: Path
) -> None:
    pid = sent(project, tmp_path / "store", options=options)
    move_to_another_machine(project, outside)
    done = project.command("snapshot", "pull", "app", str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    with project.up() as running:
        for _ in range(2):
            assert running.invoke("app", {}) == ([pid, 1, 42, 1, "by init"], None)
            none_alive(running)
        assert running.function("app")["starts"].keys() == {"thaw"}
    assert inits(project) == 0
    done = project.command("snapshot", "verify")
    assert done.returncode == 0, done.stderr


def test_servers_with_a_common_store_initialise_a_function_once(
    project: Project, outside: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    project.config(
        f'snapshot_store = "{store}"\n[functions.app]\nhandler = "app.handler"\nidle_timeout_s = 0\n'
        f'[functions.broken]\nhandler = "app.handler"\nenvironment = {{ BROKEN = "1" }}\n'
    )
    assert project.command("snapshot", "key").returncode == 0
    with project.up() as running:
        (pid, *answer), _ = running.invoke("app", {})
        assert answer == [1, 42, 1, "by init"]
        eventually(lambda: len(sent_keys(store)) == 2, what="both snapshots in the store")
    move_to_another_machine(project, outside)
    for record in (store / "snapshots" / "broken").iterdir():
        record.write_bytes(b"damaged")
    with project.up() as running:
        assert running.invoke("app", {}) == ([pid, 1, 42, 1, "by init"], None)
        assert running.invoke("broken", {})[0][1:] == [1, 42, 1, "by init"]
        eventually(lambda: "the record is cut off" in "".join(running.output), what="the reason")
    assert inits(project) == 0
    assert (project.data / "logs" / "broken.log").read_text().count("init runs") == 1


def test_where_the_same_files_were_installed_again_a_server_receives_its_own_snapshot(
    project: Project, outside: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    project.config(f'snapshot_store = "{store}"\n[functions.app]\nhandler = "app.handler"\nidle_timeout_s = 0\n')
    assert project.command("snapshot", "key").returncode == 0
    with project.up() as running:
        pid = running.invoke("app", {})[0][0]
        eventually(lambda: sent_keys(store), what="the snapshot in the store")
    aside = outside.with_name("aside")
    outside.rename(aside)
    shutil.copytree(aside, outside, copy_function=shutil.copy)
    with project.up() as running:
        assert running.invoke("app", {}) == ([pid, 1, 42, 1, "by init"], None)
        none_alive(running)
    (outside / "helper.py").write_text("VALUE = 4500\n")
    with project.up() as running:
        assert running.invoke("app", {})[0][2] == 4500
        eventually(lambda: "has another content" in "".join(running.output), what="the reason")
    assert inits(project) == 2


def test_where_a_file_differs_the_snapshot_is_refused_and_the_function_initialised(
    project: Project, outside: Path, tmp_path: Path
) -> None:
    pid = sent(project, tmp_path / "store", options="")
    move_to_another_machine(project, outside)
    # Of another size: Python compares its byte code with a module by size and seconds.
    (outside / "helper.py").write_text("VALUE = 4300\n")
    done = project.command("snapshot", "pull", "app", str(tmp_path / "store"))
    assert done.returncode == 1
    assert f"{outside / 'helper.py'} has another content" in done.stderr
    assert "the function is initialised here" in done.stderr
    with project.up() as running:
        answer, error = running.invoke("app", {})
        assert (answer[2], error) == (4300, None)
        assert answer[0] != pid
    assert inits(project) == 1


def test_a_file_that_changes_after_the_snapshot_arrived_is_noticed(
    project: Project, outside: Path, tmp_path: Path
) -> None:
    sent(project, tmp_path / "store", options="")
    move_to_another_machine(project, outside)
    assert project.command("snapshot", "pull", "app", str(tmp_path / "store")).returncode == 0
    (outside / "helper.py").write_text("VALUE = 4400\n")
    with project.up() as running:
        assert running.invoke("app", {})[0][2] == 4400
    assert inits(project) == 1


@pytest.mark.usefixtures("aws_credentials")
def test_a_bucket_is_a_store(there: There, tmp_path: Path) -> None:
    place = BucketPlace(bucket_of(there, prefix="a/b/"))
    machine = Machine(tmp_path)
    machine.install()
    snapshot = machine.freeze()
    done = sending.send(machine.store, snapshot, place, KEY)
    assert done.new_chunks == done.chunks > 1
    assert sending.send(machine.store, snapshot, place, KEY).new_chunks == 0
    record = receiving.find(place, KEY, "classify")
    shutil.rmtree(tmp_path / "data")
    machine.install()
    assert receiving.receive(machine.store, ChunkSource(place), record, program=None).received_bytes > 0
    assert upkeep.verify(place, KEY) == 0
    place.remove(done.key)
    assert upkeep.clean_up(place, grace_s=0.0).noted == done.chunks
