"""The tables of thawd.toml for queues and schedules, which invoke functions without a caller."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config_files import HELLO, load, mistakes
from thawd.resources import Route, Schedule, SqsSource

QUEUE = "arn:aws:sqs:eu-west-1:123456789012:orders"
SOURCE = f"{HELLO}[[functions.hello.sources]]\nsqs = '{QUEUE}'\n"
SCHEDULE = f"{HELLO}[schedules.nightly]\nfunction = 'hello'\nschedule = 'rate(5 minutes)'\n"


def test_queues_belong_to_their_function_and_do_not_change_its_version(tmp_path: Path) -> None:
    text = SOURCE + (
        "batch_size = 100\nwindow_s = 5\nmaximum_concurrency = 2\nreport_batch_item_failures = true\nenabled = false\n"
        "filters = [{ body = { a = [1, { exists = false }] } }, '{\"body\": [null]}']\n"
        "[[functions.hello.sources]]\nsqs = 'http://127.0.0.1:9324/000000000000/other'\n"
    )
    settings = load(tmp_path, text)
    assert settings.functions == load(tmp_path, HELLO).functions
    assert settings.sources == {
        "hello": (
            SqsSource(
                sqs=QUEUE,
                batch_size=100,
                window_s=5,
                maximum_concurrency=2,
                filters=('{"body": {"a": [1, {"exists": false}]}}', '{"body": [null]}'),
                report_batch_item_failures=True,
                enabled=False,
            ),
            SqsSource(sqs="http://127.0.0.1:9324/000000000000/other"),
        )
    }


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("batch_size = 0", "batch_size"),
        ("batch_size = 10001\nwindow_s = 1", "batch_size"),
        ("batch_size = 11", "batch_size"),
        ("window_s = 301", "window_s"),
        ("window_s = 1.5", "window_s"),
        ("maximum_concurrency = 1", "maximum_concurrency"),
        ("filters = []", "filters"),
        ("filters = [1]", "filters[0]"),
        ("filters = [{ body = 'x' }]", "filters[0]"),
        ("filters = [{ body = ['x'] }, '{']", "filters[1]"),
        ("filters = [{ at = [2026-01-01] }]", "filters[0]"),
        (f"filters = [{', '.join(['{ a = [1] }'] * 6)}]", "filters"),
        ("enabled = 'no'", "enabled"),
        ("name = 'x'", "name"),
    ],
)
def test_a_mistake_in_a_queue_is_told_once_and_by_its_place(tmp_path: Path, line: str, key: str) -> None:
    assert [one.key for one in mistakes(tmp_path, f"{SOURCE}{line}\n")] == [f"functions.hello.sources[0].{key}"]


@pytest.mark.parametrize(
    "queue", ["orders", "arn:aws:sns:eu-west-1:123456789012:orders", "http://127.0.0.1/orders", ""]
)
def test_a_queue_has_an_arn_or_a_url(tmp_path: Path, queue: str) -> None:
    text = f"{HELLO}[[functions.hello.sources]]\nsqs = '{queue}'\n"
    assert [one.key for one in mistakes(tmp_path, text)] == ["functions.hello.sources[0].sqs"]


@pytest.mark.parametrize(
    ("line", "key"), [("batch_size = 11\nwindow_s = 0", "batch_size"), ("window_s = 1", "window_s")]
)
def test_a_fifo_queue_has_small_batches_and_no_window(tmp_path: Path, line: str, key: str) -> None:
    text = SOURCE.replace(":orders", ":orders.fifo") + line + "\n"
    assert [one.key for one in mistakes(tmp_path, text)] == [f"functions.hello.sources[0].{key}"]


def test_a_queue_is_named_once_for_a_function(tmp_path: Path) -> None:
    url = QUEUE.replace("arn:aws:sqs:eu-west-1:123456789012:", "https://sqs.eu-west-1.amazonaws.com/123456789012/")
    [problem] = mistakes(tmp_path, f"{SOURCE}[[functions.hello.sources]]\nsqs = '{url}'\n")
    assert (problem.key, problem.found) == ("functions.hello.sources[1].sqs", "the same queue again")


def test_a_schedule_has_a_function_times_and_an_event(tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text('{"a": 1}')
    text = SCHEDULE + "timezone = 'Europe/Berlin'\ninput = 'event.json'\nmissed = 'all'\nenabled = false\n"
    assert load(tmp_path, text).schedules == {
        "nightly": Schedule(
            name="nightly",
            function="hello",
            schedule="rate(5 minutes)",
            timezone="Europe/Berlin",
            input=b'{"a": 1}',
            missed="all",
            enabled=False,
        )
    }
    assert load(tmp_path, SCHEDULE + "input = { a = 1 }\n").schedules["nightly"].input == b'{"a": 1}'


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ("'hello'\ns", "'helo'\ns", "schedules.nightly.function"),
        ("function = 'hello'\n", "", "schedules.nightly.function"),
        ("rate(5 minutes)", "rate(5 minute)", "schedules.nightly.schedule"),
        ("rate(5 minutes)", "cron(0 12 * * *)", "schedules.nightly.schedule"),
        (
            "schedule = 'rate(5 minutes)'",
            "timezone = 'Mars/Olympus'\nschedule = 'rate(5 minutes)'",
            "schedules.nightly.timezone",
        ),
        ("schedule = 'rate(5 minutes)'", "missed = 'never'\nschedule = 'rate(5 minutes)'", "schedules.nightly.missed"),
        (
            "schedule = 'rate(5 minutes)'",
            "input = 'none.json'\nschedule = 'rate(5 minutes)'",
            "schedules.nightly.input",
        ),
        ("schedules.nightly", "schedules.'a/b'", 'schedules."a/b"'),
    ],
)
def test_a_mistake_in_a_schedule_is_told_once_and_by_its_place(
    tmp_path: Path, before: str, after: str, key: str
) -> None:
    assert [one.key for one in mistakes(tmp_path, SCHEDULE.replace(before, after))] == [key]


def test_a_route_may_be_asynchronous(tmp_path: Path) -> None:
    text = HELLO + "[routes]\n'POST /hook' = { function = 'hello', asynchronous = true }\n"
    assert load(tmp_path, text).routes == (Route(key="POST /hook", function="hello", asynchronous=True),)
