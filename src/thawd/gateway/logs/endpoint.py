"""The Logs API over HTTP: finds a request's operation, checks its input, and answers as AWS does.

Requests are ``POST /`` with ``X-Amz-Target: Logs_20140328.OPERATION`` and JSON (AWS JSON 1.1). The shapes of the inputs
come from AWS's service model, in ``logs_operations.json``.

Source: CloudWatch Logs API reference.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from thawd.cloudwatch.logs.errors import (
    InvalidParameterException,
    MalformedQueryException,
    UnknownOperationException,
)
from thawd.cloudwatch.logs.groups import LogGroups
from thawd.cloudwatch.logs.live_tails import LiveTails
from thawd.cloudwatch.logs.queries import Queries
from thawd.errors import SerializationException, ThawdError, ValidationException
from thawd.gateway.http import ClientGoneError, Receive, Scope, Send, header, read_body, respond
from thawd.gateway.lambda_api import inputs
from thawd.gateway.logs import live_tail
from thawd.gateway.logs.event_operations import EventOperations
from thawd.gateway.logs.filter_operations import FilterOperations
from thawd.gateway.logs.group_operations import GroupOperations
from thawd.gateway.logs.query_operations import QueryOperations
from thawd.invocation import new_request_id
from thawd.telemetry.console import complain

TARGET_PREFIX = b"Logs_20140328."
_SMALL_BYTES = 1 << 20
# Events of 1 MiB need more as JSON: each has a time, and characters may be escaped.
_PUT_BYTES = 8 << 20
_LIVE = "StartLiveTail"
# Operations on what thawd does not use, and which name no log group: the emulator of AWS has them.
_EMULATED = ("PutResourcePolicy", "DescribeResourcePolicies", "DeleteResourcePolicy")
_JSON_1_1 = (b"content-type", b"application/x-amz-json-1.1")

Operation = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any] | None]]


def is_logs_request(scope: Scope) -> bool:
    """Whether a request is for the Logs API."""
    return scope["path"] == "/" and (header(scope, b"x-amz-target") or b"").startswith(TARGET_PREFIX)


class LogsApi:
    """Serves log groups.

    Args:
        groups: all log groups.
        filters: the operations on filters.
        queries: runs queries.
    """

    def __init__(self, groups: LogGroups, filters: FilterOperations, queries: Queries) -> None:
        self._inputs = inputs.inputs("thawd.gateway.logs", "logs_operations.json")
        self._tails = LiveTails(groups)
        self._operations = _operations(
            GroupOperations(groups), EventOperations(groups), filters, QueryOperations(groups, queries)
        )

    def serves(self, operation: str) -> bool:
        """Whether thawd has this operation."""
        return operation in self._operations or operation == _LIVE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors are answered, not raised."""
        request_id = new_request_id()
        status = 200
        body = b""
        try:
            name = operation_of(scope)
            request = await self._request(name, scope, receive)
            if name == _LIVE:
                await live_tail.serve(self._tails, request, send, receive, request_id=request_id)
                return
            answer = await self._operations[name](request)
            if answer is not None:
                body = msgspec.json.encode(answer)
        except ThawdError as error:
            status, body = error.status, _error_document(error)
        except OSError as error:
            status = 500
            text = f"The log cannot be read: {error}"
            body = msgspec.json.encode({"__type": "ServiceUnavailableException", "message": text})
        except ClientGoneError:
            return
        except Exception as error:  # a bug in thawd; the text of the error may contain what was logged
            failure = f"failed inside thawd: {type(error).__name__}"
            complain(f"thawd: the request {operation_of(scope)} of the Logs API {failure}")
            status = 500
            document = {"__type": "ServiceUnavailableException", "message": f"The request {failure}"}
            body = msgspec.json.encode(document)
        await respond(send, status, [_JSON_1_1, (b"x-amzn-requestid", request_id.encode())], body)

    async def _request(self, name: str, scope: Scope, receive: Receive) -> dict[str, Any]:
        limit_bytes = _PUT_BYTES if name == "PutLogEvents" else _SMALL_BYTES
        body = await read_body(scope, receive, limit_bytes=limit_bytes, operation=name)
        if not self.serves(name):
            known = ", ".join(sorted([*self._operations, _LIVE]))
            raise UnknownOperationException(f"thawd does not support the operation {name}; it supports {known}")
        try:
            document = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise SerializationException(str(error)) from None
        if not isinstance(document, dict):
            raise SerializationException("Start of structure or map found where not expected")
        try:
            return inputs.read_document(self._inputs[name], document)
        except ValidationException as error:
            raise InvalidParameterException(error.message) from None


def is_emulated(scope: Scope) -> bool:
    """Whether the emulator of AWS, if there is one, serves a request for the Logs API."""
    return operation_of(scope) in _EMULATED


def operation_of(scope: Scope) -> str:
    """The operation that a request of the Logs API names."""
    return (header(scope, b"x-amz-target") or b"").removeprefix(TARGET_PREFIX).decode("latin-1")


def _error_document(error: ThawdError) -> bytes:
    document: dict[str, Any] = {"__type": error.type, "message": error.message}
    if isinstance(error, MalformedQueryException):
        location = {"startCharOffset": error.start, "endCharOffset": error.end}
        document["queryCompileError"] = {"location": location, "message": error.message}
    return msgspec.json.encode(document)


def _operations(
    groups: GroupOperations, events: EventOperations, filters: FilterOperations, queries: QueryOperations
) -> dict[str, Operation]:
    return {
        "CreateLogGroup": groups.create_log_group,
        "DeleteLogGroup": groups.delete_log_group,
        "DescribeLogGroups": groups.describe_log_groups,
        "ListLogGroups": groups.list_log_groups,
        "PutLogGroupDeletionProtection": groups.protect,
        "CreateLogStream": groups.create_log_stream,
        "DeleteLogStream": groups.delete_log_stream,
        "DescribeLogStreams": groups.describe_log_streams,
        "PutRetentionPolicy": groups.put_retention_policy,
        "DeleteRetentionPolicy": groups.delete_retention_policy,
        "TagLogGroup": groups.tag_log_group,
        "UntagLogGroup": groups.untag_log_group,
        "ListTagsLogGroup": groups.list_tags_log_group,
        "TagResource": groups.tag_resource,
        "UntagResource": groups.untag_resource,
        "ListTagsForResource": groups.list_tags_for_resource,
        "PutLogEvents": events.put_log_events,
        "GetLogEvents": events.get_log_events,
        "FilterLogEvents": events.filter_log_events,
        "PutSubscriptionFilter": filters.put_subscription_filter,
        "DescribeSubscriptionFilters": filters.describe_subscription_filters,
        "DeleteSubscriptionFilter": filters.delete_subscription_filter,
        "PutMetricFilter": filters.put_metric_filter,
        "DescribeMetricFilters": filters.describe_metric_filters,
        "DeleteMetricFilter": filters.delete_metric_filter,
        "TestMetricFilter": filters.test_metric_filter,
        "StartQuery": queries.start_query,
        "GetQueryResults": queries.get_query_results,
        "StopQuery": queries.stop_query,
        "DescribeQueries": queries.describe_queries,
        "GetLogRecord": queries.get_log_record,
    }
