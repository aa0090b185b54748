"""Follows the change of a stack: reports its events until the change has ended, and finds the cause of a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from thawd.deploy.aws.account import AwsSession, explained
from thawd.deploy.aws.stack import DeploymentError

_FIRST_LOOK_S, _LAST_LOOK_S = 0.2, 3.0


class StackEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stack: the new status of a resource.

    Attributes:
        resource: the resource's logical id.
        type: its type.
        status: its new status.
        reason: the reason; empty if there is none.
    """

    resource: str
    type: str
    status: str
    reason: str


Report = Callable[[StackEvent], None]


def events(session: AwsSession, stack_id: str) -> Iterator[dict[str, Any]]:
    """Yield the stack's events, the newest first."""
    with explained():
        for page in (
            session.client("cloudformation").get_paginator("describe_stack_events").paginate(StackName=stack_id)
        ):
            yield from page["StackEvents"]


def seen_events(session: AwsSession, stack_id: str) -> set[str]:
    """Return the ids of the events that a stack has already."""
    return {event["EventId"] for event in events(session, stack_id)}


def wait(session: AwsSession, stack_id: str, seen: set[str], report: Report) -> tuple[str, list[StackEvent]]:
    """Report the stack's new events until its change has ended; return its status and the failures.

    Raises:
        DeploymentError: AWS cannot be reached any more. The message says that the change goes on.
    """
    failures: list[StackEvent] = []
    try:
        for _ in looks(None):
            with explained():
                [stack] = session.client("cloudformation").describe_stacks(StackName=stack_id)["Stacks"]
            for entry in reversed([event for event in events(session, stack_id) if event["EventId"] not in seen]):
                seen.add(entry["EventId"])
                event = StackEvent(
                    resource=entry["LogicalResourceId"],
                    type=entry["ResourceType"],
                    status=entry["ResourceStatus"],
                    reason=entry.get("ResourceStatusReason", ""),
                )
                report(event)
                if event.status.endswith("_FAILED"):
                    failures.append(event)
            status: str = stack["StackStatus"]
            if not status.endswith("_IN_PROGRESS"):
                return status, failures
    except DeploymentError as error:
        raise DeploymentError(
            f"{error.message}. CloudFormation carries on with the change; thawd deploy aws status shows its state"
        ) from error
    raise AssertionError("looks without a time limit do not end")


def cause_of(failures: list[StackEvent]) -> str:
    """Return the resource and reason of the first failure that is not a consequence of another one.

    After a failure, CloudFormation cancels the other operations, and reports them as failed.
    """
    causes = [event for event in failures if "cancelled" not in event.reason] or failures
    if not causes:
        return "CloudFormation gave no reason"
    return f"{causes[0].resource} ({causes[0].type}): {(causes[0].reason or causes[0].status).rstrip('.')}"


def looks(timeout_s: float | None) -> Iterator[None]:
    """Yield whenever it is time to poll again: first after short pauses, then after longer ones, until the time-out."""
    begun_s, pause_s = time.monotonic(), _FIRST_LOOK_S
    while timeout_s is None or time.monotonic() < begun_s + timeout_s:
        yield
        time.sleep(pause_s)
        pause_s = min(_LAST_LOOK_S, pause_s * 1.5)
