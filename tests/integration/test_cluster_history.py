"""A cluster whose machines are killed, paused and cut off while clients send events and requests.

THAWD_CLUSTER_EVENTS=100000 runs a long history with four machines, each on a host of its own if the tests may make
network namespaces; the default is a short one with three. THAWD_CLUSTER_SEED chooses other faults, and
THAWD_CLUSTER_KILLS the least number of kills. THAWD_CLUSTER_MINUTES ends a history that takes longer.
THAWD_CLUSTER_CALM_S are seconds without faults after each group of faults, in which most calls are made.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import hosts
from tests.integration.cluster_faults import Faults
from tests.integration.cluster_history import CODE, TIMEOUT_S, Call, History
from tests.integration.cluster_machines import Machines, machines
from tests.integration.conftest import eventually

EVENTS = int(os.environ.get("THAWD_CLUSTER_EVENTS", "20"))
KILLS = int(os.environ.get("THAWD_CLUSTER_KILLS", "30" if EVENTS > 1000 else "1"))
CALM_S = float(os.environ.get("THAWD_CLUSTER_CALM_S", "20" if EVENTS > 1000 else "0"))
MINUTES = float(os.environ.get("THAWD_CLUSTER_MINUTES", "inf"))
SEED = int(os.environ.get("THAWD_CLUSTER_SEED", "1"))
IS_LONG = EVENTS > 1000
LIMIT = 8 if IS_LONG else 4
SENDERS = 16 if IS_LONG else 8
PACE_S, RUN_S = (0.01, 0.04) if IS_LONG else (0.1, 0.5)
MOST_RECOVERY_S = 10.0
CONFIG = f"""
    [functions.app]
    handler = "app.handler"
    reserved_concurrency = {LIMIT}
    timeout_s = {TIMEOUT_S}
    maximum_retry_attempts = 2
    on_success = "table:done"
    environment = {{HISTORY = "FOLDER"}}

    [functions.of-tenants]
    handler = "app.handler"
    tenants = true
    reserved_concurrency = {LIMIT}
    timeout_s = {TIMEOUT_S}
    maximum_retry_attempts = 2
    on_success = "table:done"
    environment = {{HISTORY = "FOLDER"}}

    [functions.flow]
    handler = "app.flow"
    reserved_concurrency = {LIMIT}
    timeout_s = {TIMEOUT_S}
    environment = {{HISTORY = "FOLDER"}}

    [tables.done]
    url = "DATABASE"
    """


class Senders:
    """Clients that send events and requests to all machines until the end of the block."""

    def __init__(self, cluster: Machines, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._numbers = itertools.count()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(seed,)) for seed in range(SENDERS)]

    def _send(self, seed: int) -> None:
        source = random.Random(seed)
        clients = {site.name: site.client() for site in self._cluster.sites}
        while not self._is_over.is_set():
            name = source.choice(list(clients))
            is_done = self._history.send(clients[name], name, self._call(source))
            time.sleep(PACE_S if is_done else 5 * PACE_S)
        for client in clients.values():
            client.close()

    def _call(self, source: random.Random) -> Call:
        function = source.choice(["app", "app", "app:live", "of-tenants", "flow"])
        is_event = function != "flow" and source.random() < 0.6
        tenant = source.choice(["blue", "green"]) if function == "of-tenants" else None
        return Call(next(self._numbers), function, is_event, source.uniform(0, RUN_S), tenant)

    def __enter__(self) -> Senders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def make_alias(cluster: Machines) -> None:
    """Publish a version on each machine, with the alias ``live``."""
    for site in cluster.sites:
        client = site.client()
        for path, body in (("versions", b"{}"), ("aliases", b'{"Name": "live", "FunctionVersion": "1"}')):
            assert client.post(f"/2015-03-31/functions/app/{path}", body)[0] == 201
        client.close()


def rows(cluster: Machines) -> list[Any]:
    with psycopg.connect(cluster.server.url(), autocommit=True) as sql:
        return [row[0] for row in sql.execute("SELECT item FROM done").fetchall()]


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder outside /tmp, because tenants share no data folder in /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="thawd-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_no_failure_loses_an_event_runs_a_request_twice_or_exceeds_a_limit(root: Path) -> None:
    history = History(root / "history")
    config = CONFIG.replace("FOLDER", str(history.folder))
    on_hosts = IS_LONG and hosts.why_none() is None
    with machines(root, "abcd" if IS_LONG else "abc", config, code=CODE, on_hosts=on_hosts) as cluster:
        make_alias(cluster)
        faults = Faults(cluster, history, seed=SEED)
        begun_s = time.monotonic()

        def is_enough() -> bool:
            if time.monotonic() - begun_s > MINUTES * 60:
                return True
            kills = sum(count for fault, count in faults.counts.items() if "killed" in fault)
            is_long_enough = len(history.accepted) >= EVENTS and len(history.answered) >= (EVENTS if IS_LONG else 5)
            return is_long_enough and kills >= KILLS and history.most_at_once()["app"] >= LIMIT

        with Senders(cluster, history):
            faults.disturb("killed", "paused", "cut off")
            faults.disturb(*faults.sample(2))
            while not is_enough():
                faults.disturb(*faults.sample(3))
                time.sleep(CALM_S)
                if IS_LONG and not sum(faults.counts.values()) % 10:
                    print(faults.report().splitlines()[-1], dict(history.answers), flush=True)
                print(f"{time.monotonic() - begun_s:.0f} s", len(history.accepted), len(history.answered), flush=True)

        def dead() -> dict[int, str]:
            return {n: why for site in cluster.sites for n, why in site.dead_letters().items()}

        eventually(
            lambda: history.accepted <= {*(row["n"] for row in rows(cluster)), *dead()},
            what="a row or dead letter for each event",
        )
        print(f"{dict(history.answers)}\nat the same time {dict(history.most_at_once())}\n{faults.report()}")
        assert not dead()
        assert not history.mistakes(rows(cluster), limit=LIMIT)
        assert faults.p99_s() < MOST_RECOVERY_S
