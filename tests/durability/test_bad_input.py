"""Bad handlers, damaged or foreign state files, a changed system clock, a second server: clear reports and no lost
data."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import struct
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import prestarted
from tests.durability.disk import FaultyDisk
from tests.durability.server import Ended, Server, until

pytestmark = pytest.mark.timeout(600)

CONFIG = """
    [functions.work]
    handler = "app.handler"
    memory_mb = 128
    timeout_s = {timeout_s}
    maximum_retry_attempts = {retries}
    maximum_event_age_s = {age_s}
    environment = {{ NOTES = "{notes}" }}
    on_success = "table:results"
    on_failure = "table:failures"
    [tables.results]
    [tables.failures]
"""
BAD = """
    import ctypes, os, time
    def handler(event, context):
        do = event["do"]
        if do == "segv":
            ctypes.string_at(0)
        elif do == "exit":
            os._exit(0)
        elif do == "sleep":
            time.sleep(3600)
        elif do == "memory":
            held = [bytearray(b"x" * 1_000_000) for _ in range(100_000)]
        elif do == "set":
            return {1, 2}
        elif do == "bytes":
            return b"\\xff"
        elif do == "nan":
            return {"value": float("nan")}
        elif do == "seven megabytes":
            return {"value": "x" * 7_000_000}
        elif do == "more than an item":
            return {"value": "x" * 500_000}
        elif do == "endless":
            endless = []
            endless.append(endless)
            return endless
        return {"did": do}
"""


def server_in(folder: Path, code: str, *, environ: dict[str, str] | None = None, **options: Any) -> Server:
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    config = CONFIG.format(**{"timeout_s": 60, "retries": 2, "age_s": 3600, "notes": notes, **options})
    return Server(folder / "project", code=code, config=config, environ=environ)


@pytest.fixture
def ending() -> Iterator[list[Server]]:
    """A list for servers that are to be killed when the test ends."""
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.kill_all()


def send(server: Server, events: list[Any]) -> dict[str, Any]:
    """Invoke asynchronously and return the accepted events by request id."""
    client = server.client("lambda")
    accepted = {}
    for event in events:
        answer = client.invoke(FunctionName="work", InvocationType="Event", Payload=json.dumps(event))
        accepted[answer["ResponseMetadata"]["RequestId"]] = event
    client.close()
    return accepted


def until_idle(server: Server) -> None:
    until(lambda: server.unfinished() == 0)


def test_whatever_a_handler_does_each_event_ends_and_is_told(tmp_path: Path, ending: list[Server]) -> None:
    server = server_in(tmp_path, BAD, timeout_s=4, retries=1)
    ending.append(server)
    server.up()
    expected = {
        "segv": "Runtime.ExitError",
        "exit": "Runtime.ExitError",
        "sleep": "Sandbox.Timedout",
        "memory": "Runtime.ExitError",
        "set": "Runtime.MarshalError",
        "bytes": "Runtime.MarshalError",
        "endless": "Runtime.MarshalError",
        "seven megabytes": "Function.ResponseSizeTooLarge",
        "nan": None,
        "more than an item": None,
    }
    events = [{"do": do} for bad in expected for do in (bad, f"well after {bad}")]
    accepted = send(server, events)
    until_idle(server)
    results, failures = server.rows("results"), server.rows("failures")
    assert server.status()["functions"]["work"]["dead"] == len(expected)
    for request_id, event in accepted.items():
        do = event["do"]
        if do not in expected:
            assert results[request_id] == {"did": do}
            continue
        assert request_id not in results
        assert f"event {request_id} becomes a dead letter" in server.said()
        if do == "more than an item":  # its record is too large as well, so the event is only among the dead letters
            assert f"key '{request_id}': the item has 500013 bytes; at most 409600 are allowed" in server.said()
            continue
        record = failures[request_id]
        assert record["requestPayload"] == event
        assert record["requestContext"]["requestId"] == request_id
        if do == "nan":
            assert record["requestContext"]["condition"] == "DestinationRefused"
            continue
        assert record["requestContext"]["condition"] == "RetriesExhausted"
        assert record["requestContext"]["approximateInvokeCount"] == 2
        assert record["responsePayload"]["errorType"] == expected[do]
    assert len(results) + len(failures) == len(accepted) - 1
    server.stop()


# Damage to the state file

WAITING = """
    import os, time
    def handler(event, context):
        time.sleep(3600)
"""
WORKING = """
    def handler(event, context):
        return {"number": event["number"]}
"""


def queued(folder: Path, count: int = 400) -> tuple[Server, dict[str, Any]]:
    """Return a server that was killed with `count` events in its queue and an empty write-ahead log of its state
    file."""
    server = server_in(folder, WAITING)
    try:
        server.up()
        accepted = send(server, [{"number": number, "padding": "x" * 500} for number in range(count)])
    finally:
        server.kill_all()
    with contextlib.closing(sqlite3.connect(server.data / "thawd.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (server.root / "app.py").write_text(textwrap.dedent(WORKING))
    return server, accepted


def page_of(file: Path, name: str) -> tuple[int, int]:
    """Return offset and size of a leaf page in the middle of a table or an index.

    Source: SQLite file format, "B-tree Pages".
    """
    with contextlib.closing(sqlite3.connect(file)) as db:
        (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
        (number,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    content = file.read_bytes()
    while content[(start := (number - 1) * page_bytes)] in (2, 5):
        (cells,) = struct.unpack_from(">H", content, start + 3)
        (cell,) = struct.unpack_from(">H", content, start + 12 + 2 * (cells // 2))
        (number,) = struct.unpack_from(">I", content, start + cell)
    return start, page_bytes


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a project whose server was killed, and the events in its queue."""
    server, accepted = queued(tmp_path_factory.mktemp("killed"))
    return server.root, accepted


