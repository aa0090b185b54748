"""The crash test on a faulty disk: power cuts, failing fsync, a full disk. Nothing that was accepted is lost."""

from __future__ import annotations

import io
import json
import os
import random
import sys
import threading
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests import prestarted
from tests.durability.crashes import Crashes, Plan, chosen_seed, working_server
from tests.durability.disk import MILLION, UNLIMITED, FaultyDisk
from tests.durability.ledger import body_of
from tests.durability.server import Server, until
from tests.durability.test_bad_input import send, until_idle

KILLS = int(os.environ.get("THAWD_CRASHES", "5"))
EACH = int(os.environ.get("THAWD_CRASH_EVENTS", "150"))
pytestmark = [
    pytest.mark.timeout(600 + EACH),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Machine:
    """A server on a faulty disk, and its clients. One seed determines all random choices."""

    def __init__(self, folder: Path, *, kills: int) -> None:
        seed = chosen_seed()
        self.chance = random.Random(seed)
        self.lost: Counter[str] = Counter()
        self.disk = FaultyDisk(folder / "project", folder / "aside", seed=seed)
        self.server = working_server(folder / "project", environ=self.disk.environ)
        plan = Plan(uploads=EACH, invocations=EACH, kills=kills, seed=seed)
        self.crashes = Crashes(
            self.server, plan, dead=self._power_cut, machine=True, insist=True, arm=self._die_at_a_sync
        )
        self.ledger = self.crashes.ledger

    def _power_cut(self) -> None:
        self.lost.update(self.disk.cut(self.chance))

    def _die_at_a_sync(self, armed: bool) -> None:
        before = armed and self.chance.random() < 0.5
        self.disk.die_before_sync = self.chance.randint(1, 6) if before else 0
        self.disk.die_after_sync = self.chance.randint(1, 6) if armed and not before else 0

    def run(self) -> None:
        """Send everything, wait until all events have ended, and check what is stored."""
        try:
            self.crashes.run()
            self.crashes.verify()
        finally:
            self.server.kill_all()
            disk = self.disk
            print(self.crashes.told(), dict(self.lost))
            told = f"{disk.syncs} syncs, {disk.failed_syncs} failed, {disk.refused} refused, {disk.shortened} cut short"
            print(f"{told}; {self.crashes.refusals} starts refused")


def test_what_was_accepted_survives_power_cuts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, kills=KILLS)
    machine.run()
    assert machine.lost["sectors"] > 0
    assert machine.lost["names"] > 0


def test_what_was_accepted_survives_syncs_that_fail_and_power_cuts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, kills=KILLS)
    machine.disk.sync_failures = MILLION // 15
    machine.disk.short_writes = MILLION // 50
    machine.run()
    assert machine.disk.failed_syncs > 0
    assert machine.disk.shortened > 0


def test_a_server_on_a_disk_that_fills_up_and_drains_refuses_and_goes_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path, kills=KILLS)
    disk, ledger, sent = machine.disk, machine.ledger, machine.crashes.sent
    times_full = 0

    def fill_and_drain() -> None:
        nonlocal times_full
        while not sent.is_set():
            goal = len(ledger.accepted) + machine.chance.randint(1, EACH // 5)
            until(lambda goal=goal: sent.is_set() or len(ledger.accepted) >= goal)
            refused, answered = disk.refused, sum(ledger.refused.values())
            disk.free_bytes = machine.chance.randint(0, 100_000)
            until(
                lambda refused=refused, answered=answered: (
                    sent.is_set()
                    or not machine.server.alive
                    or (disk.refused > refused + 3 and sum(ledger.refused.values()) > answered + 3)
                )
            )
            times_full += 1
            disk.free_bytes = UNLIMITED

    weather = threading.Thread(target=fill_and_drain)
    weather.start()
    try:
        machine.run()
    finally:
        sent.set()
        weather.join()
    assert times_full > 0
    assert disk.refused > 0


@pytest.mark.parametrize("fault", ["the disk failed", "the disk is full"])
def test_while_the_disk_is_not_well_nothing_is_accepted_and_then_all_goes_on(tmp_path: Path, fault: str) -> None:
    disk = FaultyDisk(tmp_path / "project", tmp_path / "aside", seed=1)
    server = working_server(tmp_path / "project", environ=disk.environ)
    event = {"token": "1-plain", "padding": "x" * 200_000}
    try:
        server.up()
        accepted = send(server, [event])
        until_idle(server)
        if fault == "the disk failed":
            disk.sync_failures = MILLION
        else:
            disk.free_bytes = 0
        with pytest.raises(ClientError, match=fault) as refused:
            for _ in range(100):  # some may still fit into the log
                accepted |= send(server, [event])
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] in (500, 503)
        (server.root / "uploads" / "2-plain.json").write_bytes(body_of("2-plain"))
        until(lambda: "objects cannot be recorded yet" in server.said() or "2-plain.json" in server.rows("results"))
        disk.heal()
        until(lambda: "2-plain.json" in server.rows("results"))
        until_idle(server)
        server.kill_all()
        disk.cut(random.Random(1))
        server.up()
        until_idle(server)
        there = server.rows("results")
        # An event that the server refused may run nevertheless, but only once.
        assert set(there) >= {*accepted, "2-plain.json"}
        assert len(there) <= len(accepted) + 2
        server.stop()
    finally:
        server.kill_all()


