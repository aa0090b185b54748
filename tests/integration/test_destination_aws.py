"""`thawd.destinations.aws`: SQS, SNS, EventBridge and S3 get records and dead letters in AWS's format.

Also which requests these services refuse, and which are retried.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import quiet_port
from thawd.destinations import delivery as module
from thawd.destinations.delivery import LIMIT_S, DestinationContext, Destinations
from thawd.destinations.slots import SLOTS
from thawd.errors import DestinationRefused, DestinationUnavailable, ThawdError
from thawd.invocation import Result
from thawd.resources import Destination, Function
from thawd.stores.tables.access import Tables
from thawd.telemetry.metrics import Metrics

from .emulated import EmulatedAws
from .outcome_records import (
    ARN,
    EVENT,
    FAILED,
    OBJECT,
    REQUEST_ID,
    arn_of,
    both,
    check_record,
    deliver,
    run,
    success,
    within,
)
from .receiving import ACCOUNT, Receiver


@pytest.fixture(scope="module")
def aws() -> Iterator[EmulatedAws]:
    with EmulatedAws(account=ACCOUNT) as running:
        yield running


@both
def test_sqs_gets_the_record_as_the_message(aws: EmulatedAws, tmp_path: Path, fails: bool) -> None:
    arn = aws.queue(f"plain-{fails}")
    deliver(Destination("sqs", arn), tmp_path, DestinationContext(aws_endpoint=aws.url), fails=fails)
    (message,) = aws.messages(arn)
    check_record(json.loads(message["Body"]), fails=fails)
    assert "MessageAttributes" not in message


@both
def test_sns_gets_the_record_as_the_message(aws: EmulatedAws, tmp_path: Path, fails: bool) -> None:
    topic, queue = aws.topic(f"topic-{fails}")
    deliver(Destination("sns", topic), tmp_path, DestinationContext(aws_endpoint=aws.url), fails=fails)
    (message,) = aws.messages(queue)
    check_record(json.loads(json.loads(message["Body"])["Message"]), fails=fails)


@both
def test_eventbridge_gets_the_record_as_the_detail(aws: EmulatedAws, tmp_path: Path, fails: bool) -> None:
    bus, queue = aws.bus(f"bus-{fails}")
    deliver(Destination("events", bus), tmp_path, DestinationContext(aws_endpoint=aws.url), fails=fails)
    (message,) = aws.messages(queue)
    event = json.loads(message["Body"])
    assert event["source"] == "lambda"
    assert event["detail-type"] == f"Lambda Function Invocation Result - {'Failure' if fails else 'Success'}"
    assert event["resources"] == [bus, f"{ARN}:live"]
    check_record(event["detail"], fails=fails)


def test_an_s3_arn_of_another_bucket_is_one_of_awss(aws: EmulatedAws, tmp_path: Path) -> None:
    aws.client("s3").create_bucket(Bucket="elsewhere")
    deliver(Destination("s3", "elsewhere"), tmp_path, DestinationContext(aws_endpoint=aws.url), fails=True)
    (found,) = aws.client("s3").list_objects_v2(Bucket="elsewhere")["Contents"]
    assert found["Key"] == OBJECT
    check_record(json.loads(aws.client("s3").get_object(Bucket="elsewhere", Key=OBJECT)["Body"].read()), fails=True)


def test_a_dead_letter_is_the_payload_with_awss_attributes(aws: EmulatedAws, tmp_path: Path) -> None:
    arn = aws.queue("dead")
    function = Function(name="f", handler="m.f", code=tmp_path, dead_letter=Destination("sqs", arn))

    async def work(destinations: Destinations) -> None:
        for result, condition in ((FAILED, "RetriesExhausted"), (None, "EventAgeExceeded")):
            (made,) = destinations.failures(function, EVENT, condition=condition, result=result, attempts=3)
            await destinations.deliver(made)

    run(work, tmp_path, DestinationContext(aws_endpoint=aws.url))
    failed, aged = aws.messages(arn)
    assert failed["Body"] == aged["Body"] == '{"ORDER_IDS": [1, 2]}'
    kinds = {name: (one["DataType"], one["StringValue"]) for name, one in failed["MessageAttributes"].items()}
    assert kinds == {
        "RequestID": ("String", REQUEST_ID),
        "ErrorCode": ("Number", "200"),
        "ErrorMessage": ("String", "no  model"),
    }
    assert aged["MessageAttributes"]["ErrorMessage"]["StringValue"] == "EventAgeExceeded"


def test_a_dead_letter_has_the_first_kibibyte_of_the_message(tmp_path: Path) -> None:
    function = Function(name="f", handler="m.f", code=tmp_path, dead_letter=Destination("sqs", "x"))
    long = Result(json.dumps({"errorMessage": "é" * 2000}).encode(), function_error="Unhandled")
    other = Result(b"[1]", function_error="Unhandled")

    async def work(destinations: Destinations) -> list[str]:
        found = [
            destinations.failures(function, EVENT, condition="RetriesExhausted", result=result, attempts=1)
            for result in (long, other)
        ]
        return [made[0].attributes["ErrorMessage"] for made in found]

    assert run(work, tmp_path) == ["é" * 512, "[1]"]


@pytest.mark.parametrize(
    "to",
    [
        arn_of("sqs", "none"),
        arn_of("sns", "none"),
        Destination("s3", "no-such-bucket"),
        Destination("bucket", "none"),
        Destination("table", "none"),
    ],
    ids=str,
)
def test_what_is_not_there_refuses(aws: EmulatedAws, tmp_path: Path, to: Destination) -> None:
    with pytest.raises(ThawdError) as refused:
        deliver(to, tmp_path, DestinationContext(aws_endpoint=aws.url))
    assert not refused.value.retryable


@pytest.mark.parametrize("to", [arn_of("sqs", "q.fifo"), arn_of("sns", "t.fifo")], ids=str)
def test_fifo_queues_and_topics_are_refused_as_by_lambda(tmp_path: Path, to: Destination) -> None:
    with pytest.raises(DestinationRefused, match="is a FIFO queue"):
        deliver(to, tmp_path, DestinationContext(aws_endpoint=f"http://127.0.0.1:{quiet_port()}"))


@pytest.mark.parametrize(("service", "most"), [("sqs", 1_048_576), ("sns", 262_144), ("events", 1_048_576)])
def test_a_record_that_is_too_large_is_refused_with_its_size(tmp_path: Path, service: str, most: int) -> None:
    async def work(destinations: Destinations) -> None:
        made = destinations.success(arn_of(service, "event-bus/b"), EVENT, Result(b'"' + b"x" * most + b'"'), arn=ARN)
        with pytest.raises(
            DestinationRefused, match=rf"of at most {most:,} bytes; this message has {len(made.body):,}"
        ):
            await destinations.deliver(made)

    run(work, tmp_path, DestinationContext(aws_endpoint=f"http://127.0.0.1:{quiet_port()}"))


@pytest.mark.parametrize("service", ["sqs", "sns", "events", "s3"])
def test_an_aws_that_is_down_may_be_up_later(tmp_path: Path, service: str) -> None:
    to = Destination("s3", "elsewhere") if service == "s3" else arn_of(service, "event-bus/b")
    with pytest.raises(DestinationUnavailable, match="could not be reached"):
        deliver(to, tmp_path, DestinationContext(aws_endpoint=f"http://127.0.0.1:{quiet_port()}"))


@pytest.mark.parametrize(
    ("code", "status", "retryable"),
    [
        ("Throttling", 400, True),
        ("ThrottlingException", 400, True),
        ("RequestThrottled", 403, True),
        ("TooManyRequestsException", 429, True),
        ("ExpiredToken", 403, True),
        ("ExpiredTokenException", 400, True),
        ("InternalFailure", 500, True),
        ("ServiceUnavailable", 503, True),
        ("AccessDenied", 403, False),
        ("AccessDeniedException", 400, False),
        ("InvalidClientTokenId", 403, False),
        ("NotFound", 404, False),
        ("InvalidParameter", 400, False),
        ("KMSDisabled", 400, False),
    ],
)
def test_aws_errors_are_tried_again_or_not(
    tmp_path: Path, receiver: Receiver, code: str, status: int, retryable: bool
) -> None:
    receiver.statuses = [status]
    receiver.answer = (
        f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>so it is</Message></Error>"
        f"<RequestId>1</RequestId></ErrorResponse>"
    ).encode()
    metrics = Metrics()
    with pytest.raises(ThawdError, match=f"{code}: so it is") as error:
        deliver(arn_of("sns", "t"), tmp_path, DestinationContext(aws_endpoint=receiver.url, metrics=metrics))
    assert error.value.retryable == retryable
    assert len(receiver.got) == 1, "boto3 retried by itself"
    outcome = "unavailable" if retryable else "refused"
    counted = metrics.function("f").summary()
    assert (counted["deliveries"], counted["destination_failures"]) == ({"sns": {outcome: 1}}, 1)


@pytest.mark.parametrize(("code", "retryable"), [("ThrottlingException", True), ("NotAuthorizedForSource", False)])
def test_an_entry_that_eventbridge_did_not_take_is_no_success(
    tmp_path: Path, receiver: Receiver, code: str, retryable: bool
) -> None:
    receiver.headers = {"content-type": "application/x-amz-json-1.1"}
    receiver.answer = json.dumps(
        {"FailedEntryCount": 1, "Entries": [{"ErrorCode": code, "ErrorMessage": "so it is"}]}
    ).encode()
    with pytest.raises(ThawdError, match=f"{code}: so it is") as error:
        deliver(arn_of("events", "event-bus/b"), tmp_path, DestinationContext(aws_endpoint=receiver.url))
    assert error.value.retryable == retryable


def test_missing_credentials_may_come_and_are_looked_for_again(
    aws: EmulatedAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
    arn = aws.queue("credentials")

    async def work(destinations: Destinations) -> None:
        made = success(destinations, Destination("sqs", arn))
        with pytest.raises(DestinationUnavailable, match="there are no credentials"):
            await destinations.deliver(made)
        (tmp_path / ".aws").mkdir()
        (tmp_path / ".aws/credentials").write_text(
            "[default]\naws_access_key_id = test\naws_secret_access_key = test\n"
        )
        await destinations.deliver(made)

    run(work, tmp_path)
    assert len(aws.messages(arn)) == 1


def test_the_address_of_a_queue_is_asked_for_once_and_again_after_an_error(receiver: Receiver, tmp_path: Path) -> None:
    receiver.headers = {"content-type": "application/x-amz-json-1.0"}
    receiver.answer = json.dumps({"QueueUrl": f"{receiver.url}/q", "__type": "QueueDoesNotExist"}).encode()
    receiver.statuses = [200, 200, 400, 200]

    async def work(destinations: Destinations) -> None:
        made = success(destinations, arn_of("sqs", "q"))
        await destinations.deliver(made)
        with pytest.raises(DestinationRefused, match="QueueDoesNotExist"):
            await destinations.deliver(made)
        await destinations.deliver(made)

    run(work, tmp_path, DestinationContext(aws_endpoint=receiver.url))
    asked = [got.headers["x-amz-target"].removeprefix("AmazonSQS.") for got in receiver.got]
    assert asked == ["GetQueueUrl", "SendMessage", "SendMessage", "GetQueueUrl", "SendMessage"]


def test_an_aws_that_hangs_takes_its_slots_until_its_threads_end_and_delays_no_other(
    receiver: Receiver, aws: EmulatedAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.gate.clear()
    receiver.answer = b"<PublishResponse><PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>"
    arn = aws.queue("beside")

    async def work(destinations: Destinations) -> None:
        hanging = success(destinations, arn_of("sns", "t"))
        monkeypatch.setattr(module, "LIMIT_S", within(0.2))
        tries = [asyncio.ensure_future(destinations.deliver(hanging)) for _ in range(3 * SLOTS)]
        for outcome in await asyncio.gather(*tries, return_exceptions=True):
            assert isinstance(outcome, DestinationUnavailable)
        monkeypatch.setattr(module, "LIMIT_S", LIMIT_S)
        assert sum(thread.name == "thawd-sns" for thread in threading.enumerate()) == SLOTS
        calm = Destinations(Tables({}), {}, DestinationContext(aws_endpoint=aws.url))
        await calm.deliver(success(calm, Destination("sqs", arn)))
        await destinations.deliver(success(destinations, Destination("bucket", "out")))
        receiver.gate.set()
        await destinations.deliver(hanging)  # the slots are free again when the threads end

    run(work, tmp_path, DestinationContext(aws_endpoint=receiver.url))
    assert len(aws.messages(arn)) == 1
