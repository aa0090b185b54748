"""The records of a stack, as they are stored in a file: its settings, resources, events and change sets.

All times are seconds since the epoch.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec

STACK_TYPE = "AWS::CloudFormation::Stack"
DELETED = "DELETE_COMPLETE"
REVIEW = "REVIEW_IN_PROGRESS"
_MOST_EVENTS = 5000

Properties = dict[str, Any]


class Settings(msgspec.Struct):
    """The settings of a stack, as a request to create or update it contains them.

    Attributes:
        template: the text of the template.
        parameters: the values of parameters in the request, by name.
        tags: the tags, by key.
        notification_arns: the topics that get the stack's events.
        role_arn: the role in the request. It is recorded and has no effect.
        capabilities: the capabilities in the request.
    """

    template: str
    parameters: dict[str, str] = {}
    tags: dict[str, str] = {}
    notification_arns: list[str] = []
    role_arn: str | None = None
    capabilities: list[str] = []


class Resource(msgspec.Struct):
    """A resource of a stack.

    Attributes:
        logical_id: its name in the template.
        kind: its type, such as ``AWS::SQS::Queue``.
        name: the name with which it is made; known before it exists.
        physical_id: the value of Ref; empty while the resource does not exist.
        status: CloudFormation's status of the resource.
        reason: the reason of this status.
        changed_s: time when the status changed.
        properties: the properties with which it was made, with intrinsic functions resolved.
        shown: the properties with dynamic references instead of their values, which are secret; None: the properties
            contain no dynamic reference.
        attributes: the values of Fn::GetAtt, by name.
        facts: values with which its kind finds the resource, to change or delete it.
        needs: the logical ids of the resources that it refers to or depends on.
        deletion_policy: ``Delete``, ``Retain``, ``Snapshot`` or ``RetainExceptOnCreate``.
        replacement_policy: the policy that applies when another resource replaces it.
        metadata: its metadata in the template.
        was_begun: whether its creation has begun. The resource may then exist although `physical_id` is empty.
    """

    logical_id: str
    kind: str
    name: str = ""
    physical_id: str = ""
    status: str = ""
    reason: str | None = None
    changed_s: float = 0.0
    properties: Properties = {}
    shown: Properties | None = None
    attributes: Properties = {}
    facts: Properties = {}
    needs: list[str] = []
    deletion_policy: str = "Delete"
    replacement_policy: str = "Delete"
    metadata: Any = None
    was_begun: bool = False

    @property
    def exists(self) -> bool:
        """Whether the resource may exist."""
        return self.was_begun or bool(self.physical_id)

    @property
    def shown_properties(self) -> Properties:
        """The properties without the values of dynamic references."""
        return self.properties if self.shown is None else self.shown


class Output(msgspec.Struct):
    """An output of a stack. `export` is the name under which it is exported; None: it is not exported."""

    key: str
    value: str
    description: str | None = None
    export: str | None = None


class Event(msgspec.Struct):
    """An event of a stack, or of one of its resources."""

    id: str
    time_s: float
    logical_id: str
    physical_id: str
    kind: str
    status: str
    reason: str | None = None
    properties: str | None = None
    token: str | None = None


class Change(msgspec.Struct):
    """A change of a resource in a change set.

    Attributes:
        action: ``Add``, ``Modify`` or ``Remove``.
        replacement: for ``Modify``: ``True``, ``False`` or ``Conditional``.
        properties: the names of the properties that change.
        scope: the parts of the resource that change: ``Properties``, ``Metadata``, ``DeletionPolicy``, ...
        before: for ``Modify`` and ``Remove``: the properties before.
        after: for ``Add`` and ``Modify``: the properties after the change that are known already.
        policy: what happens to a removed or replaced resource: ``Delete``, ``Retain``, ``Snapshot``; of a replaced one,
            with ``ReplaceAnd`` before it. None: it stays.
    """

    action: str
    logical_id: str
    kind: str
    physical_id: str = ""
    replacement: str | None = None
    properties: list[str] = []
    scope: list[str] = []
    before: Properties | None = None
    after: Properties | None = None
    policy: str | None = None


class ChangeSet(msgspec.Struct):
    """A change set of a stack.

    Attributes:
        hidden: the values of parameters with NoEcho, which the announced changes do not show.
    """

    id: str
    name: str
    kind: str
    settings: Settings
    created_s: float
    status: str = "CREATE_COMPLETE"
    reason: str | None = None
    execution_status: str = "AVAILABLE"
    description: str | None = None
    changes: list[Change] = []
    parameters: list[tuple[str, str, str | None]] = []
    on_failure: str | None = None
    include_nested: bool = False
    hidden: list[str] = []


class Before(msgspec.Struct):
    """A stack before an update, to which a failed update returns."""

    settings: Settings
    parameters: list[tuple[str, str, str | None]]
    outputs: list[Output]
    description: str | None
    processed: str
    resources: dict[str, Resource]
    imports: list[str]


class Stack(msgspec.Struct):
    """A stack.

    Attributes:
        id: its ARN.
        parameters: the values of the parameters, for people: name, value, and what an SSM parameter has.
        processed: the template after its transformations, as JSON.
        resources: the resources by logical id.
        clean_up: resources that others have replaced, or that an update removed; they are to be deleted.
        deleted: resources that the running operation has deleted. If the process ends before the services' state is
            saved, they may be there again.
        before: the stack before the update that runs, or that failed.
        on_failure: what a failed creation does: ``ROLLBACK``, ``DELETE`` or ``DO_NOTHING``.
        timeout_s: how long its creation may take.
        parent_id: the stack that it is nested in.
        token: the client's token of the operation that runs.
        retained: logical ids that the deletion that runs leaves alone.
        hidden: values that events do not show: of parameters with NoEcho, and of answers with NoEcho.
        imports: names of the exports of other stacks that it imports.
        keeps_failed: whether a failed update stays as it is, instead of returning to the state before.
    """

    id: str
    name: str
    account: str
    region: str
    settings: Settings
    created_s: float
    status: str
    reason: str | None = None
    updated_s: float | None = None
    deleted_s: float | None = None
    description: str | None = None
    parameters: list[tuple[str, str, str | None]] = []
    processed: str = "{}"
    outputs: list[Output] = []
    resources: dict[str, Resource] = {}
    clean_up: list[Resource] = []
    deleted: list[Resource] = []
    events: list[Event] = []
    change_sets: list[ChangeSet] = []
    change_set_id: str | None = None
    before: Before | None = None
    on_failure: str = "ROLLBACK"
    timeout_s: float | None = None
    is_protected: bool = False
    policy: str | None = None
    parent_id: str | None = None
    root_id: str | None = None
    token: str | None = None
    retained: list[str] = []
    hidden: list[str] = []
    imports: list[str] = []
    keeps_failed: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether an operation runs."""
        return self.status.endswith("_IN_PROGRESS") and self.status != REVIEW

    @property
    def is_deleted(self) -> bool:
        """Whether the stack has been deleted; it is still shown by its id."""
        return self.status == DELETED

    def add_event(self, resource: Resource | None, status: str, reason: str | None = None) -> Event:
        """Record that the stack, or one of its resources, has a new status."""
        now_s = time.time()
        reason = masked_text(reason, self.hidden) if reason else reason
        if resource is None:
            self.status, self.reason = status, reason
            logical_id, physical_id, kind, properties = self.name, self.id, STACK_TYPE, None
            identifier = str(uuid.uuid4())
        else:
            resource.status, resource.reason, resource.changed_s = status, reason, now_s
            logical_id, physical_id, kind = resource.logical_id, resource.physical_id, resource.kind
            properties = self._properties_shown(resource)
            identifier = f"{logical_id}-{status}-{uuid.uuid4()}"
        event = Event(
            id=identifier,
            time_s=now_s,
            logical_id=logical_id,
            physical_id=physical_id,
            kind=kind,
            status=status,
            reason=reason,
            properties=properties,
            token=self.token,
        )
        self.events.append(event)
        del self.events[:-_MOST_EVENTS]
        return event

    def forget_properties(self) -> None:
        """Make the record of a deleted stack small: of its resources, names and statuses remain."""
        secret = {name for name, shown, _ in self.parameters if self.settings.parameters.get(name, shown) != shown}
        kept = {name: value for name, value in self.settings.parameters.items() if name not in secret}
        self.settings = msgspec.structs.replace(self.settings, parameters=kept)
        self.processed, self.hidden, self.clean_up = "{}", [], []
        for resource in self.resources.values():
            resource.properties, resource.shown, resource.attributes, resource.facts = {}, None, {}, {}
        for event in self.events:
            event.properties = None

    def _properties_shown(self, resource: Resource) -> str | None:
        """Return a resource's properties without secrets."""
        shown = resource.shown_properties
        return masked(json.dumps(shown, default=str), self.hidden) if shown else None


def new_stack_id(region: str, account: str, name: str) -> str:
    """Return an ARN for a new stack."""
    return f"arn:aws:cloudformation:{region}:{account}:stack/{name}/{uuid.uuid4()}"


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a text of JSON with asterisks in place of secrets."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(json.dumps(secret)[1:-1], "****")
    return text


def masked_text(text: str, secrets: Iterable[str]) -> str:
    """A text for people with asterisks in place of secrets."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "****")
    return text
