"""`thawd.destinations.delivery`: records to thawd's own buckets and functions, and rules for every kind of
destination."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from thawd.destinations import delivery as module
from thawd.destinations.delivery import Delivery, DestinationContext, Destinations, missing_extras
from thawd.destinations.slots import SLOTS
from thawd.errors import DestinationRefused, DestinationUnavailable, ResourceNotFoundException
from thawd.invocation import Result
from thawd.resources import Destination, Function
from thawd.stores.events.event_rows import Event
from thawd.telemetry.metrics import Metrics

from .outcome_records import (
    ARN,
    EVENT,
    FAILED,
    OBJECT,
    REQUEST_ID,
    arn_of,
    check_record,
    deliver,
    run,
    success,
    within,
)
from .receiving import Receiver


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


def test_a_machine_without_threads_to_spare_costs_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(destinations: Destinations) -> None:
        made = success(destinations, Destination("bucket", "out"))
        with monkeypatch.context() as short:
            refused = RuntimeError("can't start new thread")  # CPython's words
            short.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(refused))
            for _ in range(SLOTS):
                with pytest.raises(DestinationUnavailable, match="no thread"):
                    await destinations.deliver(made)
        await destinations.deliver(made)

    run(work, tmp_path)
    assert list((tmp_path / "bucket").iterdir())


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


@pytest.mark.parametrize("kind", ["http", "sns"])
def test_a_destination_that_never_answers_is_given_up_after_its_time(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    receiver.gate.clear()
    monkeypatch.setattr(module, "LIMIT_S", within(0.2))
    to = Destination("http", receiver.url) if kind == "http" else arn_of("sns", "t")
    with pytest.raises(DestinationUnavailable, match=r"did not accept the record within 0.2 s"):
        deliver(to, tmp_path, DestinationContext(aws_endpoint=receiver.url))


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
        with pytest.raises(DestinationRefused, match="takes events of at most 1,048,576 bytes, and the record"):
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
