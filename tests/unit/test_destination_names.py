"""`thawd.grammar.destination_names`: what a text names, and which accounts and regions it may have."""

from __future__ import annotations

import pytest

from thawd.grammar.destination_names import address_of, function_of, is_fifo, parse, parse_dead_letter
from thawd.resources import Destination

OWN = "us-east-1:000000000000"
OTHER = "eu-west-1:123456789012"


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("table:labels", "table", "labels"),
        ("bucket:photos", "bucket", "photos"),
        ("function:notify:live", "function", "notify:live"),
        ("https://example.com/hook", "http", "https://example.com/hook"),
        (f"arn:aws:sqs:{OTHER}:dead", "sqs", f"arn:aws:sqs:{OTHER}:dead"),
        (f"arn:aws-cn:sns:{OTHER}:alarm", "sns", f"arn:aws-cn:sns:{OTHER}:alarm"),
        (f"arn:aws:events:{OTHER}:event-bus/main", "events", f"arn:aws:events:{OTHER}:event-bus/main"),
        ("arn:aws:s3:::photos", "s3", "photos"),
        (f"arn:aws:dynamodb:{OWN}:table/labels", "table", "labels"),
        (f"arn:aws:lambda:{OWN}:function:notify:$LATEST", "function", "notify:$LATEST"),
    ],
)
def test_a_destination_is_named_by_a_word_an_address_or_an_arn(text: str, kind: str, name: str) -> None:
    assert parse(text) == Destination(kind, name)


@pytest.mark.parametrize(
    "text",
    [
        "labels",
        "queue:labels",
        "table:",
        "function:no/slash",
        "ftp://example.com",
        f"arn:aws:kinesis:{OTHER}:stream",
        f"arn:aws:sqs:{OTHER}:no/slash",
        # a queue without region or account; a bucket with either
        "arn:aws:sqs::123456789012:dead",
        "arn:aws:sqs:eu-west-1::dead",
        "arn:aws:s3:eu-west-1::photos",
        "arn:aws:s3::123456789012:photos",
        # functions and tables of other accounts
        f"arn:aws:lambda:{OTHER}:function:notify",
        f"arn:aws:dynamodb:{OTHER}:table/labels",
    ],
)
def test_what_is_none_names_none(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(("service", "taken"), [("sqs", True), ("sns", True), ("events", False)])
def test_a_dead_letter_goes_to_a_queue_or_a_topic(service: str, taken: bool) -> None:
    name = "event-bus/main" if service == "events" else "dead"
    found = parse_dead_letter(f"arn:aws:{service}:{OTHER}:{name}")
    assert (found is not None) is taken
    assert parse_dead_letter("arn:aws:s3:::photos") is None
    assert parse_dead_letter("dead") is None


@pytest.mark.parametrize(
    ("address", "callable_"),
    [
        ("https://example.com", True),
        ("http://127.0.0.1:1/x", True),
        ("http://[::1]:80", True),
        ("http://example.com:0", False),
        ("http://example.com:65536", False),
        ("http://:80/x", False),
        ("http://[", False),
    ],
)
def test_an_address_has_a_host_and_a_port_that_can_be_called(address: str, callable_: bool) -> None:
    assert (address_of(Destination("http", address)) is not None) is callable_


@pytest.mark.parametrize(
    ("kind", "name", "fifo"),
    [("sqs", "a.fifo", True), ("sns", "a.fifo", True), ("sqs", "a", False), ("table", "a.fifo", False)],
)
def test_fifo_queues_and_topics_are_told_from_others(kind: str, name: str, fifo: bool) -> None:
    assert is_fifo(Destination(kind, name)) is fifo


def test_a_function_is_named_with_or_without_a_qualifier() -> None:
    assert function_of(Destination("function", "f")) == ("f", None)
    assert function_of(Destination("function", "f:live")) == ("f", "live")
    assert function_of(Destination("function", "f:")) == ("f", None)
