"""A cluster whose machines are killed, paused and cut off while clients send events and requests.

THAWD_CLUSTER_EVENTS=100000 runs a long history; the default is a short one. What is simulated: machines are processes
with folders of their own, and a cut network is a connection to the database that forwards nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.integration.cables import Cable
from tests.integration.cluster_history import CODE, History, environment
from tests.integration.clusters import registered
from tests.integration.conftest import Running, eventually
from tests.integration.postgresql import DEFAULT_PORT, Postgresql

EVENTS = int(os.environ.get("THAWD_CLUSTER_EVENTS", "20"))
LIMIT = 4
SENDERS = 8
PAUSE_S = 5.0  # longer than a lease
PACE_S, RUN_S = (0.02, 0.1) if EVENTS > 1000 else (0.1, 0.5)


class Site:
    """A machine that fails and comes back."""

    def __init__(self, root: Path, name: str, server: Postgresql, config: str) -> None:
        self.cable = Cable(server.folder / f".s.PGSQL.{DEFAULT_PORT}")
        self.name = name
        self.running: Running | None = None
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.cable)
        state = server.url(host=str(self.cable.folder), schema="history")
        self._project = registered(root, name, state, config, server="durability = 'cluster'\n")
        self._project.code(CODE)
        self._up = contextlib.ExitStack()

    def start(self) -> None:
        self.running = self._up.enter_context(self._project.up())

    def kill(self) -> None:
        assert self.running is not None
        self.running.process.send_signal(signal.SIGKILL)
        self.running.process.wait()
        self.running = None
        self._up.close()

    def pause(self) -> None:
        assert self.running is not None
        self.running.process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        self.running.process.send_signal(signal.SIGCONT)

    def cut(self) -> None:
        self.cable.cut()
        time.sleep(PAUSE_S)
        self.cable.mend()

    def dead_letters(self) -> dict[int, str]:
        """Why each number is a dead letter on this machine."""
        assert self.running is not None
        if not self.running.function("app")["dead"]:
            return {}
        listed = self._project.command("dead", "list", "--json").stdout.splitlines()
        found = {}
        for letter in map(json.loads, listed):
            shown = json.loads(self._project.command("dead", "show", str(letter["id"])).stdout)
            found[shown["payload"]["n"]] = f"{letter['condition']}: {letter['error']}"
        return found

    def close(self) -> None:
        self._up.close()
        self._stack.close()


@contextlib.contextmanager
def sites(root: Path, server: Postgresql, names: str, config: str) -> Iterator[list[Site]]:
    with contextlib.ExitStack() as stack:
        found = []
        for name in names:
            site = Site(root, name, server, config)
            stack.callback(site.close)
            found.append(site)
            site.start()
        yield found


def test_no_failure_loses_an_event_runs_a_request_twice_or_exceeds_a_limit(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    with Postgresql() as server:
        config = f"""
            [functions.app]
            handler = "app.handler"
            reserved_concurrency = {LIMIT}
            timeout_s = 1
            maximum_retry_attempts = 2
            on_success = "table:done"
            {environment(history)}

            [tables.done]
            url = "{server.url()}"
            """
        with sites(tmp_path, server, "abc", config) as found:
            numbers, is_over = itertools.count(), threading.Event()

            def send(seed: int) -> None:
                source = random.Random(seed)
                while not is_over.is_set():
                    running = source.choice(found).running
                    if running is None:
                        continue
                    number, is_event = next(numbers), source.random() < 0.5
                    is_done = history.send(running.url, number, is_event=is_event, sleep_s=source.uniform(0, RUN_S))
                    time.sleep(PACE_S if is_done else 5 * PACE_S)

            senders = [threading.Thread(target=send, args=(seed,)) for seed in range(SENDERS)]
            for sender in senders:
                sender.start()
            try:
                for round_ in itertools.count():
                    one, other, third = (found[(round_ + place) % 3] for place in range(3))
                    one.kill()
                    other.pause()
                    one.start()
                    third.cut()
                    if len(history.accepted) >= EVENTS and history.most_at_once() >= LIMIT:  # else it was not tested
                        break
            finally:
                is_over.set()
                for sender in senders:
                    sender.join()

            def rows() -> list[int]:
                with psycopg.connect(server.url(), autocommit=True) as sql:
                    return [row[0]["n"] for row in sql.execute("SELECT item FROM done").fetchall()]

            def dead() -> dict[int, str]:
                return {n: why for site in found for n, why in site.dead_letters().items()}

            eventually(lambda: history.accepted <= {*rows(), *dead()}, what="a row or dead letter for each event")
            print(dict(history.answers), "rows", len(rows()))
            assert not dead()
            assert not history.mistakes(rows(), limit=LIMIT)
            assert len(history.answered) > EVENTS / 4
