"""The crash test on a disk that breaks: power cuts, failing fsync, a disk that fills up. What was accepted is there."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.durability.crashes import Crashes, Plan, chosen_seed, working_server
from tests.durability.disk import FaultyDisk

KILLS = int(os.environ.get("THAWD_CRASHES", "5"))
EACH = int(os.environ.get("THAWD_CRASH_EVENTS", "150"))
pytestmark = [
    pytest.mark.timeout(600 + EACH),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_what_was_accepted_survives_power_cuts(tmp_path: Path) -> None:
    seed = chosen_seed()
    disk = FaultyDisk(tmp_path / "project", tmp_path / "aside", seed=seed)
    server = working_server(tmp_path / "project", environ=disk.environ)
    chance = random.Random(seed)
    lost: Counter[str] = Counter()

    def power_cut() -> None:
        lost.update(disk.cut(chance))

    plan = Plan(uploads=EACH, invocations=EACH, kills=KILLS, seed=seed)
    crashes = Crashes(server, plan, dead=power_cut, machine=True)
    try:
        crashes.run()
        crashes.verify()
    finally:
        server.kill_all()
        print(crashes.told(), dict(lost), disk.syncs)
    assert lost["sectors"] > 0
    assert lost["names"] > 0
