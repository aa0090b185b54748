"""A private server serves one function under the given conditions, and does not touch the user's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thawd import config
from thawd.bench.conditions import Conditions
from thawd.bench.measurement_server import Place
from thawd.config import Settings
from thawd.cost.tune import COLD, RESTORED, TuneConditions
from thawd.server.measurement import testing
from thawd.server.measurement.bench import under
from thawd.server.measurement.tune import settings_of

TOML = """
[server]
host = "0.0.0.0"
key = "a-key-that-is-long"
memory_mb = 1200
max_environments = 8
snapshots = "off"

[functions.work]
handler = "app.handler"
memory_mb = 1024
reserved_concurrency = 1
provisioned_concurrency = 1
snapshot = false
[[functions.work.sources]]
sqs = "arn:aws:sqs:us-east-1:123456789012:mine"
[functions.work.url]
auth_type = "NONE"

[functions.other]
handler = "app.handler"

[buckets.uploads]
notify = [{ function = "work" }]
[buckets.far]
url = "s3://far/away"
notify = [{ function = "work" }]
notifications = "arn:aws:sqs:us-east-1:123456789012:notices"

[schedules.hourly]
schedule = "rate(1 hour)"
function = "work"

[tables.kept]
[tables.elsewhere]
path = "elsewhere.db"

[routes]
"GET /work" = "work"
"GET /other" = "other"
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A configuration in which every kind of trigger invokes the function."""
    (tmp_path / "app.py").write_text("")
    (tmp_path / "thawd.toml").write_text(TOML)
    return config.load(tmp_path / "thawd.toml", environ={})


def place(data: Path) -> Place:
    return Place(config="", data=str(data), ready_file="", parent=1)


def conditions(data: Path, **changes: Any) -> Conditions:
    given = {"engine": "auto", "environments": 50, "provisioned": 0, **changes}
    return Conditions(place=place(data), function="work", **given)


def test_nothing_but_requests_invokes_the_function(settings: Settings, tmp_path: Path) -> None:
    made = under(settings, conditions(tmp_path / "own"))
    assert (made.sources, made.schedules, made.urls) == ({}, {}, {})
    assert list(made.functions) == ["work"]
    assert [route.key for route in made.routes] == ["GET /work"]
    assert made.buckets["uploads"].notify == () == made.remote_buckets["far"].notify
    assert made.remote_buckets["far"].notifications is None
    assert made.buckets["uploads"].path == settings.buckets["uploads"].path


def test_a_size_is_measured_with_the_function_three_times_and_nothing_else_invokes_it(
    settings: Settings, tmp_path: Path
) -> None:
    made = settings_of(settings, TuneConditions(place=place(tmp_path / "own"), function="work", memory_mb=256))
    assert [(one.name, one.snapshot, one.memory_mb) for one in made.functions.values()] == [
        ("work", False, 256),
        (COLD, False, 256),
        (RESTORED, True, 256),
    ]
    assert (made.sources, made.schedules, made.urls) == ({}, {}, {})
    assert made.buckets["uploads"].notify == () == made.remote_buckets["far"].notify
    assert made.remote_buckets["far"].notifications is None
    assert made.tables["kept"].path == tmp_path / "own" / "tables" / "kept.db"
    assert made.server.cpu_limits


def test_data_is_its_own_and_the_users_is_no_code(settings: Settings, tmp_path: Path) -> None:
    own = tmp_path / ".thawd" / "bench"
    made = under(settings, conditions(own))
    assert made.server.data == own
    assert made.tables["kept"].path == own / "tables" / "kept.db"
    assert made.tables["elsewhere"].path == tmp_path / "elsewhere.db"
    assert {own, settings.server.data} <= made.not_code()
    assert (made.server.host, made.server.port, made.server.key) == ("127.0.0.1", 0, None)


def test_there_is_room_for_one_environment_for_each_request_at_a_time(settings: Settings, tmp_path: Path) -> None:
    made = under(settings, conditions(tmp_path, environments=50))
    assert (made.server.max_environments, made.server.memory_mb) == (50, 50 * 1024)
    assert made.functions["work"].reserved_concurrency is None


@pytest.mark.parametrize(
    ("engine", "snapshot", "snapshots"),
    [
        ("auto", False, "off"),
        ("cold", False, "auto"),
        ("fork", True, "off"),
        ("thaw", True, "auto"),
        ("provisioned", True, "auto"),
    ],
)
def test_engines_are_what_the_configuration_calls_them(
    settings: Settings, tmp_path: Path, engine: str, snapshot: bool, snapshots: str
) -> None:
    made = under(settings, conditions(tmp_path, engine=engine, provisioned=3 if engine == "provisioned" else 0))
    function = made.functions["work"]
    assert (function.snapshot, made.server.snapshots) == (snapshot, snapshots)
    assert function.provisioned_concurrency == (3 if engine == "provisioned" else 0)


def test_a_projects_tests_reach_no_store_webhook_or_collector(tmp_path: Path) -> None:
    sender = """
[functions.sender]
handler = "app.handler"
on_success = "https://example.com/hook"
on_failure = "table:kept"
[tables.shared]
url = "postgresql://host/database"
"""
    (tmp_path / "app.py").write_text("")
    (tmp_path / "thawd.toml").write_text(
        TOML.replace("[server]", '[server]\ntraces = "http://collector:4318"') + sender
    )
    loaded = config.load(tmp_path / "thawd.toml", environ={})
    own = tmp_path / "own"
    made = testing.settings_of(loaded, testing.TestConditions(place=place(own)))
    assert made.remote_buckets == {}
    assert {bucket.path for bucket in made.buckets.values()} == {own / "buckets" / "uploads", own / "buckets" / "far"}
    assert made.buckets["far"].notify == loaded.remote_buckets["far"].notify
    assert (made.tables["shared"].path, made.tables["shared"].url) == (own / "tables" / "shared.db", None)
    assert made.server.traces is None
    assert made.functions["sender"].on_success is None
    assert made.functions["sender"].on_failure == loaded.functions["sender"].on_failure
