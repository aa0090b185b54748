"""An outcome, its delivery to destinations, and the expected record, for tests of destinations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from thawd.destinations.delivery import LIMIT_S, Delivery, DestinationContext, Destinations
from thawd.invocation import Result
from thawd.resources import Bucket, Destination, Table
from thawd.stores.events.event_rows import Event
from thawd.stores.tables.access import Tables

from .receiving import ACCOUNT

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
OBJECT = f"aws/lambda/async/f/2019/11/14/2019-11-14T18.16.05-{REQUEST_ID}"
"""Name of the object that holds the record, in AWS's format."""


def arn_of(service: str, name: str) -> Destination:
    return Destination(service, f"arn:aws:{service}:us-east-1:{ACCOUNT}:{name}")


def run(work: Callable[[Destinations], Awaitable[Any]], folder: Path, context: DestinationContext | None = None) -> Any:
    """Run `work` with destinations that include a table and a bucket, both named ``out``."""

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
    """Check each field against the example in the developer guide.

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
    assert record == expected, (record, expected)
    order = ["version", "requestContext", "requestPayload", "responseContext", "responsePayload"]
    assert list(record) == order, list(record)


both = pytest.mark.parametrize("fails", [False, True], ids=["success", "failure"])


def within(limit_s: float) -> dict[str, float]:
    """Return the same time limit for all kinds of destination."""
    return dict.fromkeys(LIMIT_S, limit_s)
