"""The operations of the Logs API on subscription filters and metric filters."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from thawd.cloudwatch.logs.errors import InvalidParameterException, LimitExceededException, LogsNotFoundException
from thawd.cloudwatch.logs.groups import LogGroups, now_ms
from thawd.cloudwatch.logs.metric_filters import MOST_DIMENSIONS, MOST_FILTERS, is_value
from thawd.cloudwatch.logs.records import GroupRecord, MetricFilterRecord, SubscriptionRecord
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

    async def put_metric_filter(self, request: Request) -> None:
        pattern_of(request["filterPattern"])
        (given,) = request["metricTransformations"]
        dimensions = given.get("dimensions", {})
        if not is_value(given["metricValue"]) or not all(map(is_value, dimensions.values())):
            raise InvalidParameterException(
                "Invalid metric transformation: metricValue must be a number or a selector, such as $.took, and "
                "dimensions must be selectors"
            )
        if len(dimensions) > MOST_DIMENSIONS or (dimensions and "defaultValue" in given):
            raise InvalidParameterException(
                f"Invalid metric transformation: at most {MOST_DIMENSIONS} dimensions, and no default value with them"
            )

        def changed(record: GroupRecord) -> GroupRecord:
            before = {each.name: each for each in record.metric_filters}
            old = before.get(request["filterName"])
            if old is None and len(before) >= MOST_FILTERS:
                raise LimitExceededException("Resource limit exceeded.")
            before[request["filterName"]] = MetricFilterRecord(
                name=request["filterName"],
                pattern=request["filterPattern"],
                created_ms=now_ms() if old is None else old.created_ms,
                namespace=given["metricNamespace"],
                metric=given["metricName"],
                value=given["metricValue"],
                unit=given.get("unit", "None"),
                default=given.get("defaultValue"),
                dimensions=dimensions,
            )
            return msgspec.structs.replace(record, metric_filters=tuple(before.values()))

        self._groups.flush()  # what was printed before the filter was put does not count
        await self._groups.change(request["logGroupName"], changed)

    async def describe_metric_filters(self, request: Request) -> dict[str, Any]:
        limit, prefix = request.get("limit", MAX_PAGE), request.get("filterNamePrefix", "")
        if "logGroupName" in request:
            known = [(request["logGroupName"], self._groups.record(request["logGroupName"]))]
        else:
            known = sorted(self._groups.recorded(), key=lambda pair: pair[0])
        (after,) = parts_of(request.get("nextToken"), 1) or ("",)
        found = [
            (f"{name}\n{each.name}", _described_metric_filter(name, each))
            for name, record in known
            for each in sorted(record.metric_filters, key=lambda each: each.name)
            if each.name.startswith(prefix) and request.get("metricName") in (None, each.metric)
            if request.get("metricNamespace") in (None, each.namespace)
        ]
        found = [(key, described) for key, described in found if key > after]
        answer: dict[str, Any] = {"metricFilters": [described for _, described in found[:limit]]}
        if len(found) > limit:
            answer["nextToken"] = token_of(found[limit - 1][0])
        return answer

    async def delete_metric_filter(self, request: Request) -> None:
        def changed(record: GroupRecord) -> GroupRecord:
            kept = tuple(each for each in record.metric_filters if each.name != request["filterName"])
            if len(kept) == len(record.metric_filters):
                raise LogsNotFoundException("The specified metric filter does not exist.")
            return msgspec.structs.replace(record, metric_filters=kept)

        await self._groups.change(request["logGroupName"], changed)

    async def test_metric_filter(self, request: Request) -> dict[str, Any]:
        wanted = pattern_of(request["filterPattern"])
        return {
            "matches": [
                {"eventNumber": index, "eventMessage": message, "extractedValues": {}}
                for index, message in enumerate(request["logEventMessages"], 1)
                if wanted(message)
            ]
        }


def _described_metric_filter(group: str, record: MetricFilterRecord) -> dict[str, Any]:
    transformation: dict[str, Any] = {
        "metricName": record.metric,
        "metricNamespace": record.namespace,
        "metricValue": record.value,
    }
    if record.default is not None:
        transformation["defaultValue"] = record.default
    if record.dimensions:
        transformation["dimensions"] = record.dimensions
    if record.unit != "None":
        transformation["unit"] = record.unit
    return {
        "filterName": record.name,
        "filterPattern": record.pattern,
        "metricTransformations": [transformation],
        "creationTime": record.created_ms,
        "logGroupName": group,
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
