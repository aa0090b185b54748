"""What a handler's answer says about the messages of its batch; names of queues."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.grammar.queue_names import parse
from thawd.sources.sqs.lambda_event import event, failures

IDS = ["id1", "id2", "id3"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", set()),
        (b"null", set()),
        (b"{}", set()),
        (b'{"batchItemFailures": null}', set()),
        (b'{"batchItemFailures": []}', set()),
        (b'{"something": "else"}', set()),
        (b'{"batchItemFailures": [{"itemIdentifier": "id2"}]}', {"id2"}),
        (b'{"batchItemFailures": [{"itemIdentifier": "id2"}, {"itemIdentifier": "id2"}]}', {"id2"}),
        (b'{"batchItemFailures": [{"itemIdentifier": "id1"}, {"itemIdentifier": "id3"}]}', {"id1", "id3"}),
        (b'{"batchItemFailures": [{"itemIdentifier": "unknown"}]}', None),
        (b'{"batchItemFailures": [{"itemIdentifier": "id1"}, {"itemIdentifier": "unknown"}]}', None),
        (b'{"batchItemFailures": [{"itemIdentifier": ""}]}', None),
        (b'{"batchItemFailures": [{"itemIdentifier": null}]}', None),
        (b'{"batchItemFailures": [{"badKey": "id1"}]}', None),
        (b'{"batchItemFailures": ["id1"]}', None),
        (b'{"batchItemFailures": {"itemIdentifier": "id1"}}', None),
        (b'{"batchItemFailures": "id1"}', None),
        (b'"done"', None),
        (b"[]", None),
        (b"3", None),
        (b"{", None),
        (b"NaN", None),
        (b'"\xff"', None),
    ],
)
def test_an_answer_names_the_messages_that_failed_or_all_have(answer: bytes, expected: set[str] | None) -> None:
    assert failures(answer, IDS) == expected


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_answer_names_a_message_that_is_not_there(answer: bytes) -> None:
    assert (failures(answer, IDS) or set()) <= set(IDS)


def test_an_event_is_its_records() -> None:
    assert event([b'{"a":1}', b'{"b":2}']) == b'{"Records":[{"a":1},{"b":2}]}'


@pytest.mark.parametrize(
    ("given_text", "arn", "endpoint"),
    [
        ("arn:aws:sqs:eu-west-1:123456789012:orders", "arn:aws:sqs:eu-west-1:123456789012:orders", None),
        (
            "https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo",
            "arn:aws:sqs:eu-west-1:123456789012:orders.fifo",
            "https://sqs.eu-west-1.amazonaws.com",
        ),
        (
            "https://eu-west-1.queue.amazonaws.com/123456789012/orders",
            "arn:aws:sqs:eu-west-1:123456789012:orders",
            "https://eu-west-1.queue.amazonaws.com",
        ),
        (
            "https://sqs.cn-north-1.amazonaws.com.cn/123456789012/orders",
            "arn:aws-cn:sqs:cn-north-1:123456789012:orders",
            "https://sqs.cn-north-1.amazonaws.com.cn",
        ),
        (
            "http://sqs.eu-central-1.localhost.localstack.cloud:4566/000000000000/orders",
            "arn:aws:sqs:eu-central-1:000000000000:orders",
            "http://sqs.eu-central-1.localhost.localstack.cloud:4566",
        ),
        (
            "http://127.0.0.1:9324/000000000000/orders",
            "arn:aws:sqs:us-east-1:000000000000:orders",
            "http://127.0.0.1:9324",
        ),
    ],
)
def test_a_queue_is_named_by_arn_or_url(given_text: str, arn: str, endpoint: str | None) -> None:
    queue = parse(given_text)
    assert queue is not None
    assert (queue.arn, queue.endpoint, queue.is_fifo) == (arn, endpoint, arn.endswith(".fifo"))


@pytest.mark.parametrize(
    "given_text",
    [
        "",
        "orders",
        "arn:aws:sns:eu-west-1:123456789012:orders",
        "arn:aws:sqs:eu-west-1:12:orders",
        "arn:aws:sqs:eu-west-1:123456789012:or ders",
        "arn:aws:sqs:eu-west-1:123456789012:" + "x" * 81,
        "ftp://127.0.0.1/000000000000/orders",
        "http://127.0.0.1:9324/orders",
        "http://user:password@127.0.0.1:9324/000000000000/orders",
    ],
)
def test_other_texts_name_no_queue(given_text: str) -> None:
    assert parse(given_text) is None