@pytest.mark.parametrize("name", ["events", "payloads", "events_by_turn", "depths", "header", "schema"])
def test_a_damaged_page_is_told_and_once_it_is_mended_nothing_is_lost(
    tmp_path: Path, ending: list[Server], killed: tuple[Path, dict[str, Any]], name: str
) -> None:
    root, accepted = killed
    shutil.copytree(root, tmp_path / "project", symlinks=True)
    server = server_in(tmp_path, WORKING)
    ending.append(server)
    file = server.data / "thawd.db"
    start, size = {"header": (0, 100), "schema": (100, 3000)}.get(name) or page_of(file, name)
    flip(file, start, size)
    # The server either refuses to start, or does what it can and reports what it cannot do.
    server.start()
    until(lambda: not server.alive or "thawd.db is damaged" in server.said())
    if not server.alive:
        assert ".recover`" in server.said() or "is not a SQLite database" in server.said()
        assert "was not changed" in server.said()
    assert "Traceback" not in server.said()
    server.kill_all()
    assert all(row == {"number": accepted[key]["number"]} for key, row in server.rows("results").items())
    flip(file, start, size)
    server.up()
    until_idle(server)
    assert server.rows("results") == {key: {"number": event["number"]} for key, event in accepted.items()}
    server.stop()


def flip(file: Path, start: int, size: int) -> None:
    """Invert all bits in a part of a file. Doing it twice restores the file."""
    with file.open("r+b") as open_file:
        open_file.seek(start)
        content = open_file.read(size)
        open_file.seek(start)
        open_file.write(bytes(byte ^ 0xFF for byte in content))


def test_a_state_file_of_a_newer_thawd_is_refused_and_left_as_it_is(tmp_path: Path, ending: list[Server]) -> None:
    server, accepted = queued(tmp_path, count=20)
    ending.append(server)
    file = server.data / "thawd.db"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        db.execute("PRAGMA user_version=999")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = file.read_bytes()
    with pytest.raises(Ended, match="was written by a newer thawd \\(schema version 999"):
        server.up()
    assert file.read_bytes() == before
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute(f"PRAGMA user_version={version}")
    server.up()
    until_idle(server)
    assert set(server.rows("results")) == set(accepted)
    server.stop()


def test_a_second_server_is_refused_and_the_first_is_unharmed(tmp_path: Path, ending: list[Server]) -> None:
    server = server_in(tmp_path, WORKING)
    ending.append(server)
    server.up()
    accepted = {}
    for number in range(5):
        accepted |= send(server, [{"number": 10 * number + n} for n in range(10)])
        second = prestarted.run(
            [sys.executable, "-m", "thawd", "up", "--port", "0"], cwd=server.root, capture_output=True, text=True
        )
        assert second.returncode == 1
        assert f"another thawd (process {server.pid}) uses the data folder" in second.stderr
    until_idle(server)
    assert server.rows("results") == accepted
    server.stop()


# The system clock

FAILING_ONCE = """
    import os, time
    def handler(event, context):
        path = os.path.join(os.environ["NOTES"], str(event["number"]))
        with open(path, "a") as notes:
            notes.write(f"{time.monotonic()}\\n")
        if len(open(path).readlines()) == 1:
            raise RuntimeError("not yet")
        return {"number": event["number"]}
"""
HOUR_NS = 3600 * 10**9
WAIT_S = 3


@pytest.mark.parametrize("offset_ns", [-HOUR_NS, HOUR_NS], ids=["back", "forward"])
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_events_that_wait_are_retried_in_time_when_the_clock_is_set(
    tmp_path: Path, ending: list[Server], offset_ns: int, restart: bool
) -> None:
    disk = FaultyDisk(tmp_path / "project", tmp_path / "aside", seed=1)
    # Without a restart the events' age limit is half an hour: the hour by which the clock is set must not count as age.
    age_s = 7200 if restart else 1800
    server = server_in(tmp_path, FAILING_ONCE, environ=disk.environ, age_s=age_s)
    config = server.root / "thawd.toml"
    config.write_text(config.read_text().replace("retry_wait_s = 0.05", f"retry_wait_s = {WAIT_S}"))
    ending.append(server)
    server.up()
    accepted = send(server, [{"number": number} for number in range(5)])
    notes = tmp_path / "notes"
    until(lambda: sum(len(path.read_text().splitlines()) for path in notes.iterdir()) >= 5)
    disk.clock_offset_ns = offset_ns
    if restart:
        server.kill_all()
        server.up()
    until_idle(server)
    assert server.rows("results") == accepted
    if not restart:
        for path in notes.iterdir():
            first, second = (float(line) for line in path.read_text().splitlines())
            assert second - first >= WAIT_S - 0.1
    server.stop()
