"""The plan of a project's deployment: the changes that CloudFormation has found, in the form of `plan`.

The template is the user's, with any type of resource. So values are shown only of Lambda's resources, without their
environment variables; of other resources, the names of the properties. `--show-values` shows all.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from thawd.deploy.aws.account import AwsSession, explained
from thawd.deploy.aws.change_sets import ChangeSet
from thawd.deploy.aws.plan import CREATE, DELETE, REPLACE, UPDATE, Change, Concealed, Plan, PropertyChange, flattened

_ACTIONS = {"Add": CREATE, "Import": CREATE, "Modify": UPDATE, "Dynamic": UPDATE, "Remove": DELETE}
_STACK = "AWS::CloudFormation::Stack"
HOLDS_DATA = (
    "AWS::CloudFormation::Stack",  # it may contain any of the others
    *("AWS::Cognito::UserPool", "AWS::DocDB::DBCluster", "AWS::DynamoDB::GlobalTable", "AWS::DynamoDB::Table"),
    *("AWS::ECR::Repository", "AWS::EFS::FileSystem", "AWS::ElastiCache::ReplicationGroup", "AWS::KMS::Key"),
    *("AWS::Kinesis::Stream", "AWS::Neptune::DBCluster", "AWS::OpenSearchService::Domain", "AWS::RDS::DBCluster"),
    *("AWS::RDS::DBInstance", "AWS::S3::Bucket", "AWS::SecretsManager::Secret", "AWS::Timestream::Table"),
)
"""Types whose resources may hold data that nothing else has."""
_KEPT = ("Retain", "Snapshot", "ReplaceAndRetain", "ReplaceAndSnapshot")


def read_plan(session: AwsSession, change_set: ChangeSet, *, stack: str, shows_values: bool) -> Plan:
    """Return the changes of a change set, with those of nested stacks.

    Args:
        session: the account and region.
        change_set: the change set.
        stack: name of the stack.
        shows_values: whether all values are shown.

    Raises:
        DeploymentError: AWS cannot be reached, or refuses.
    """
    concealed = Concealed(None if shows_values else secrets.token_bytes(16))
    changes = _changes(session, change_set.id, "", concealed, shows_values=shows_values)
    return Plan(stack=stack, changes=tuple(sorted(changes, key=lambda change: change.logical_id)))


def _changes(
    session: AwsSession, change_set_id: str, prefix: str, concealed: Concealed, *, shows_values: bool
) -> Iterator[Change]:
    client = session.client("cloudformation")
    with explained():
        pages = client.get_paginator("describe_change_set").paginate(
            ChangeSetName=change_set_id, IncludePropertyValues=True
        )
        found = [change["ResourceChange"] for page in pages for change in page["Changes"] if "ResourceChange" in change]
    for each in found:
        yield _change(each, prefix, concealed, shows_values=shows_values)
        nested = each.get("ChangeSetId")
        if nested is not None:
            below = f"{prefix}{each['LogicalResourceId']}/"
            yield from _changes(session, nested, below, concealed, shows_values=shows_values)


def _change(each: Mapping[str, Any], prefix: str, concealed: Concealed, *, shows_values: bool) -> Change:
    kind = each["ResourceType"]
    replaces = each.get("Replacement") in ("True", "Conditional")
    action = REPLACE if replaces and each["Action"] == "Modify" else _ACTIONS[each["Action"]]
    properties: tuple[PropertyChange, ...] = ()
    if action != DELETE:
        properties = tuple(_properties(each, concealed, shows_values=shows_values))
    return Change(
        action=action,
        logical_id=prefix + each["LogicalResourceId"],
        type=kind,
        properties=properties,
        loses_data=_loses_data(each, action),
    )


def _loses_data(each: Mapping[str, Any], action: str) -> bool:
    """Return whether data may be deleted: of a nested stack without a change set of its own, nothing is known."""
    if action not in (DELETE, REPLACE) or each.get("PolicyAction") in _KEPT:
        return False
    if each["ResourceType"] == _STACK:
        return each.get("ChangeSetId") is None
    return each["ResourceType"] in HOLDS_DATA


def _properties(each: Mapping[str, Any], concealed: Concealed, *, shows_values: bool) -> Iterator[PropertyChange]:
    before, after = _context(each, "BeforeContext"), _context(each, "AfterContext")
    targets = [detail.get("Target", {}) for detail in each.get("Details", ())]
    recreating = {target.get("Name") for target in targets if target.get("RequiresRecreation") not in (None, "Never")}
    is_shown = shows_values or each["ResourceType"].startswith("AWS::Lambda::")

    def shown(values: Mapping[str, Any], path: str) -> str | None:
        return concealed.shown(path, values[path]) if is_shown and path in values else None

    seen = set()
    for path in sorted(before.keys() | after.keys()):
        if path in before and path in after and before[path] == after[path]:
            continue
        name = path.partition(".")[0].partition("[")[0]
        seen.add(name)
        yield PropertyChange(
            path=path, before=shown(before, path), after=shown(after, path), replaces=name in recreating
        )
    # Values that CloudFormation does not know yet are in no context.
    for name in sorted({str(target.get("Name") or target.get("Attribute")) for target in targets} - seen - {"None"}):
        if each["Action"] == "Modify":
            yield PropertyChange(path=name, before=None, after=None, replaces=name in recreating)


def _context(each: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the properties of a context, by path."""
    try:
        found = json.loads(each.get(name) or "{}")
    except ValueError:
        return {}
    properties = found.get("Properties") if isinstance(found, dict) else None
    return dict(flattened(properties)) if isinstance(properties, dict) else {}
