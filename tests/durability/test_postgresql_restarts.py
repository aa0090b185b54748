"""The crash test with tables in a PostgreSQL server that is itself killed and restarted while thawd is killed."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability.crashes import Crashes, Plan, chosen_seed, working_server
from tests.integration.postgresql import Postgresql

KILLS = int(os.environ.get("THAWD_CRASHES", "3"))
EACH = int(os.environ.get("THAWD_CRASH_EVENTS", "150"))
LEAST_RESTARTS = 3
pytestmark = [
    pytest.mark.timeout(600 + EACH),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def postgresql() -> Iterator[Postgresql]:
    with Postgresql() as server:
        yield server


def test_everything_accepted_is_one_row_though_the_database_crashes_under_it(
    tmp_path: Path, postgresql: Postgresql
) -> None:
    plan = Plan(uploads=EACH, invocations=EACH, kills=KILLS, seed=chosen_seed())
    server = working_server(tmp_path / "project")
    configuration = server.root / "thawd.toml"
    text = configuration.read_text()
    for table in ("results", "failures"):
        assert f"[tables.{table}]" in text
        text = text.replace(f"[tables.{table}]", f'[tables.{table}]\nurl = "{postgresql.url()}"')
    configuration.write_text(text)
    crashes = Crashes(server, plan)
    chance = random.Random(plan.seed)
    restarts = 0
    enough = threading.Event()

    def restart_again_and_again() -> None:
        nonlocal restarts
        while not (crashes.sent.is_set() and restarts >= LEAST_RESTARTS):
            goal = len(crashes.ledger.accepted) + chance.randint(1, EACH // 3)
            crashes.ledger.until_accepted(min(goal, 2 * EACH))
            postgresql.stop()
            enough.wait(chance.uniform(0.0, 0.5))  # PostgreSQL is down for a while
            postgresql.start()
            restarts += 1

    restarting = threading.Thread(target=restart_again_and_again, daemon=True)
    restarting.start()
    try:
        crashes.run()
        enough.set()
        restarting.join()
        crashes.verify()
    finally:
        enough.set()
        server.kill_all()
        print(crashes.told(), f"{restarts} restarts of PostgreSQL")
    assert restarts >= LEAST_RESTARTS
