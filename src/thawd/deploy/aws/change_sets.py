"""Creates and executes CloudFormation's change sets. Two deployments at the same time do not overwrite each other.

A request that was sent twice, because the first answer was lost, has a token, by which CloudFormation and this module
recognise it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from thawd.deploy.aws import stack_events
from thawd.deploy.aws.account import AwsSession, explained
from thawd.deploy.aws.artifact_bucket import ArtifactBucket
from thawd.deploy.aws.stack import DeploymentError
from thawd.deploy.aws.stack_events import Report, StackEvent

# Source: CloudFormation quotas, "Template body size in a request".
_LONGEST_BODY_BYTES = 51_200
_TIMEOUT_S = 600.0
_NO_CHANGES = ("didn't contain changes", "No updates are to be performed")
PLANNED = "REVIEW_IN_PROGRESS"
"""State of a stack that has nothing but a change set."""


class ChangeSetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A change to prepare.

    Attributes:
        stack: name of the stack.
        text: the template.
        capabilities: what the template may contain, in CloudFormation's words.
        parameters: values of parameters; None: the value that the stack has.
        tags: the stack's tags; None: those that it has.
        has_nested: whether nested stacks get change sets, too.
        is_new: whether the stack has no resources.
        is_first: whether the stack does not exist yet. It is then made, and removed again if the template is refused.
    """

    stack: str
    text: str
    capabilities: tuple[str, ...] = ("CAPABILITY_IAM",)
    parameters: Mapping[str, str | None] = {}
    tags: Mapping[str, str] | None = None
    has_nested: bool = False
    is_new: bool
    is_first: bool


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """A change set that can be executed.

    Attributes:
        id: its ARN.
        stack_id: ARN of its stack.
        is_first: whether its stack was made for it.
    """

    id: str
    stack_id: str
    is_first: bool


def create(session: AwsSession, request: ChangeSetRequest) -> ChangeSet | None:
    """Create a change set and wait until it can be executed; None: it would change nothing.

    Raises:
        DeploymentError: CloudFormation refuses the template, or does not answer.
    """
    client = session.client("cloudformation")
    name = f"thawd-{secrets.token_hex(8)}"
    given: dict[str, Any] = {"TemplateBody": request.text}
    if len(request.text.encode()) > _LONGEST_BODY_BYTES:
        given = {"TemplateURL": ArtifactBucket(session).put_template(request.stack, request.text)}
    if request.tags is not None:
        given["Tags"] = [{"Key": key, "Value": value} for key, value in request.tags.items()]
    with explained():
        made = client.create_change_set(
            StackName=request.stack,
            ChangeSetName=name,
            ClientToken=name,
            ChangeSetType="CREATE" if request.is_new else "UPDATE",
            Capabilities=list(request.capabilities),
            IncludeNestedStacks=request.has_nested,
            Parameters=[_parameter(key, value) for key, value in request.parameters.items()],
            **given,
        )
        change_set = ChangeSet(id=made["Id"], stack_id=made["StackId"], is_first=request.is_first)
        for _ in stack_events.looks(_TIMEOUT_S):
            found: dict[str, Any] = client.describe_change_set(ChangeSetName=made["Id"], StackName=made["StackId"])
            if found["Status"] in ("CREATE_COMPLETE", "FAILED"):
                break
        else:
            raise DeploymentError(f"CloudFormation was still making a change set after {_TIMEOUT_S} s")
    if found["Status"] == "CREATE_COMPLETE":
        return change_set
    discard(session, change_set)
    reason = found.get("StatusReason", "")
    if any(text in reason for text in _NO_CHANGES):
        return None
    raise DeploymentError(f"CloudFormation refused the template: {reason}")


def _parameter(name: str, value: str | None) -> dict[str, Any]:
    return {"ParameterKey": name, **({"UsePreviousValue": True} if value is None else {"ParameterValue": value})}


def discard(session: AwsSession, change_set: ChangeSet) -> None:
    """Delete a change set, and the stack that was made for it if nobody else uses that stack.

    Another deployment may have begun to use the stack: its change set is listed, or the stack has resources by now.
    """
    client = session.client("cloudformation")
    with explained():
        client.delete_change_set(ChangeSetName=change_set.id)
        if not change_set.is_first:
            return
        [stack] = client.describe_stacks(StackName=change_set.stack_id)["Stacks"]
        others = client.list_change_sets(StackName=change_set.stack_id)["Summaries"]
        if stack["StackStatus"] == PLANNED and not [each for each in others if each["ChangeSetId"] != change_set.id]:
            client.delete_stack(StackName=change_set.stack_id)
            for _ in stack_events.looks(_TIMEOUT_S):  # the next deployment could not begin before
                [stack] = client.describe_stacks(StackName=change_set.stack_id)["Stacks"]
                if stack["StackStatus"] != "DELETE_IN_PROGRESS":
                    break


def execute(session: AwsSession, stack: str, change_set: ChangeSet, *, report: Report) -> tuple[str, list[StackEvent]]:
    """Execute a change set, and wait until the stack's change has ended; return the stack's status and the failures.

    Raises:
        DeploymentError: another deployment has begun, or AWS cannot be reached any more.
    """
    from botocore.exceptions import ClientError

    token = f"thawd-{secrets.token_hex(8)}"
    seen = stack_events.seen_events(session, change_set.stack_id)
    with explained():
        try:
            session.client("cloudformation").execute_change_set(ChangeSetName=change_set.id, ClientRequestToken=token)
        except ClientError as error:
            # Source: CloudFormation API reference, ExecuteChangeSet: after one is executed, others are gone.
            if error.response["Error"]["Code"] not in ("ChangeSetNotFound", "InvalidChangeSetStatus"):
                raise
            begun = stack_events.events(session, change_set.stack_id)
            # The answer to the first request may have been lost, and this be that to the second one.
            if not any(event.get("ClientRequestToken") == token for event in begun):
                raise DeploymentError(
                    f"another deployment of the stack {stack} began at the same time; plan again when it has ended"
                ) from None
    return stack_events.wait(session, change_set.stack_id, seen, report)
