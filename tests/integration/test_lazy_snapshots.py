"""Functions that start before their image has arrived from a store of chunks.

The other machine is simulated, as in `test_snapshots_travel`. A gate in the store holds back what the function did not
use where it was frozen.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from thawd.snapshot.engine import unavailable
from thawd.stores.chunk_places import FolderPlace
from thawd.transfer import first_use, receiving, store_keys
from thawd.transfer.fuse_files import READ_AHEAD_BYTES, why_not_detached
from thawd.transfer.store_layout import chunk_key

from .conftest import Project, Running, eventually, processes_of
from .frozen_app import inits, none_alive, sent_keys
from .gated_store import GatedStore, gated

pytestmark = [
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
    pytest.mark.skipif(why_not_detached() is not None, reason=str(why_not_detached())),
]

THAWS = int(os.environ.get("THAWD_LAZY_THAWS", "16"))
"""Thaws of `test_all_thaws_on_several_machines_answer_right`, on all machines together."""

PARTS = 8
PART_BYTES = 6 << 20
CODE = f"""
import hashlib, os, random
print("init runs")
weights = random.Random(1).randbytes({PARTS * PART_BYTES})
pid = os.getpid()

def handler(event, context):
    begin = event["part"] * {PART_BYTES}
    return [pid, hashlib.sha256(memoryview(weights)[begin : begin + {PART_BYTES}]).hexdigest()]
"""
CONFIG = """
snapshot_store = "{store}"
[functions.app]
handler = "app.handler"
prime = {{ part = 0 }}
idle_timeout_s = 0
memory_mb = 512
"""


def digests() -> list[str]:
    """Return the right answers for all parts."""
    weights = random.Random(1).randbytes(PARTS * PART_BYTES)
    return [hashlib.sha256(weights[n * PART_BYTES : (n + 1) * PART_BYTES]).hexdigest() for n in range(PARTS)]


@pytest.fixture
def store(project: Project, tmp_path: Path) -> Iterator[GatedStore]:
    """A store with the snapshot of a function that this machine does not have."""
    folder = tmp_path / "store"
    project.code(CODE)
    project.config(CONFIG.format(store=folder))
    assert project.command("snapshot", "key").returncode == 0
    with project.up() as running:
        assert running.invoke("app", {"part": 3})[0][1] == digests()[3]
        eventually(lambda: sent_keys(folder), what="the snapshot in the store")
    assert inits(project) == 1
    move_to_another_machine(project)
    with gated(folder) as found:
        found.held = held_back(folder, project.data / "snapshots.key")
        project.config(CONFIG.format(store=found.url))
        yield found


def move_to_another_machine(project: Project) -> None:
    key = (project.data / "snapshots.key").read_text()
    shutil.rmtree(project.data)
    project.data.mkdir(mode=0o700)
    (project.data / "snapshots.key").touch(0o600)
    (project.data / "snapshots.key").write_text(key)


def held_back(folder: Path, key: Path) -> frozenset[str]:
    """The keys of the chunks of the function's image that the self-test did not use."""
    record = receiving.find(FolderPlace(folder), store_keys.read_key(key), "app")
    sent = record.body.snapshots[-1]
    first = first_use.chunks_of(sent.extents, sent.sidecar.origin.first_use, around_bytes=READ_AHEAD_BYTES // 2)
    used = {record.chunks[index].id for index in first}
    image = {record.chunks[extent.chunk].id for extent in sent.extents}
    assert len(used) < len(image) / 2
    return frozenset(chunk_key(one) for one in image - used)


def mounts() -> set[str]:
    """The FUSE file systems of this machine, also those that are in no mount namespace."""
    return {one.name for one in Path("/sys/class/bdi").iterdir() if one.name.startswith("0:")}


def is_arriving(running: Running) -> bool:
    return bool(running.function("app")["snapshot"].get("arriving"))


def test_a_function_answers_before_its_image_has_arrived(project: Project, store: GatedStore) -> None:
    right, before = digests(), mounts()
    with project.up() as running, ThreadPoolExecutor(1) as threads:
        (pid, digest), error = running.invoke("app", {"part": 0})
        assert (digest, error) == (right[0], None)
        assert store.served_bytes < PARTS * PART_BYTES / 2
        assert is_arriving(running)
        own = mounts() - before
        assert own
        waiting = threads.submit(running.invoke, "app", {"part": 5})
        eventually(lambda: store.asked, what="a request for what has not arrived")
        assert not waiting.done()
        store.gate.set()
        assert waiting.result() == ([pid, right[5]], None)
        eventually(lambda: not is_arriving(running), what="the whole image")
        none_alive(running)
        eventually(lambda: not own & mounts(), what="the end of the file of FUSE")
        for part in range(PARTS):
            assert running.invoke("app", {"part": part}) == ([pid, right[part]], None)
        assert running.function("app")["starts"].keys() == {"thaw"}
    assert project.command("snapshot", "verify").returncode == 0
    store.is_dead = True  # the next server has all that it needs
    with project.up() as running:
        assert running.invoke("app", {"part": 7}) == ([pid, right[7]], None)
    assert inits(project) == 0
    assert [path.name for path in (project.data / "snapshots").glob(".*-*")] == []


def test_when_the_store_fails_copies_end_and_the_function_is_initialised(project: Project, store: GatedStore) -> None:
    right = digests()
    with project.up() as running, ThreadPoolExecutor(1) as threads:
        assert running.invoke("app", {"part": 0})[0][1] == right[0]
        waiting = threads.submit(running.invoke, "app", {"part": 5})
        eventually(lambda: store.asked, what="a request for what has not arrived")
        eventually(lambda: running.function("app")["environments"]["busy"] == 1, what="the request in a copy")
        store.is_dead = True
        store.gate.set()
        answer, error = waiting.result()
        assert (answer["errorType"], error) == ("Runtime.ExitError", "Unhandled")
        assert "its image could not be received" in answer["errorMessage"]
        for part in range(PARTS):
            answer, error = running.invoke("app", {"part": part})
            assert (answer[1], error) == (right[part], None)
        running.until_said("is missing from")
    assert inits(project) == 1


def test_a_server_that_is_killed_while_an_image_arrives_leaves_nothing(project: Project, store: GatedStore) -> None:
    right, before = digests(), mounts()
    with project.up() as running, ThreadPoolExecutor(1) as threads:
        assert running.invoke("app", {"part": 0})[0][1] == right[0]
        waiting = threads.submit(running.invoke, "app", {"part": 5})
        eventually(lambda: store.asked, what="a request for what has not arrived")
        own = mounts() - before
        assert own
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        eventually(lambda: not processes_of(project.data), what="the end of the copies")
        eventually(lambda: not own & mounts(), what="the end of the file of FUSE")
        assert waiting.exception() is not None
    assert list((project.data / "snapshots").glob(".new-*"))
    store.gate.set()
    with project.up() as running:
        for part in range(PARTS):
            assert running.invoke("app", {"part": part})[0][1] == right[part]
        eventually(lambda: not is_arriving(running), what="the whole image")
    assert inits(project) == 0
    assert list((project.data / "snapshots").glob(".new-*")) == []


def test_a_copy_of_a_version_that_is_replaced_still_gets_its_memory(project: Project, store: GatedStore) -> None:
    right, before = digests(), mounts()
    with project.up() as running, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(running.invoke, "app", {"part": 5})
        eventually(lambda: store.asked, what="a request for what has not arrived")
        own = mounts() - before
        assert own
        project.code("def handler(event, context):\n    return 'new'\n")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: running.invoke("app", {"part": 0})[0] == "new", what="the new version")
        assert not waiting.done()
        store.gate.set()
        assert waiting.result()[0][1] == right[5]
        eventually(lambda: not own & mounts(), what="the end of the file of FUSE")
        eventually(lambda: not list((project.data / "snapshots").glob(".new-*")), what="the end of the draft")