def test_records_in_a_bucket_survive_power_cuts(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "project", tmp_path / "aside", seed=1)
    chance = random.Random(chosen_seed())
    code = "def handler(event, context):\n    return event\n"
    config = """
        [functions.work]
        handler = "app.handler"
        on_success = "bucket:records"
        [buckets.records]
    """
    server = Server(tmp_path / "project", code=code, config=config, environ=disk.environ)
    accepted: dict[str, Any] = {}
    try:
        for turn in range(4):
            server.up()
            accepted |= send(server, [{"number": 10 * turn + n} for n in range(10)])
            until_idle(server)
            server.kill_all()
            disk.cut(chance)
            there = {path.stem: path.read_bytes() for path in (server.root / "records").rglob("[!.]*.json")}
            assert set(there) == set(accepted)
            for key, event in accepted.items():
                assert json.loads(there[key])["responsePayload"] == event
    finally:
        server.kill_all()


def make_function(client: Any, name: str, *, answer: int) -> None:
    """Make a function through the Lambda API, from a zip file. The function answers with that number."""
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("deep/er/app.py", f"def handler(event, context):\n    return {answer}\n")
    client.create_function(
        FunctionName=name,
        Runtime=f"python3.{sys.version_info.minor}",
        Role="arn:aws:iam::000000000000:role/any",
        Handler="deep.er.app.handler",
        Code={"ZipFile": package.getvalue()},
    )


def answer_of(client: Any, name: str) -> Any:
    return json.loads(client.invoke(FunctionName=name)["Payload"].read())


def test_functions_made_through_the_api_survive_power_cuts(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "project", tmp_path / "aside", seed=1)
    chance = random.Random(chosen_seed())
    server = Server(tmp_path / "project", code="", config="", environ=disk.environ)
    client = server.client("lambda")
    try:
        for turn in range(4):
            server.up()
            assert [answer_of(client, f"made-{number}") for number in range(turn)] == list(range(turn))
            make_function(client, f"made-{turn}", answer=turn)
            server.kill_all()
            disk.cut(chance)
    finally:
        client.close()
        server.kill_all()


def test_a_backup_and_a_restore_that_are_done_survive_power_cuts(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "project", tmp_path / "aside", seed=1)
    chance = random.Random(chosen_seed())
    server = Server(tmp_path / "project", code="", config="[buckets.uploads]\n", environ=disk.environ)
    objects = {f"deep/er/{number}.txt": f"{number}" for number in range(3)}

    def thawd(*arguments: str) -> None:
        command = [sys.executable, "-m", "thawd", *arguments]
        prestarted.run(command, cwd=server.root, env={**os.environ, **server.environ}, check=True)

    client = server.client("lambda")
    try:
        server.up()
        make_function(client, "made", answer=1)
        for key, text in objects.items():
            place = server.root / "uploads" / key
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        server.stop()
        disk.forget()
        for turn in range(3):
            thawd("backup", "--buckets", f"backups/{turn}")
            disk.cut(chance)
            thawd("restore", "--replace", f"backups/{turn}")
            disk.cut(chance)
            assert {key: (server.root / "uploads" / key).read_text() for key in objects} == objects
            server.up()
            assert answer_of(client, "made") == 1
            server.stop()
    finally:
        client.close()
        server.kill_all()
