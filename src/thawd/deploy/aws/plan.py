"""The plan: what a deployment changes, as data, and as text like that of ``terraform plan``.

Pure: compares the deployed template with the new one. The plan shows keyed digests instead of the values of environment
variables, so that it shows whether a value changes. The key is random in each run, so a value cannot be guessed from
its digest.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from thawd.deploy.aws.stack import DeploymentError, Missing
from thawd.deploy.aws.template import Model

CREATE, UPDATE, REPLACE, DELETE = "create", "update", "replace", "delete"
_SIGNS = {CREATE: "+", UPDATE: "~", REPLACE: "±", DELETE: "-"}
_COLOURS = {"+": 32, "~": 33, "±": 35, "-": 31}
_HOLDS_DATA = ("AWS::S3::Bucket", "AWS::DynamoDB::Table")
_ALL = "*"
# Properties whose change makes CloudFormation replace the resource.
# Source: CloudFormation user guide, "Update requires: Replacement" of each resource type.
_REPLACED_BY: dict[str, tuple[str, ...]] = {
    "AWS::ApiGatewayV2::Api": ("ProtocolType",),
    "AWS::ApiGatewayV2::Integration": ("ApiId",),
    "AWS::ApiGatewayV2::Route": ("ApiId",),
    "AWS::ApiGatewayV2::Stage": ("ApiId", "StageName"),
    "AWS::ApplicationAutoScaling::ScalableTarget": ("ResourceId", "ScalableDimension", "ServiceNamespace"),
    "AWS::CloudWatch::Alarm": ("AlarmName",),
    "AWS::CloudWatch::Dashboard": ("DashboardName",),
    "AWS::CodeDeploy::Application": ("ApplicationName", "ComputePlatform"),
    "AWS::CodeDeploy::DeploymentGroup": ("ApplicationName", "DeploymentGroupName"),
    "AWS::DynamoDB::Table": ("TableName", "KeySchema"),
    "AWS::Events::EventBus": ("Name",),
    "AWS::IAM::Role": ("RoleName", "Path"),
    "AWS::Lambda::Alias": ("FunctionName", "Name"),
    "AWS::Lambda::EventInvokeConfig": ("FunctionName", "Qualifier"),
    "AWS::Lambda::EventSourceMapping": ("EventSourceArn",),
    "AWS::Lambda::Function": ("FunctionName", "PackageType", "TenancyConfig"),
    "AWS::Lambda::LayerVersion": (_ALL,),
    "AWS::Lambda::Permission": (_ALL,),
    "AWS::Lambda::Url": ("TargetFunctionArn", "Qualifier"),
    "AWS::Lambda::Version": (_ALL,),
    "AWS::Logs::LogGroup": ("LogGroupName",),
    "AWS::S3::Bucket": ("BucketName",),
    "AWS::SNS::Topic": ("TopicName", "FifoTopic"),
    "AWS::SQS::Queue": ("QueueName", "FifoQueue"),
    "AWS::Scheduler::Schedule": ("Name", "GroupName"),
}


class PropertyChange(msgspec.Struct, frozen=True, kw_only=True):
    """A property that the deployment changes.

    Attributes:
        path: the property's place, such as ``Environment.Variables.MODEL``.
        before: value in the deployed template, as text; None: the property is new.
        after: value in the new template, as text; None: the property is removed, or, if `before` is None, too, its
            values are not shown.
        replaces: whether CloudFormation replaces the resource because of this change.
    """

    path: str
    before: str | None
    after: str | None
    replaces: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A resource or output that the deployment changes.

    Attributes:
        action: ``create``, ``update``, ``replace`` or ``delete``.
        logical_id: the resource's id in the template.
        type: the resource's type; ``Output`` for an output.
        properties: the properties that change; empty for a deleted resource.
        loses_data: whether the deployment deletes a bucket or a table.
    """

    action: str
    logical_id: str
    type: str
    properties: tuple[PropertyChange, ...] = ()
    loses_data: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a deployment.

    Attributes:
        stack: name of the stack.
        changes: the changed resources and outputs, sorted by logical id.
        missing: settings of thawd.toml that AWS cannot carry out.
    """

    stack: str
    changes: tuple[Change, ...]
    missing: tuple[Missing, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """Logical ids of the buckets and tables that the deployment deletes."""
        return tuple(change.logical_id for change in self.changes if change.loses_data)


def make_plan(model: Model, deployed: Mapping[str, Any] | None, *, stack: str, shows_values: bool = False) -> Plan:
    """Compare the deployed template with the new one.

    Args:
        model: the new template.
        deployed: the deployed template; None: there is no stack.
        stack: name of the stack.
        shows_values: whether the plan shows the values of environment variables instead of digests.

    Raises:
        DeploymentError: AWS cannot carry out a change.
    """
    concealed = Concealed(None if shows_values else secrets.token_bytes(16))
    before = _parts(deployed or {})
    after = _parts(model.template)
    changes = []
    for logical_id in sorted(before.keys() | after.keys()):
        change = _change(logical_id, before.get(logical_id), after.get(logical_id), concealed)
        if change is not None:
            changes.append(change)
    return Plan(stack=stack, changes=tuple(changes), missing=model.missing)


def _parts(template: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return resources and outputs by logical id. Outputs have the form of resources."""
    outputs = {f"Outputs.{name}": {"Type": "Output", **value} for name, value in template.get("Outputs", {}).items()}
    return {**template.get("Resources", {}), **outputs}


