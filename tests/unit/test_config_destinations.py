"""The destinations of ``thawd.toml``: the valid ones, those that cannot work, and circles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config_files import HELLO, load, only_mistake
from thawd.resources import Destination

TWO = "[functions.one]\nhandler = 'app.handler'\n[functions.two]\nhandler = 'app.handler'\n"
SQS = "arn:aws:sqs:eu-west-1:123456789012:done"


def test_a_destination_without_any_such_table_is_told(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, HELLO + "on_success = 'table:labels'")

    assert problem.allowed == "nothing, because there are no tables of this file"


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("function:one", "function", "one"),
        ("function:one:live", "function", "one:live"),
        ("function:one:$LATEST", "function", "one:$LATEST"),
        ("arn:aws:lambda:us-east-1:000000000000:function:made-by-the-api:3", "function", "made-by-the-api:3"),
        ("https://example.com/hook?token=1", "http", "https://example.com/hook?token=1"),
        ("http://127.0.0.1:8000", "http", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/", "http", "http://[::1]:8000/"),
        ("http://localhost/", "http", "http://localhost/"),
        (SQS, "sqs", SQS),
        ("arn:aws-cn:sns:cn-north-1:123456789012:t", "sns", "arn:aws-cn:sns:cn-north-1:123456789012:t"),
        (
            "arn:aws:events:us-east-1:123456789012:event-bus/b",
            "events",
            "arn:aws:events:us-east-1:123456789012:event-bus/b",
        ),
        ("arn:aws:s3:::failed", "s3", "failed"),
        ("arn:aws:dynamodb:us-east-1:000000000000:table/t", "table", "t"),
    ],
)
def test_a_destination_is_read_by_its_form(tmp_path: Path, text: str, kind: str, name: str) -> None:
    settings = load(tmp_path, TWO + f"on_failure = '{text}'\n[tables.t]")

    assert settings.functions["two"].on_failure == Destination(kind, name)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("function:tow", '"function:two" (did you mean that?)'),
        ("function:own", "another function: a function cannot be its own destination"),
        ("function:own:live", "another function: a function cannot be its own destination"),
        ("arn:aws:lambda:us-east-1:000000000000:function:own", "another function"),
        ("http://example.com/hook", "https:// for other machines, or webhooks_plain_http"),
        ("https://me:secret@example.com/", "a URL without them; set server.webhook_secret"),
        ("https:///hook", "a URL with a host name"),
        ("https://example.com:99999/", "a URL with a host name"),
        ("arn:aws:sqs:us-east-1:123456789012:q.fifo", "standard queues and topics, as on Lambda"),
        ("arn:aws:lambda:us-east-1:123456789012:function:one", '"table:NAME", "bucket:NAME"'),
        ("arn:aws:kinesis:us-east-1:123456789012:stream/s", '"table:NAME", "bucket:NAME"'),
        ("ftp://example.com", '"table:NAME", "bucket:NAME"'),
        ("function:a b", '"table:NAME", "bucket:NAME"'),
        ("somewhere", '"table:NAME", "bucket:NAME"'),
    ],
)
def test_a_destination_that_cannot_work_is_told(tmp_path: Path, text: str, allowed: str) -> None:
    problem = only_mistake(tmp_path, TWO + f"[functions.own]\nhandler = 'app.handler'\non_success = '{text}'")

    assert problem.key == "functions.own.on_success"
    assert problem.allowed.startswith(allowed)
    assert "secret" not in problem.found


@pytest.mark.parametrize(
    ("own", "other", "notify"),
    [
        ("bucket:there", "", '{ function = "own" }'),
        ("bucket:there", "", '{ function = "own", suffix = ".json" }'),
        ("arn:aws:s3:::there", "", '{ function = "own", prefix = "aws/lambda/" }'),
        ("bucket:there", "function:own", '{ function = "two" }'),
    ],
)
def test_a_bucket_that_leads_back_to_its_function_is_told(tmp_path: Path, own: str, other: str, notify: str) -> None:
    problem = only_mistake(tmp_path, circle(own, other, notify))
    assert problem.key == "functions.own.on_success"
    assert problem.allowed.startswith('a bucket with no notification that leads back to "own", because')


@pytest.mark.parametrize(
    ("own", "other", "notify"),
    [
        ("bucket:there", "", '{ function = "own", suffix = ".png" }'),
        ("bucket:there", "", '{ function = "own", prefix = "in/" }'),
        ("bucket:there", "", '{ function = "own", events = ["s3:ObjectRemoved:*"] }'),
        ("arn:aws:s3:::there", "", '{ function = "own", suffix = ".json" }'),
        ("bucket:there", "", '{ function = "two" }'),
    ],
)
def test_a_bucket_that_does_not_lead_back_is_a_destination(tmp_path: Path, own: str, other: str, notify: str) -> None:
    assert load(tmp_path, circle(own, other, notify)).functions["own"].on_success is not None


def circle(own: str, other: str, notify: str) -> str:
    """Return functions ``own`` and ``two`` with these destinations, and a bucket ``there``."""
    told = f"on_success = '{other}'\n" if other else ""
    return f"""
[functions.two]
handler = 'app.handler'
{told}
[functions.own]
handler = 'app.handler'
on_success = '{own}'
[buckets.there]
notify = [{notify}]
"""


def test_a_dead_letter_queue_is_a_standard_queue_or_topic(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO + f"dead_letter = '{SQS}'")

    assert settings.functions["hello"].dead_letter == Destination("sqs", SQS)
    problem = only_mistake(tmp_path, HELLO + "dead_letter = 'arn:aws:s3:::failed'")
    assert problem.allowed == "the ARN of an SQS queue or an SNS topic"
    problem = only_mistake(tmp_path, HELLO + f"dead_letter = '{SQS}.fifo'")
    assert problem.allowed == "standard queues and topics, as on Lambda"


def test_an_address_of_another_machine_without_encryption_is_taken_when_told_so(tmp_path: Path) -> None:
    settings = load(
        tmp_path, "[server]\nwebhooks_plain_http = true\n" + HELLO + "on_success = 'http://example.com/hook'"
    )

    assert str(settings.functions["hello"].on_success) == "http://example.com/..."
