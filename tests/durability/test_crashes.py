"""Every accepted event ends as one row or one dead letter, however often the server is killed.

THAWD_CRASHES is the number of times that the server is killed (default 5). THAWD_CRASH_EVENTS is the number of uploads,
and also of asynchronous invocations (default 150). ``make endurance`` sets 50 and 5,000.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.durability.crashes import Crashes, Plan, chosen_seed, working_server

KILLS = int(os.environ.get("THAWD_CRASHES", "5"))
EACH = int(os.environ.get("THAWD_CRASH_EVENTS", "150"))
pytestmark = [
    pytest.mark.timeout(600 + EACH),
    # botocore drops connections that a kill has cut, without closing them.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_everything_accepted_is_one_row_or_one_dead_letter_after_kills_at_any_moment(tmp_path: Path) -> None:
    plan = Plan(uploads=EACH, invocations=EACH, kills=KILLS, seed=chosen_seed())
    server = working_server(tmp_path / "project")
    crashes = Crashes(server, plan)
    try:
        crashes.run()
        crashes.verify()
    finally:
        server.kill_all()
        print(crashes.told())
    assert sum(crashes.moments.values()) == KILLS
