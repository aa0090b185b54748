"""Claims about `thawd.destinations.delivery`: a record arrives as AWS writes it, or the reason is logged."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import importlib.util
import json
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import quiet_port
from thawd.destinations import delivery as module
from thawd.destinations.delivery import LIMIT_S, Delivery, DestinationContext, Destinations, missing_extras
from thawd.destinations.slots import SLOTS
from thawd.errors import DestinationRefused, DestinationUnavailable, ResourceNotFoundException, ThawdError
from thawd.invocation import Result
from thawd.resources import Bucket, Destination, Function, Table
from thawd.stores.events.event_rows import Event
from thawd.stores.tables.access import Tables
from thawd.telemetry.metrics import Metrics

from .emulated import EmulatedAws
from .receiving import ACCOUNT, Receiver, receiving

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "destinations.md"
REQUEST_ID = "e4b46cbf-b738-4a2b-8880-a18cdf61200e"
ARN = "arn:aws:lambda:us-east-1:000000000000:function:f"
OK = Result(b'{"label": "cat"}', executed_version="7")
FAILED = Result(
    b'{"errorMessage": "no\\u0000 model", "errorType": "ValueError"}', function_error="Unhandled", executed_version="7"
)
EVENT = Event(
    id=1,
    attempts=2,
    accepted_at=1_573_755_365.568,
    function="f",
    payload=b'{"ORDER_IDS": [1, 2]}',
    request_id=REQUEST_ID,
    qualifier="live",
    trace_id="Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1",
)


@pytest.fixture(scope="module")
def aws() -> Iterator[EmulatedAws]:
    with EmulatedAws(account=ACCOUNT) as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def run(work: Callable[[Destinations], Awaitable[Any]], folder: Path, context: DestinationContext | None = None) -> Any:
    """Do something with destinations over a table and a bucket, ``out`` both."""

    async def main() -> Any:
        tables = Tables({"out": Table(name="out", path=folder / "out.table")})
        (folder / "bucket").mkdir(exist_ok=True)
        destinations = Destinations(tables, {"out": Bucket(name="out", path=folder / "bucket")}, context)
        try:
            async with asyncio.timeout(300):
                return await work(destinations)
        finally:
            await destinations.close()
            tables.close()

    return asyncio.run(main())


def success(destinations: Destinations, to: Destination, event: Event = EVENT) -> Delivery:
    return destinations.success(to, event, OK, arn=ARN)


def failure(destinations: Destinations, to: Destination) -> Delivery:
    return destinations.failure(to, EVENT, arn=ARN, condition="RetriesExhausted", result=FAILED, attempts=3)


def deliver(
    to: Destination, folder: Path, context: DestinationContext | None = None, *, fails: bool = False
) -> Delivery:
    """Make a delivery and carry it out."""

    async def work(destinations: Destinations) -> Delivery:
        made = failure(destinations, to) if fails else success(destinations, to)
        await destinations.deliver(made)
        return made

    made: Delivery = run(work, folder, context)
    return made


def check_record(record: dict[str, Any], *, fails: bool) -> None:
    """Field by field what the developer guide's example has.

    Source: AWS Lambda developer guide, "Capturing records of Lambda asynchronous invocations".
    """
    at = record.pop("timestamp")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", at), at
    expected: dict[str, Any] = {
        "version": "1.0",
        "requestContext": {
            "requestId": REQUEST_ID,
            "functionArn": f"{ARN}:live",
            "condition": "RetriesExhausted" if fails else "Success",
            "approximateInvokeCount": 3,
        },
        "requestPayload": {"ORDER_IDS": [1, 2]},
        "responseContext": {"statusCode": 200, "executedVersion": "7"},
        "responsePayload": {"label": "cat"},
    }
    if fails:
        expected["responseContext"]["functionError"] = "Unhandled"
        expected["responsePayload"] = {"errorMessage": "no\u0000 model", "errorType": "ValueError"}
    assert record == expected
    order = ["version", "requestContext", "requestPayload", "responseContext", "responsePayload"]
    assert list(record) == order


both = pytest.mark.parametrize("fails", [False, True], ids=["success", "failure"])


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


OBJECT = f"aws/lambda/async/f/2019/11/14/2019-11-14T18.16.05-{REQUEST_ID}"


def test_an_s3_arn_of_an_own_bucket_is_that_folder_with_awss_name_of_the_object(tmp_path: Path) -> None:
    deliver(Destination("s3", "out"), tmp_path, fails=True)
    check_record(json.loads((tmp_path / "bucket" / OBJECT).read_bytes()), fails=True)


@pytest.mark.parametrize(("kind", "key"), [("s3", OBJECT), ("bucket", f"{REQUEST_ID}.json")])
def test_a_bucket_of_the_configuration_that_lies_elsewhere_gets_the_record(tmp_path: Path, kind: str, key: str) -> None:
    class Elsewhere:
        def __init__(self) -> None:
            self.objects: dict[str, bytes] = {}

        async def put(self, key: str, data: bytes) -> None:
            self.objects[key] = data

    elsewhere = Elsewhere()
    context = DestinationContext(bucket=lambda name: elsewhere if name == "remote" else None)
    deliver(Destination(kind, "remote"), tmp_path, context, fails=True)
    check_record(json.loads(elsewhere.objects[key]), fails=True)


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


def test_a_function_may_have_a_destination_and_a_dead_letter_queue(tmp_path: Path) -> None:
    table, queue = Destination("table", "out"), Destination("sqs", "x")
    function = Function(name="f", handler="m.f", code=tmp_path, on_failure=table, dead_letter=queue)

    async def work(destinations: Destinations) -> list[Delivery]:
        return destinations.failures(function, EVENT, condition="RetriesExhausted", result=FAILED, attempts=3)

    assert [made.destination for made in run(work, tmp_path)] == [table, queue]


def test_an_answer_that_is_no_json_is_a_text_in_the_record_of_its_failure(tmp_path: Path) -> None:
    async def work(destinations: Destinations) -> Delivery:
        result = Result(b'{"a": NaN}')
        return destinations.failure(
            Destination("bucket", "out"), EVENT, arn=ARN, condition="DestinationRefused", result=result, attempts=1
        )

    assert json.loads(run(work, tmp_path).body)["responsePayload"] == '{"a": NaN}'


# What is refused, and what may be tried again


def arn_of(service: str, name: str) -> Destination:
    return Destination(service, f"arn:aws:{service}:us-east-1:{ACCOUNT}:{name}")


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
    with pytest.raises(DestinationRefused, match="is FIFO"):
        deliver(to, tmp_path, DestinationContext(aws_endpoint=f"http://127.0.0.1:{quiet_port()}"))


@pytest.mark.parametrize(("service", "most"), [("sqs", 1_048_576), ("sns", 262_144), ("events", 1_048_576)])
def test_a_record_that_is_too_large_is_refused_with_its_size(tmp_path: Path, service: str, most: int) -> None:
    async def work(destinations: Destinations) -> None:
        made = destinations.success(arn_of(service, "event-bus/b"), EVENT, Result(b'"' + b"x" * most + b'"'), arn=ARN)
        with pytest.raises(DestinationRefused, match=rf"of {most:,} bytes, and this one has {len(made.body):,}"):
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


# Addresses


@both
def test_an_address_gets_the_record(receiver: Receiver, tmp_path: Path, fails: bool) -> None:
    receiver.statuses = [204]
    deliver(Destination("http", f"{receiver.url}/hook?token=a%20b"), tmp_path, fails=fails)
    (got,) = receiver.got
    check_record(json.loads(got.body), fails=fails)
    assert got.path == "/hook?token=a%20b"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-amzn-requestid"] == REQUEST_ID
    assert got.headers["idempotency-key"] == got.headers["webhook-id"]
    assert "webhook-signature" not in got.headers


def test_the_key_is_the_same_on_each_try_and_differs_by_outcome(receiver: Receiver, tmp_path: Path) -> None:
    receiver.statuses = [503, 200, 200]
    to = Destination("http", receiver.url)

    async def work(destinations: Destinations) -> None:
        made = success(destinations, to)
        with pytest.raises(DestinationUnavailable, match="answered 503"):
            await destinations.deliver(made)
        await destinations.deliver(made)
        await destinations.deliver(failure(destinations, to))

    run(work, tmp_path)
    first, second, other = (got.headers["idempotency-key"] for got in receiver.got)
    assert first == second != other
    assert receiver.got[0].body == receiver.got[1].body


def test_what_a_receiver_would_have_remembered_is_not_sent_again(receiver: Receiver, tmp_path: Path) -> None:
    receiver.headers = {"set-cookie": "session=1; path=/"}

    async def work(destinations: Destinations) -> None:
        for _ in range(2):
            await destinations.deliver(success(destinations, Destination("http", receiver.url)))

    run(work, tmp_path)
    assert ["cookie" in got.headers for got in receiver.got] == [False, False]


def test_a_machine_without_threads_to_spare_costs_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(destinations: Destinations) -> None:
        made = success(destinations, Destination("bucket", "out"))
        with monkeypatch.context() as short:
            refused = RuntimeError("can't start new thread")  # as CPython words it
            short.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(refused))
            for _ in range(SLOTS):
                with pytest.raises(DestinationUnavailable, match="no thread"):
                    await destinations.deliver(made)
        await destinations.deliver(made)

    run(work, tmp_path)
    assert list((tmp_path / "bucket").iterdir())


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        ("a-long-secret", b"a-long-secret"),
        ("whsec_" + base64.b64encode(b"key of the receiver").decode(), b"key of the receiver"),
        ("whsec_no base64!", b"whsec_no base64!"),
    ],
)
def test_a_record_is_signed_as_standard_webhooks_says(
    receiver: Receiver, tmp_path: Path, secret: str, key: bytes
) -> None:
    deliver(Destination("http", receiver.url), tmp_path, DestinationContext(webhook_secret=secret))
    (got,) = receiver.got
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert got.headers["webhook-signature"] == f"v1,{expected}"
    assert abs(int(got.headers["webhook-timestamp"]) - time.time()) < 600
    documented = re.search(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert documented is not None
    names: dict[str, Any] = {}
    exec(documented[1], names)
    assert names["is_ours"](key, got.headers, got.body)
    assert not names["is_ours"](key, got.headers, got.body + b" ")


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(500, True), (502, True), (503, True), (429, True), (408, True), (425, True), (409, True)]
    + [(400, False), (401, False), (403, False), (404, False), (410, False), (413, False), (422, False)]
    + [(301, False), (302, False), (307, False), (308, False), (304, False)],
)
def test_answers_of_an_address_are_tried_again_or_not(
    receiver: Receiver, tmp_path: Path, status: int, retryable: bool
) -> None:
    receiver.statuses = [status, 200]
    receiver.headers = {"location": f"{receiver.url}/elsewhere"}
    if status == 304:
        receiver.answer = b""
    with pytest.raises(ThawdError, match=f"answered {status}") as error:
        deliver(Destination("http", f"{receiver.url}/secret-path"), tmp_path)
    assert error.value.retryable == retryable
    assert len(receiver.got) == 1, "a redirect was followed"
    assert "secret-path" not in str(error.value)


def test_an_address_where_nobody_listens_may_be_up_later(tmp_path: Path) -> None:
    with pytest.raises(DestinationUnavailable, match="could not be reached"):
        deliver(Destination("http", f"http://127.0.0.1:{quiet_port()}/"), tmp_path)


def test_an_answer_without_end_is_cut_off(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer = b"x" * (8 << 20)
    deliver(Destination("http", receiver.url), tmp_path)


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{quiet_port()}")
    deliver(Destination("http", receiver.url), tmp_path)
    assert len(receiver.got) == 1


# Libraries that are not installed


@pytest.mark.parametrize(
    ("library", "extra", "to"),
    [
        ("httpx", "webhook", Destination("http", "http://127.0.0.1/")),
        ("boto3", "aws", arn_of("sqs", "q")),
        ("boto3", "aws", arn_of("events", "event-bus/b")),
    ],
)
def test_a_missing_library_is_told_with_the_extra_at_the_start_and_at_each_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, extra: str, to: Destination
) -> None:
    function = Function(name="f", handler="m.f", code=tmp_path, on_success=to, on_failure=to)
    assert missing_extras([function]) == []
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == library else object())
    with pytest.raises(DestinationUnavailable, match=rf"need {library}, .*'thawd\[{extra}\]'"):
        deliver(to, tmp_path)
    (line,) = missing_extras([function])
    assert line.startswith(f"f: its destination {to} needs {library}")
    assert line.endswith(f"pip install 'thawd[{extra}]'")


# Destinations that hang


def within(limit_s: float) -> dict[str, float]:
    """The limits of all kinds, as if they were this one."""
    return dict.fromkeys(LIMIT_S, limit_s)


@pytest.mark.parametrize("kind", ["http", "sns"])
def test_a_destination_that_never_answers_is_given_up_after_its_time(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    receiver.gate.clear()
    monkeypatch.setattr(module, "LIMIT_S", within(0.2))
    to = Destination("http", receiver.url) if kind == "http" else arn_of("sns", "t")
    with pytest.raises(DestinationUnavailable, match=r"did not take the record within 0.2 s"):
        deliver(to, tmp_path, DestinationContext(aws_endpoint=receiver.url))


def test_an_address_that_hangs_takes_its_slots_and_delays_no_other(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.gate.clear()
    monkeypatch.setattr(module, "LIMIT_S", within(60.0))

    async def work(destinations: Destinations) -> None:
        hanging = success(destinations, Destination("http", receiver.url))
        tries = [asyncio.ensure_future(destinations.deliver(hanging)) for _ in range(3 * SLOTS)]
        with receiving() as other:
            while len(receiver.got) < SLOTS:  # noqa: ASYNC110 - the receiver is in a thread
                await asyncio.sleep(0.01)
            for to in (Destination("http", other.url), Destination("bucket", "out"), Destination("table", "out")):
                await destinations.deliver(success(destinations, to))
        assert len(receiver.got) == SLOTS, "more at once than there are slots"
        receiver.gate.set()
        await asyncio.gather(*tries)
        assert len(receiver.got) == 3 * SLOTS

    run(work, tmp_path)


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
        await destinations.deliver(hanging)  # the slots come back when the threads end

    run(work, tmp_path, DestinationContext(aws_endpoint=receiver.url))
    assert len(aws.messages(arn)) == 1


# Functions


def no_function(name: str, qualifier: str | None) -> object:
    raise ResourceNotFoundException(f"Function not found: {name}:{qualifier}")


def test_a_function_is_told_by_an_event_with_the_record(tmp_path: Path) -> None:
    async def work(destinations: Destinations) -> None:
        assert await destinations.deliver(success(destinations, Destination("bucket", "out"))) == []
        made = success(destinations, Destination("function", "next:live"))
        (event,) = await destinations.deliver(made)
        assert (event.function, event.qualifier, event.source) == ("next", "live", "destination:f")
        assert event.request_id != REQUEST_ID
        assert (event.trace_id or "").startswith("Root=1-5759e988-bd862e3fe1be46a994272793;Parent=")
        check_record(json.loads(event.payload), fails=False)
        (plain,) = await destinations.deliver(success(destinations, Destination("function", "next")))
        assert plain.qualifier is None

    run(work, tmp_path)


def test_a_function_that_is_not_there_and_a_record_too_large_for_an_event_are_refused(tmp_path: Path) -> None:
    async def work(destinations: Destinations) -> None:
        with pytest.raises(DestinationRefused, match="Function not found: next:live"):
            await destinations.deliver(success(destinations, Destination("function", "next:live")))

    run(work, tmp_path, DestinationContext(exists=no_function))

    async def large(destinations: Destinations) -> None:
        result = Result(b'"' + b"x" * 1_048_576 + b'"')
        made = destinations.success(Destination("function", "next"), EVENT, result, arn=ARN)
        with pytest.raises(DestinationRefused, match="takes events of 1,048,576 bytes, and the record has 1,04"):
            await destinations.deliver(made)

    run(large, tmp_path)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_chain_that_comes_back_to_itself_is_stopped_after_16_rounds_unless_allowed(
    tmp_path: Path, allowed: bool
) -> None:
    metrics = Metrics()

    async def work(destinations: Destinations) -> int:
        event, rounds = EVENT, 0
        while rounds < 40:
            for target in ("pong", "f"):
                try:
                    made = success(destinations, Destination("function", target), event)
                    (following,) = await destinations.deliver(made)
                except DestinationRefused as error:
                    assert "loop" in str(error)
                    assert target == "f"
                    return rounds
                event = Event(id=1, attempts=0, accepted_at=0.0, **_fields(following))
            rounds += 1
        return rounds

    rounds = run(work, tmp_path, DestinationContext(may_loop=lambda name: allowed, metrics=metrics))
    assert rounds == (40 if allowed else 15)
    assert metrics.function("f").recursive_invocations_dropped == (0 if allowed else 1)


def _fields(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}
