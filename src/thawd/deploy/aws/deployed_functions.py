"""Calls deployed functions and reads their logs, with the clients of an account."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from thawd.deploy.aws.account import AwsSession, explained

_LOOK_AGAIN_S = 2.0


class RemoteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A function's answer.

    Attributes:
        payload: the answer's bytes.
        error: ``Handled`` or ``Unhandled`` if the function failed; None: it did not.
        version: version that answered.
    """

    payload: bytes
    error: str | None
    version: str


def invoke(account: AwsSession, function: str, qualifier: str | None, payload: bytes) -> RemoteAnswer:
    """Invoke a function by its name in the account, and return its answer.

    Raises:
        DeploymentError: there is no such function, or AWS refused the call.
    """
    with explained():
        given = {"FunctionName": function} | ({} if qualifier is None else {"Qualifier": qualifier})
        answer = account.client("lambda").invoke(Payload=payload, **given)
        return RemoteAnswer(
            payload=answer["Payload"].read(),
            error=answer.get("FunctionError"),
            version=answer.get("ExecutedVersion", ""),
        )


def invocation_address(account: AwsSession, function: str, qualifier: str | None) -> str:
    """Return the URL that invokes a function.

    Args:
        account: where it is deployed.
        function: the function's name at AWS.
        qualifier: version or alias; None: ``$LATEST``.

    Raises:
        DeploymentError: there is no such function or alias, or AWS refused the call.
    """
    given = {"FunctionName": function} | ({} if qualifier is None else {"Qualifier": qualifier})
    with explained():
        client = account.client("lambda")
        client.get_function_configuration(**given)
        url = f"{client.meta.endpoint_url}/2015-03-31/functions/{quote(function, safe='')}/invocations"
    return url if qualifier is None else f"{url}?Qualifier={quote(qualifier, safe='')}"


def log_group_of(account: AwsSession, function: str) -> str:
    """Return the log group of a function, by its name in the account.

    Raises:
        DeploymentError: there is no such function, or AWS refused the call.
    """
    with explained():
        found = account.client("lambda").get_function_configuration(FunctionName=function)
    return str(found.get("LoggingConfig", {}).get("LogGroup") or f"/aws/lambda/{function}")


def log_lines(account: AwsSession, group: str, *, since_s: float, follows: bool) -> Iterator[str]:
    """Yield the lines of a log group, from `since_s` (seconds since 1970) on. With `follows`, it does not end.

    Raises:
        DeploymentError: there is no such log group, or AWS refused the call.
    """
    seen: dict[str, int] = {}
    start_ms = int(since_s * 1000)
    while True:
        newest_ms = start_ms
        with explained():
            pages = (
                account.client("logs")
                .get_paginator("filter_log_events")
                .paginate(logGroupName=group, startTime=start_ms)
            )
            for page in pages:
                for event in page["events"]:
                    newest_ms = max(newest_ms, event["timestamp"])
                    if event["eventId"] not in seen:
                        seen[event["eventId"]] = event["timestamp"]
                        yield _line(event)
        if not follows:
            return
        # Events of one moment may arrive later than others, so the last minute is read again.
        start_ms = max(start_ms, newest_ms - 60_000)
        seen = {event_id: at_ms for event_id, at_ms in seen.items() if at_ms >= start_ms}
        time.sleep(_LOOK_AGAIN_S)


def _line(event: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(event["timestamp"] / 1000))
    return f"{at}.{event['timestamp'] % 1000:03d}Z {event['message'].rstrip()}"