def test_a_server_that_stops_while_an_image_arrives_does_not_wait_for_it(project: Project, store: GatedStore) -> None:
    before = mounts()
    with project.up() as running:
        assert running.invoke("app", {"part": 0})[0][1] == digests()[0]
        assert is_arriving(running)
        own = mounts() - before
        assert own
        assert running.stop() == 0
    assert not store.gate.is_set()
    eventually(lambda: not own & mounts(), what="the end of the file of FUSE")


def test_without_lazy_snapshots_a_function_starts_when_all_has_arrived(project: Project, store: GatedStore) -> None:
    project.config("lazy_snapshots = false\n" + CONFIG.format(store=store.url))
    store.gate.set()
    with project.up() as running:
        assert set(store.asked) == store.held
        assert running.invoke("app", {"part": 2})[0][1] == digests()[2]
    assert inits(project) == 0


def test_what_a_machine_has_received_once_it_does_not_fetch_again(project: Project, store: GatedStore) -> None:
    right = digests()
    store.gate.set()
    with project.up() as running:
        assert running.invoke("app", {"part": 0})[0][1] == right[0]
        eventually(lambda: not is_arriving(running), what="the whole image")
    served_bytes = store.served_bytes
    assert served_bytes > PARTS * PART_BYTES
    assert project.command("snapshot", "rm", "app").returncode == 0
    with project.up() as running:
        assert running.invoke("app", {"part": 6})[0][1] == right[6]
        eventually(lambda: not is_arriving(running), what="the whole image")
    assert store.served_bytes - served_bytes < 1 << 20, "the record alone"
    assert inits(project) == 0
    shutil.rmtree(project.data / "snapshots")
    project.config("chunk_cache_max_mb = 0\n" + CONFIG.format(store=store.url))
    with project.up() as running:
        assert running.invoke("app", {"part": 2})[0][1] == right[2]
        eventually(lambda: not is_arriving(running), what="the whole image")
        assert not (project.data / "received-chunks").exists()
    assert store.served_bytes - served_bytes > PARTS * PART_BYTES


def test_all_thaws_on_several_machines_answer_right(project: Project, store: GatedStore) -> None:
    right, machines = digests(), 2 if THAWS < 100 else 4
    store.gate.set()
    for machine in range(machines):
        if machine:
            move_to_another_machine(project)
        with project.up() as running, ThreadPoolExecutor(4) as threads:
            parts = [random.Random(number).randrange(PARTS) for number in range(THAWS // machines)]
            answers = list(threads.map(lambda part: running.invoke("app", {"part": part}), parts))
            assert [(answer[1], error) for answer, error in answers] == [(right[part], None) for part in parts]
            assert len({answer[0] for answer, _ in answers}) == 1, "init ran once, where the function was frozen"
        assert inits(project) == 0
