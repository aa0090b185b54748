"""Backup of a cluster while it works, and restore after everything is lost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import stat
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.integration.clusters import KEY, machines_of, until_alive
from tests.integration.conftest import Project, Running, eventually
from tests.integration.postgresql import Postgresql
from thawd.resources import StoreUrl
from thawd.server import cluster_backup as backups
from thawd.stores.cluster import saved_tables, schema
from thawd.stores.schema import open_state

CODE = """
import os, time

def handler(event, context):
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.01)
    if event.get("fails"):
        raise ValueError("as it should")
    return event
"""
CONFIG = """
durability = "cluster"
state = "{state}"

[cluster]
name = "{name}"

[functions.app]
handler = "app.handler"
on_success = "table:{table}"
maximum_retry_attempts = 0
timeout_s = 600

[functions.slow]
handler = "app.handler"
on_success = "table:{table}"
timeout_s = 600

[tables.{table}]
url = "{url}"

[schedules.nightly]
schedule = "cron(0 3 * * ? *)"
function = "app"
input = {{ nightly = true }}

[schedules.rare]
schedule = "cron(0 4 * * ? *)"
function = "app"
"""
DAYS = 40
WAITING, FAILING = 20, 3


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with Postgresql() as running:
        yield running


class Site:
    """Machines with one configuration in a folder, which share a schema.

    Args:
        folder: folder of the machines.
        server: the database.
        name: name of the schema.
        table: table of results, which survives everything.
    """

    def __init__(self, folder: Path, server: Postgresql, name: str, table: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.state = server.url(schema=name)
        self.url = server.url()
        self._table = table

    def machine(self, name: str) -> Project:
        project = Project(self.folder / name)
        project.root.mkdir()
        project.code(CODE)
        text = CONFIG.format(state=self.state, name=name, table=self._table, url=self.url)
        project.config(text.lstrip())
        return project

    def rows(self) -> Counter[str]:
        """How many rows there are for each key."""
        with psycopg.connect(self.url, autocommit=True) as sql:
            try:
                found = sql.execute(f"SELECT key FROM {self._table}").fetchall()  # type: ignore[arg-type]
            except psycopg.errors.UndefinedTable:
                return Counter()
        return Counter(key for (key,) in found)


def send(running: Running, function: str = "app", **event: Any) -> str:
    """Send an event; returns its request id."""
    answer = running.client().invoke(FunctionName=function, InvocationType="Event", Payload=json.dumps(event))
    assert answer["StatusCode"] == 202
    return str(answer["ResponseMetadata"]["RequestId"])


@contextlib.contextmanager
def requests(machines: list[Running], accepted: list[str]) -> Iterator[None]:
    """Send events to machines all the time, and note the request ids of those that were accepted."""
    ending = threading.Event()

    def work(running: Running) -> None:
        while not ending.is_set():
            with contextlib.suppress(ClientError, BotoCoreError):
                accepted.append(send(running))

    with ThreadPoolExecutor(len(machines)) as threads:
        for running in machines:
            threads.submit(work, running)
        try:
            yield
        finally:
            ending.set()


def sources(running: Running) -> dict[str, str]:
    listed = json.loads(running.project.command("source", "list", "--json").stdout)
    return {each["name"]: each["state"] for each in listed}


def back_up(site: Site, folder: Path, gate: Path) -> tuple[set[str], set[str]]:
    """Back up a cluster of two machines, and kill them.

    They have events that wait, dead letters, a paused source and the position in a stream, and get requests all the
    time. Returns the request ids of the events that were accepted before the backup began, and of the dead letters.
    """
    first, second = site.machine("a"), site.machine("b")
    with first.up(command=("cluster", "up", "--ready-when", "published")) as a:
        token = first.command("cluster", "token").stdout.strip()
        join = ("cluster", "join", str(machines_of(a)["a"]["address"]), "--ready-when", "published")
        with second.up(command=join, environ={"THAWD_JOIN_TOKEN": token}) as b:
            until_alive(a, "ab")
            until_alive(b, "ab")
            failed = {send(running, fails=True) for running in (a, b) for _ in range(FAILING)}
            eventually(lambda: count([a, b], "dead") == 2 * FAILING, what="dead letters")
            before = {send(running, "slow", gate=str(gate)) for running in (a, b) for _ in range(WAITING)}
            first.command("source", "pause", "rare")
            with psycopg.connect(site.url, autocommit=True) as sql:
                sql.execute("INSERT INTO before.stream_positions VALUES ('mapping', 'shard', '42')")
            accepted: list[str] = []
            with requests([a, b], accepted):
                eventually(lambda: len(accepted) > 20, what="accepted events")
                before |= set(accepted)
                made = first.command("cluster", "backup", str(folder), "--keys")
                assert made.returncode == 0, made.stderr
            for running in (a, b):
                running.process.send_signal(signal.SIGKILL)
                running.process.wait(300)
    return before, failed


def test_a_cluster_that_lost_everything_is_restored_on_new_machines(server: Postgresql, tmp_path: Path) -> None:
    # Given the backup of a cluster that has lost everything else
    before = Site(tmp_path / "before", server, "before", "results")
    folder, gate = tmp_path / "backup", tmp_path / "gate"
    accepted, failed = back_up(before, folder, gate)
    shutil.rmtree(before.folder)
    with psycopg.connect(server.url(), autocommit=True) as sql:
        sql.execute("DROP SCHEMA before CASCADE")
    check_files(folder)
    # When it is restored: the database, and one of two machines; the other one is new and has another name
    after = Site(tmp_path / "after", server, "after", "results")
    first, third = after.machine("a"), after.machine("c")
    restored = first.command("cluster", "restore", str(folder))
    assert restored.returncode == 0, restored.stderr
    assert "have rows already" in first.command("cluster", "restore", str(folder)).stderr
    own = first.command("cluster", "restore", str(folder), "--machine", "a")
    assert own.returncode == 0, own.stderr
    anchor = put_back(server)
    gate.touch()
    with first.up(command=("up", "--ready-when", "published")) as a:
        token = first.command("cluster", "token").stdout.strip()
        join = ("cluster", "join", str(machines_of(a)["a"]["address"]), "--ready-when", "published")
        with third.up(command=join, environ={"THAWD_JOIN_TOKEN": token}) as c:
            until_alive(a, "ac")
            # Then each event that was accepted before has its row once
            eventually(lambda: accepted <= after.rows().keys(), what="a row for each accepted event")
            eventually(lambda: count([a, c], "queued") == 0, what="the end of all events")
            assert set(after.rows().values()) == {1}
            letters = [each["request_id"] for running in (a, c) for each in document(running, "dead")["dead_letters"]]
            assert sorted(letters) == sorted(failed)
            assert sources(a)["rare"] == "Disabled"
            # And of the times that have passed, a schedule runs as after a time without a server: once
            state = eventually(lambda: has_run(schedules(server, "after")["nightly"]), what="a run of the schedule")
            assert (state["runs"], state["anchor"]) == (1, anchor)


def put_back(server: Postgresql) -> float:
    """Have the restored schedule be late by many runs; returns its anchor."""
    with psycopg.connect(server.url(), autocommit=True) as sql:
        assert sql.execute("SELECT position FROM after.stream_positions").fetchall() == [(b"42",)]
        state = schedules(server, "after")["nightly"]
        late = {**state, "done_until": state["done_until"] - DAYS * 86400}
        sql.execute("UPDATE after.schedules SET state = %s WHERE name = 'nightly'", (json.dumps(late).encode(),))
    return float(state["anchor"])


def document(running: Running, name: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{running.url}/_thawd/{name}", timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def count(machines: list[Running], column: str) -> int:
    """How many events the machines have together, in one state."""
    found = [entry for each in machines for entry in document(each, "queue")["functions"].values()]
    return sum(entry[column] for entry in found)


def schedules(server: Postgresql, name: str) -> dict[str, dict[str, Any]]:
    with psycopg.connect(server.url(), autocommit=True) as sql:
        found = sql.execute(f"SELECT name, state FROM {name}.schedules").fetchall()  # type: ignore[arg-type]
    return {key: json.loads(state) for key, state in found}


def has_run(state: dict[str, Any]) -> dict[str, Any] | None:
    return state if state["runs"] else None


def check_files(folder: Path) -> None:
    """Only the owner can read the backup, and no event is in it twice."""
    for path in folder.rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert sorted(path.name for path in (folder / "keys").iterdir()) == ["authority-key.pem", "authority.pem", "key"]
    copies = (folder / "shared" / "event_copies.copy").read_bytes()
    shared = {line.split(b"\t")[0].decode() for line in copies.splitlines()}
    assert len(shared) >= 2 * (WAITING + FAILING)
    for name in ("a", "b"):
        with contextlib.closing(sqlite3.connect(folder / "machines" / name / "thawd.db")) as state:
            kept = {key for (key,) in state.execute("SELECT copy_key FROM events WHERE copy_key IS NOT NULL")}
            assert not kept & shared


class Small:
    """A machine that does not run, with three events in the database, and the backup of its cluster."""

    def __init__(self, folder: Path, server: Postgresql) -> None:
        self.server = server
        self.site = Site(folder / "site", server, "small", "small_results")
        self.project = self.site.machine("a")
        self.project.data.mkdir(mode=0o700)
        open_state(self.project.data / "thawd.db").close()
        schema.prepare(StoreUrl(text=self.site.state, shown="there"))
        with psycopg.connect(server.url(), autocommit=True) as sql:
            for key in "xyz":
                sql.execute("INSERT INTO small.event_copies (key, owner, event) VALUES (%s, 'a', %s)", (key, b"\\\n\t"))
            sql.execute("INSERT INTO small.settings VALUES ('authority', 'that of the lost cluster')")
        self.folder = folder / "backup"
        made = self.project.command("cluster", "backup", str(self.folder))
        assert made.returncode == 0, made.stderr

    def target(self, folder: Path, name: str) -> Project:
        """A new machine with another schema."""
        return Site(folder / "target", self.server, name, "small_results").machine("a")


@pytest.fixture(scope="module")
def small(server: Postgresql, tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("small"), server)


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def with_manifest(folder: Path, **fields: Any) -> None:
    """Change the manifest and its checksum, as another version of thawd could have written it."""
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=backups.ClusterManifest)
    manifest = msgspec.structs.replace(manifest, **fields)
    manifest = msgspec.structs.replace(manifest, digest=backups.digest_of(manifest))
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))


def is_foreign(folder: Path) -> None:
    with_manifest(folder, machines=["a"])
    (folder / "shared" / "other.copy").write_text("of another backup")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte": (lambda at: edit(at / "shared/event_copies.copy", lambda data: b"Z" + data[1:]), "missing or damaged"),
    "cut": (lambda at: edit(at / "shared/event_copies.copy", lambda data: data[:-1]), "missing or damaged"),
    "doubled": (lambda at: edit(at / "shared/event_copies.copy", lambda data: data * 2), "missing or damaged"),
    "a missing file": (lambda at: (at / "shared/settings.copy").unlink(), "missing or damaged"),
    "a state file": (lambda at: edit(at / "machines/a/thawd.db", lambda data: data[:-4096]), "missing or damaged"),
    "a foreign file": (is_foreign, "a file that is not of this backup"),
    "the manifest": (
        lambda at: edit(at / "manifest.json", lambda data: data.replace(b'"rows": 3', b'"rows": 2')),
        "is damaged",
    ),
    "half a manifest": (lambda at: edit(at / "manifest.json", lambda data: data[:100]), "not a backup of a cluster"),
    "no manifest": (lambda at: (at / "manifest.json").unlink(), "not a backup of a cluster"),
    "one machine": (lambda at: (at / "machines/a").rename(at.with_name("one")), ""),
    "a newer format": (lambda at: with_manifest(at, format=2, thawd="9.9.9"), "made by a newer thawd, 9.9.9"),
    "a newer schema": (
        lambda at: with_manifest(at, saved=saved_tables.Saved([1, 2, 3, 99], {}), thawd="9.9.9"),
        "made by a newer thawd, 9.9.9",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_backup_that_is_not_whole_restores_nothing(small: Small, tmp_path: Path, damage: str) -> None:
    change, reason = DAMAGES[damage]
    copy = tmp_path / "copy"
    shutil.copytree(small.folder, copy)
    change(copy)
    if damage == "one machine":
        copy, reason = tmp_path / "one", "`thawd restore"
    target = small.target(tmp_path, f"target_{abs(hash(damage))}")
    for options in ((), ("--machine", "a")):
        refused = target.command("cluster", "restore", str(copy), *options)
        assert refused.returncode == 1
        assert reason in refused.stderr
    assert not target.data.exists() or not (target.data / "thawd.db").exists()
    with psycopg.connect(small.server.url(), autocommit=True) as sql:
        found = sql.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (f"target_{abs(hash(damage))}",))
        assert found.fetchone() is None


def test_a_restore_that_fails_halfway_leaves_nothing_and_can_be_repeated(small: Small, tmp_path: Path) -> None:
    target = small.target(tmp_path, "halfway")
    wrong = tmp_path / "wrong"
    shutil.copytree(small.folder, wrong)
    manifest = backups.check(small.folder, lambda line: None)
    tables = {**manifest.saved.tables, "stream_positions": saved_tables.SavedTable(["mapping", "shard"], 1)}
    with_manifest(wrong, saved=saved_tables.Saved(manifest.saved.migrations, tables))
    failed = target.command("cluster", "restore", str(wrong))
    assert "has 0 rows, and the backup 1" in failed.stderr
    with psycopg.connect(small.server.url(), autocommit=True) as sql:
        assert sql.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'halfway'").fetchone() is None
        # A machine that was started too early has made tables, which are empty after it has gone.
        schema.prepare(StoreUrl(text=small.server.url(schema="halfway"), shown="there"))
        whole = target.command("cluster", "restore", str(small.folder))
        assert whole.returncode == 0, whole.stderr
        events = sql.execute("SELECT key, owner, event FROM halfway.event_copies ORDER BY key").fetchall()
        assert events == [(key, "a", b"\\\n\t") for key in "xyz"]
        # Without keys in the backup, the cluster gets another authority.
        assert sql.execute("SELECT name FROM halfway.settings").fetchall() == []
        assert sql.execute("SELECT name, until <= clock_timestamp() FROM halfway.leases").fetchall() == [
            ("machine:a", True)
        ]


def test_each_table_is_saved_or_left_out_on_purpose(small: Small) -> None:
    with psycopg.connect(small.server.url(), autocommit=True) as sql:
        found = sql.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'small'").fetchall()
    assert sorted(name for (name,) in found) == sorted((*saved_tables.SAVED, *saved_tables.LEFT_OUT))


def test_a_machine_that_does_not_answer_leaves_no_backup(small: Small, tmp_path: Path) -> None:
    with psycopg.connect(small.server.url(), autocommit=True) as sql:
        sql.execute(
            "INSERT INTO small.leases VALUES ('machine:lost', 'lost/1', 1, clock_timestamp() + interval '1 hour')"
        )
        sql.execute("INSERT INTO small.machines VALUES ('lost', 1, '127.0.0.1:1', '')")
        try:
            environ = {**os.environ, "THAWD_CLUSTER_KEY": KEY}
            refused = small.project.command("cluster", "backup", str(tmp_path / "backup"), env=environ)
        finally:
            sql.execute("DELETE FROM small.leases")
            sql.execute("DELETE FROM small.machines")
    assert refused.returncode == 1
    assert "there is no backup: " in refused.stderr
    assert list(tmp_path.iterdir()) == []