def _change(
    logical_id: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, concealed: Concealed
) -> Change | None:
    if before == after:
        return None
    if after is None:
        kind = str((before or {}).get("Type"))
        return Change(action=DELETE, logical_id=logical_id, type=kind, loses_data=kind in _HOLDS_DATA)
    kind = str(after["Type"])
    if before is not None and before.get("Type") != kind:
        return Change(action=REPLACE, logical_id=logical_id, type=kind, loses_data=before.get("Type") in _HOLDS_DATA)
    old, new = dict(_values(before or {}, "")), dict(_values(after, ""))
    replaced_by = _REPLACED_BY.get(kind, ()) if before is not None else ()
    properties = tuple(
        PropertyChange(
            path=path,
            before=concealed.shown(path, old[path]) if path in old else None,
            after=concealed.shown(path, new[path]) if path in new else None,
            replaces=_ALL in replaced_by or path.partition(".")[0].partition("[")[0] in replaced_by,
        )
        for path in sorted(old.keys() | new.keys())
        if path not in old or path not in new or old[path] != new[path]
    )
    action = CREATE if before is None else REPLACE if any(change.replaces for change in properties) else UPDATE
    change = Change(action=action, logical_id=logical_id, type=kind, properties=properties)
    _require_replaceable(logical_id, before or {}, after, change)
    return change


# Types that thawd names, with the property that has the name. CloudFormation makes the new resource first, and there
# cannot be two of one name. Source: CloudFormation user guide, "Name type".
_NAMES = {
    "AWS::DynamoDB::Table": "TableName",
    "AWS::Lambda::Function": "FunctionName",
    "AWS::SQS::Queue": "QueueName",
}


def _require_replaceable(logical_id: str, before: Mapping[str, Any], after: Mapping[str, Any], change: Change) -> None:
    """Raise `DeploymentError` if a resource would be replaced by another one of the same name."""
    named = _NAMES.get(change.type)
    name = None if named is None else after.get("Properties", {}).get(named)
    if change.action == REPLACE and name is not None and before.get("Properties", {}).get(named) == name:
        causes = ", ".join(sorted({each.path.partition(".")[0] for each in change.properties if each.replaces}))
        raise DeploymentError(
            f"{logical_id} ({name}) cannot change its {causes}: AWS would have to replace it by one of the same name. "
            "Give it another name in thawd.toml, or deploy without it first"
        )


def _values(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a resource with their paths. References and other functions are leaves."""
    if isinstance(value, Mapping) and value and not _is_function(value):
        for name, entry in value.items():
            if path or name != "Type":
                below = "" if not path and name == "Properties" else f"{path}.{name}" if path else name
                yield from _values(entry, below) if below else flattened(entry)
    elif isinstance(value, list) and value:
        for index, entry in enumerate(value):
            yield from _values(entry, f"{path}[{index}]")
    else:
        yield path, value


def flattened(properties: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values in a resource's properties with their paths, such as ``Environment.Variables.MODEL``."""
    for name, value in properties.items():
        yield from _values(value, name)


def _is_function(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and (next(iter(value)) == "Ref" or next(iter(value)).startswith("Fn::"))


class Concealed:
    """Shows values. If there is a key, values of environment variables are shown as keyed digests."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def shown(self, path: str, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
        if self._key is None or not path.startswith("Environment.Variables."):
            return text
        return f"hidden-{hashlib.blake2b(text.encode(), key=self._key, digest_size=4).hexdigest()}"


def plan_text(plan: Plan, *, has_colours: bool = False) -> str:
    """Return the plan as text: a line for each resource with its sign, below it the properties."""
    lines = []
    for change in plan.changes:
        sign = _SIGNS[change.action]
        lines.append(_coloured(f"{sign} {change.type} {change.logical_id}{_remark(change)}", sign, has_colours))
        if change.action != CREATE:
            lines += [_property_line(entry, has_colours) for entry in change.properties]
    if plan.missing:
        lines += ["", "AWS does not have:", *(f"  {entry.where}: {entry.what}" for entry in plan.missing)]
    counts = {action: sum(change.action == action for change in plan.changes) for action in _SIGNS}
    summary = ", ".join(f"{count} to {action}" for action, count in counts.items() if count)
    lines += ["", f"stack {plan.stack}: {summary or 'nothing to change'}"]
    return "\n".join(lines).lstrip("\n")


def _remark(change: Change) -> str:
    if change.loses_data:
        return "  (with all its data)"
    return "  (replaced)" if change.action == REPLACE else ""


def _property_line(change: PropertyChange, has_colours: bool) -> str:
    values = [value for value in (change.before, change.after) if value is not None]
    sign = "~" if len(values) != 1 else "+" if change.before is None else "-"
    value = f": {' -> '.join(map(_short, values))}" if values else ""
    remark = "  (needs replacement)" if change.replaces else ""
    return _coloured(f"    {sign} {change.path}{value}{remark}", sign, has_colours)


def _short(text: str) -> str:
    printable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return printable if len(printable) <= 120 else printable[:117] + "..."


def _coloured(line: str, sign: str, has_colours: bool) -> str:
    return f"\x1b[{_COLOURS[sign]}m{line}\x1b[0m" if has_colours else line
