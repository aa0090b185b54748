"""The operations of the Logs API on subscription filters, and the test of a filter pattern."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from thawd.cloudwatch.logs.errors import InvalidParameterException, LimitExceededException, LogsNotFoundException
from thawd.cloudwatch.logs.groups import LogGroups, now_ms
from thawd.cloudwatch.logs.records import GroupRecord, SubscriptionRecord
from thawd.cloudwatch.logs.subscriptions import Subscriptions
from thawd.gateway.logs.event_operations import pattern_of
from thawd.gateway.logs.requests import MAX_PAGE, Request, parts_of, token_of
from thawd.resources import Function

_MOST_FILTERS = 2  # Source: CloudWatch Logs quotas, "Subscription filters".
_ARN = re.compile(r"arn:aws[a-z-]*:([a-z0-9-]+):[a-z0-9-]*:\d*:.+")

FindFunction = Callable[[str], Function]
"""Returns the function with an ARN, or raises `ResourceNotFoundException`."""
HasStream = Callable[[str], Awaitable[bool]]
"""Returns whether the Kinesis stream with an ARN exists."""


class FilterOperations:
    """Operations on filters. Each takes the checked input, and returns the answer or None.

    Args:
        groups: all log groups.
        subscriptions: delivers events.
        find_function: see `FindFunction`.
        has_stream: see `HasStream`; None: there is no Kinesis.
    """

    def __init__(
        self,
        groups: LogGroups,
        subscriptions: Subscriptions,
        *,
        find_function: FindFunction,
        has_stream: HasStream | None,
    ) -> None:
        self._groups = groups
        self._subscriptions = subscriptions
        self._find_function = find_function
        self._has_stream = has_stream

    async def put_subscription_filter(self, request: Request) -> None:
        name = request["logGroupName"]
        pattern_of(request["filterPattern"])
        self._groups.record(name)
        await self._check_destination(name, request)
        is_new = False

        def changed(record: GroupRecord) -> GroupRecord:
            nonlocal is_new
            before = {each.name: each for each in record.subscriptions}
            old = before.get(request["filterName"])
            is_new = old is None
            if is_new and len(before) >= _MOST_FILTERS:
                raise LimitExceededException("Resource limit exceeded.")
            before[request["filterName"]] = SubscriptionRecord(
                name=request["filterName"],
                pattern=request["filterPattern"],
                destination=request["destinationArn"],
                created_ms=now_ms() if old is None else old.created_ms,
                role=request.get("roleArn"),
                distribution=request.get("distribution", "ByLogStream"),
            )
            return msgspec.structs.replace(record, subscriptions=tuple(before.values()))

        await self._groups.change(name, changed)
        if is_new:
            await self._subscriptions.begin(name, request["filterName"])
        self._groups.on_change(name)

    async def _check_destination(self, group: str, request: Request) -> None:
        arn = request["destinationArn"]
        match = _ARN.fullmatch(arn)
        vendor = None if match is None else match[1]
        if vendor == "lambda":
            if "roleArn" in request:
                raise InvalidParameterException("destinationArn for vendor lambda cannot be used with roleArn")
            try:
                function = self._find_function(arn)
            except Exception:
                raise InvalidParameterException(
                    "Could not execute the lambda function. Make sure you have given CloudWatch Logs permission to "
                    "execute your function."
                ) from None
            if function.log_group_name == group:
                # Each delivery would write a log line, which would be delivered.
                raise InvalidParameterException(
                    "The log group provided is reserved for the function logs of the destination function."
                )
        elif vendor == "kinesis" and self._has_stream is not None:
            if not await self._has_stream(arn):
                raise InvalidParameterException(
                    "Could not deliver test message to specified Kinesis stream. Check if the given kinesis stream is "
                    "in ACTIVE state."
                )
        else:
            raise InvalidParameterException(
                f"thawd delivers log events to functions, and with --aws to Kinesis streams, not to {arn}"
            )

    async def describe_subscription_filters(self, request: Request) -> dict[str, Any]:
        name, limit = request["logGroupName"], request.get("limit", MAX_PAGE)
        prefix = request.get("filterNamePrefix", "")
        (after,) = parts_of(request.get("nextToken"), 1) or ("",)
        found = sorted(self._groups.record(name).subscriptions, key=lambda record: record.name)
        filters = [each for each in found if each.name.startswith(prefix) and each.name > after]
        answer: dict[str, Any] = {"subscriptionFilters": [_described(name, each) for each in filters[:limit]]}
        if len(filters) > limit:
            answer["nextToken"] = token_of(filters[limit - 1].name)
        return answer

    async def delete_subscription_filter(self, request: Request) -> None:
        name, filter_name = request["logGroupName"], request["filterName"]

        def changed(record: GroupRecord) -> GroupRecord:
            kept = tuple(each for each in record.subscriptions if each.name != filter_name)
            if len(kept) == len(record.subscriptions):
                raise LogsNotFoundException("The specified subscription filter does not exist.")
            return msgspec.structs.replace(record, subscriptions=kept)

        await self._groups.change(name, changed)
        self._groups.on_change(name)
        await self._subscriptions.end(name, filter_name)

    async def test_metric_filter(self, request: Request) -> dict[str, Any]:
        wanted = pattern_of(request["filterPattern"])
        return {
            "matches": [
                {"eventNumber": index, "eventMessage": message, "extractedValues": {}}
                for index, message in enumerate(request["logEventMessages"], 1)
                if wanted(message)
            ]
        }


def _described(group: str, record: SubscriptionRecord) -> dict[str, Any]:
    described: dict[str, Any] = {
        "filterName": record.name,
        "logGroupName": group,
        "filterPattern": record.pattern,
        "destinationArn": record.destination,
    }
    if record.role is not None:
        described["roleArn"] = record.role
    return {**described, "distribution": record.distribution, "creationTime": record.created_ms}
