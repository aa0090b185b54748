"""The run that all crash tests share: clients send while the server is killed repeatedly, then nothing may be
missing."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients import client_of
from tests.durability.ledger import BUCKET, CODE, CONFIG, Ledger, body_of
from tests.durability.server import Ended, Server, until
from tests.durability.traffic import Traffic

MOMENTS = {"after an acknowledgement": 4, "during a request": 4, "during the start": 3, "while events run": 2}
"""Moments at which the server is killed, with their relative frequencies."""
_AT_A_SYNC = {"at a sync": 6}
_LONGEST_REQUEST_S = 0.02
_LONGEST_START_S = 0.8
_LONGEST_RUN_S = 0.3


@dataclass(frozen=True)
class Plan:
    """How much is sent, and how often the server is killed.

    Attributes:
        uploads: number of objects.
        invocations: number of asynchronous invocations.
        kills: number of times the server is killed.
        seed: seed of all random choices.
    """

    uploads: int
    invocations: int
    kills: int
    seed: int


def chosen_seed() -> int:
    """Return THAWD_SEED, or a new seed; pytest prints it with a failure."""
    seed = int(os.environ.get("THAWD_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"seed {seed}: repeat with THAWD_SEED={seed}")
    return seed


def working_server(root: Path, *, environ: dict[str, str] | None = None) -> Server:
    """Return a server with the function and the tables that `Ledger` expects."""
    attempts = root.parent / "attempts"
    attempts.mkdir(exist_ok=True)
    return Server(root, code=CODE, config=CONFIG.format(attempts=attempts), environ=environ)


class Crashes:
    """Kills a server according to a plan.

    Args:
        server: the server to kill.
        plan: how often to kill it.
        dead: called after each kill, before the next start.
        machine: kill all processes together, as a power cut does, and not only the server.
        insist: start the server again if it refuses to start because of disk faults.
        arm: called with True to make the server die at one of its next syncs, with False to cancel that. None if this
            is not possible.

    Attributes:
        ledger: what the clients recorded.
        moments: how often the server was killed at each kind of moment.
        sent: set after all clients have finished.
        refusals: number of starts that the server refused.
    """

    def __init__(
        self,
        server: Server,
        plan: Plan,
        *,
        dead: Callable[[], None] = lambda: None,
        machine: bool = False,
        insist: bool = False,
        arm: Callable[[bool], None] | None = None,
    ) -> None:
        self.server = server
        self.plan = plan
        self.ledger = Ledger(plan.seed)
        self.moments: Counter[str] = Counter()
        self.sent = threading.Event()
        self._dead = dead
        self.refusals = 0
        self._machine = machine
        self._insist = insist
        self._arm = arm
        self._chance = random.Random(plan.seed)
        self._request = threading.Event()
        self._traffic = Traffic(
            server,
            self.ledger,
            uploads=plan.uploads,
            invocations=plan.invocations,
            before_request=self._request.set,
        )

    def run(self) -> None:
        """Run traffic and kills, then wait until all events have ended."""
        self.server.start()
        pool, clients = self._traffic.run()
        try:
            for number in range(self.plan.kills):
                self._one_life(number)
                self._dead()
                self.server.start()
            until(lambda: self._until_serving() and all(client.done() for client in clients))
            for client in clients:
                client.result()
        finally:
            self.sent.set()
            self._traffic.stop()
            pool.shutdown(wait=self.server.alive)
            gc.collect()  # connections that a kill cut off; a test that crashes servers ignores warnings about them
        self._until_serving()
        until_at_rest(self.server, self.ledger)

    def _until_serving(self) -> bool:
        """Wait until the server serves. Raise `Ended` if it ends first, unless disk faults are expected."""
        while True:
            try:
                self.server.until_serving()
            except Ended:
                if not self._insist:
                    raise
                self.refusals += 1
                self.server.kill_all()
                self.server.start()
            else:
                return True

    def _one_life(self, number: int) -> None:
        """Let the server run until the chosen moment, then kill it."""
        moments = MOMENTS if self._arm is None else MOMENTS | _AT_A_SYNC
        (moment,) = self._chance.choices(list(moments), list(moments.values()))
        self.moments[moment] += 1
        if moment == "during the start":
            time.sleep(self._chance.uniform(0.0, _LONGEST_START_S))
        else:
            self._until_serving()
            goal = int(self._traffic.total * (number + self._chance.random()) / (self.plan.kills + 1))
            self.ledger.until_accepted(goal)
            self._kill_environment()
            if moment == "during a request" and len(self.ledger.accepted) < self._traffic.total:
                self._request.clear()
                until(lambda: self._request.is_set() or len(self.ledger.accepted) >= self._traffic.total)
                time.sleep(self._chance.uniform(0.0, _LONGEST_REQUEST_S))
            elif moment == "at a sync" and self._arm is not None:
                self._arm(True)
                until(lambda: not self.server.alive or len(self.ledger.accepted) >= self._traffic.total)
                self._arm(False)
            elif moment == "while events run":
                time.sleep(self._chance.uniform(0.0, _LONGEST_RUN_S))
            else:
                self.ledger.until_accepted(min(len(self.ledger.accepted) + 1, self._traffic.total))
        if self._machine:
            self.server.kill_all()
        else:
            self.server.kill()

    def _kill_environment(self) -> None:
        there = self.server.environments()
        if there and self._chance.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(there), signal.SIGKILL)
                self.ledger.environments_killed += 1

    def verify(self) -> None:
        """Stop the server and check that everything it accepted is stored."""
        self.server.stop()
        ledger = self.ledger
        assert "Traceback" not in self.server.said(), self.server.said()[-8000:]
        ledger.verify(self.server.rows("results"), self.server.rows("failures"))
        for key, token in ledger.accepted.items():
            if key.endswith(".json"):
                content = (self.server.root / BUCKET / key).read_bytes()
                assert content == body_of(token), f"seed {ledger.seed}: {key} is not what was uploaded"

    def told(self) -> str:
        """Return one line about what happened."""
        ledger = self.ledger
        return (
            f"seed {ledger.seed}: {len(ledger.accepted)} accepted, {len(ledger.unsure)} unsure "
            f"({dict(ledger.refused)}); server killed {dict(self.moments)}, "
            f"{ledger.environments_killed} environments killed"
        )


def until_at_rest(server: Server, ledger: Ledger) -> None:
    """Wait until the server has recorded every accepted object, and no event waits or runs."""
    folder = server.root / BUCKET
    # A file that is missing is lost. `Ledger.verify` reports it.
    wanted = {key for key in ledger.accepted if key.endswith(".json") and (folder / key).exists()}
    s3 = client_of(server.url, "s3", retries=None)
    # An object is listed once it is recorded. Its event was queued in the same transaction.
    until(lambda: wanted <= listed(s3))
    until(lambda: server.unfinished() == 0)
    s3.close()


def listed(s3: Any) -> set[str]:
    """Return the keys of the objects that the server has recorded."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return {entry["Key"] for page in pages for entry in page.get("Contents", [])}
