"""Test folders, in memory if commits would wait for a disk; a state file and its queue; quick retries."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory import MEMORY
from tests.unit.chunk_stores import Machine, MemoryPlace
from thawd.stores.database import Database
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.schema import open_state


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder for one test. It is in memory if the test is marked `in_memory`."""
    if MEMORY is None or not request.node.get_closest_marker("in_memory"):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="thawd-unit-", dir=MEMORY))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """A state file of the current schema."""
    database = open_state(tmp_path / "thawd.db")
    yield database
    database.close()


@pytest.fixture
def queue(db: Database) -> EventQueue:
    """The queue of `db`."""
    return EventQueue(db)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries of events and outcomes begin after 0.02 s."""
    monkeypatch.setattr("thawd.queue.retry_waits.FIRST_WAIT_S", 0.02)
    monkeypatch.setattr("thawd.queue.outcome_delivery._BACKOFF_FIRST_S", 0.02)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with a store of snapshots and their files."""
    found = Machine(tmp_path)
    found.install()
    return found


@pytest.fixture
def place() -> MemoryPlace:
    """An empty store of chunks in memory."""
    return MemoryPlace()
