"""Makes the tables of stacks through DynamoDB's API, and changes them without a loss of items.

Source: CloudFormation template reference, "AWS::DynamoDB::Table" and "AWS::DynamoDB::GlobalTable", for the properties,
and for what Ref and GetAtt return.
"""

from __future__ import annotations

from typing import Any

from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, changed, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted, or_else
from thawd.server.emulator.cloudformation.stack_records import Resource

Properties = dict[str, Any]

_GIVEN = (
    "AttributeDefinitions",
    "KeySchema",
    "LocalSecondaryIndexes",
    "GlobalSecondaryIndexes",
    "BillingMode",
    "ProvisionedThroughput",
    "OnDemandThroughput",
    "DeletionProtectionEnabled",
    "TableClass",
)
_KINESIS = "KinesisStreamSpecification"
_FIXED = frozenset({"TableName", "KeySchema", "LocalSecondaryIndexes", "ImportSourceSpecification"})


def _of_one_region(wanted: Wanted) -> Properties:
    """Return the properties of a table; for a global table, those of its replica in the stack's region."""
    properties = dict(wanted.properties)
    if wanted.kind != "AWS::DynamoDB::GlobalTable":
        return properties
    for replica in properties.pop("Replicas", None) or []:
        if replica.get("Region") == wanted.stack.region:
            names = ("DeletionProtectionEnabled", "Tags")
            properties |= {name: value for name, value in replica.items() if name in names}
    # Throughput is given per table and replica, and scales by itself; the emulator has no limits.
    properties["BillingMode"] = "PAY_PER_REQUEST"
    indexes = properties.get("GlobalSecondaryIndexes") or []
    kept = ("IndexName", "KeySchema", "Projection")
    properties["GlobalSecondaryIndexes"] = [{name: index[name] for name in kept if name in index} for index in indexes]
    return properties


def _stream(properties: Properties) -> Properties | None:
    given = properties.get("StreamSpecification")
    return {"StreamEnabled": True, "StreamViewType": given.get("StreamViewType")} if given else None


def _encryption(properties: Properties) -> Properties | None:
    given = properties.get("SSESpecification")
    if not given:
        return None
    names = {"SSEEnabled": "Enabled", "SSEType": "SSEType", "KMSMasterKeyId": "KMSMasterKeyId"}
    return {names[name]: value for name, value in given.items() if name in names}


def _make(aws: Aws, wanted: Wanted) -> Made:
    properties, name = _of_one_region(wanted), wanted.name
    tags = tags_of(properties) or {}
    given = {key: properties[key] for key in _GIVEN if properties.get(key)}
    given |= {
        "TableName": name,
        "StreamSpecification": _stream(properties),
        "SSESpecification": _encryption(properties),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()] or None,
    }
    aws.call("dynamodb", "create_table", given)
    with or_else(lambda: _delete_named(aws, name)):
        _settings(aws, name, {}, properties)
        return _shown(aws, name)


def _shown(aws: Aws, name: str) -> Made:
    table = aws.call("dynamodb", "describe_table", {"TableName": name})["Table"]
    attributes = {"Arn": table["TableArn"], "TableId": table.get("TableId", "")}
    if table.get("StreamSpecification", {}).get("StreamEnabled"):
        attributes["StreamArn"] = table["LatestStreamArn"]
    return Made(name, attributes, {"TableName": name})


def _settings(aws: Aws, name: str, before: Properties, after: Properties) -> None:
    """The settings that have operations of their own."""
    if changed(before, after, "TimeToLiveSpecification"):
        old, new = before.get("TimeToLiveSpecification") or {}, after.get("TimeToLiveSpecification") or {}
        attribute = new.get("AttributeName") or old.get("AttributeName")
        enabled = str(new.get("Enabled", False)).lower() == "true"
        if attribute:
            setting = {"Enabled": enabled, "AttributeName": attribute}
            aws.call("dynamodb", "update_time_to_live", {"TableName": name, "TimeToLiveSpecification": setting})
    recovery = "PointInTimeRecoverySpecification"
    if changed(before, after, recovery):
        wanted = after.get(recovery) or {"PointInTimeRecoveryEnabled": False}
        aws.call("dynamodb", "update_continuous_backups", {"TableName": name, recovery: wanted})

    if changed(before, after, _KINESIS):
        _send_changes(aws, name, (before.get(_KINESIS) or {}).get("StreamArn"), after.get(_KINESIS) or {})


def _send_changes(aws: Aws, name: str, before: str | None, after: Properties) -> None:
    """Send the changes of a table's items to a Kinesis data stream, and no longer to another one.

    A failed update may have carried out a part of this, so the current settings are read from the table.

    Args:
        aws: the emulator's services.
        name: the table.
        before: ARN of the stream before the change; None: there was none.
        after: `KinesisStreamSpecification`; empty: changes are no longer sent to a stream.
    """
    known = aws.call("dynamodb", "describe_kinesis_streaming_destination", {"TableName": name})
    streams = known["KinesisDataStreamDestinations"]
    active = {each["StreamArn"] for each in streams if each["DestinationStatus"] == "ACTIVE"}
    wanted = after.get("StreamArn")
    if before in active and before != wanted:
        aws.call("dynamodb", "disable_kinesis_streaming_destination", {"TableName": name, "StreamArn": before})
    if wanted:
        settings = {key: value for key, value in after.items() if key != "StreamArn"} or None
        verb = "Update" if wanted in active else "Enable"
        given = {"TableName": name, "StreamArn": wanted, f"{verb}KinesisStreamingConfiguration": settings}
        aws.call("dynamodb", f"{verb.lower()}_kinesis_streaming_destination", given)


def _change(aws: Aws, resource: Resource, wanted: Wanted) -> Made:
    old = Wanted(wanted.stack, wanted.logical_id, wanted.kind, wanted.name, resource.properties)
    before, after, name = _of_one_region(old), _of_one_region(wanted), resource.physical_id
    table = {"TableName": name, "AttributeDefinitions": after.get("AttributeDefinitions")}
    if changed(before, after, "BillingMode", "ProvisionedThroughput"):
        mode = after.get("BillingMode", "PROVISIONED")
        throughput = after.get("ProvisionedThroughput") if mode == "PROVISIONED" else None
        aws.call("dynamodb", "update_table", {**table, "BillingMode": mode, "ProvisionedThroughput": throughput})
    others = ("DeletionProtectionEnabled", "TableClass")
    if changed(before, after, *others):
        protection = after.get("DeletionProtectionEnabled", False)
        given = {"DeletionProtectionEnabled": protection, "TableClass": after.get("TableClass")}
        aws.call("dynamodb", "update_table", {**table, **given})
    if _stream(before) != _stream(after):
        if _stream(before):
            aws.call("dynamodb", "update_table", {**table, "StreamSpecification": {"StreamEnabled": False}})
        if _stream(after):
            aws.call("dynamodb", "update_table", {**table, "StreamSpecification": _stream(after)})
    _change_indexes(aws, table, before, after)
    _settings(aws, name, before, after)
    made = _shown(aws, name)
    _tag(aws, made.attributes["Arn"], tags_of(before) or {}, tags_of(after) or {})
    return made


def _change_indexes(aws: Aws, table: Properties, before: Properties, after: Properties) -> None:
    """Delete, change and make secondary indexes, one at a time as DynamoDB requires.

    A failed update may have made some of them, so the present indexes are read from the table.
    """
    indexes = "GlobalSecondaryIndexes"
    if before.get(indexes) == after.get(indexes):
        return
    known = aws.call("dynamodb", "describe_table", {"TableName": table["TableName"]})["Table"]
    old = {index["IndexName"]: index for index in known.get(indexes) or []}
    new = {index["IndexName"]: index for index in after.get(indexes) or []}
    remade = {name for name in old.keys() & new.keys() if changed(old[name], new[name], "KeySchema", "Projection")}
    for name in sorted((old.keys() - new.keys()) | remade):
        update = [{"Delete": {"IndexName": name}}]
        aws.call("dynamodb", "update_table", {**table, "GlobalSecondaryIndexUpdates": update})
    for name in [name for name in new if name not in old or name in remade]:
        update = [{"Create": new[name]}]
        aws.call("dynamodb", "update_table", {**table, "GlobalSecondaryIndexUpdates": update})


def _tag(aws: Aws, arn: str, before: dict[str, str], after: dict[str, str]) -> None:
    if gone := sorted(before.keys() - after.keys()):
        aws.call("dynamodb", "untag_resource", {"ResourceArn": arn, "TagKeys": gone})
    if after and after != before:
        tags = [{"Key": key, "Value": value} for key, value in after.items()]
        aws.call("dynamodb", "tag_resource", {"ResourceArn": arn, "Tags": tags})


def _delete(aws: Aws, resource: Resource) -> None:
    _delete_named(aws, resource.facts["TableName"])


def _delete_named(aws: Aws, name: str) -> None:
    aws.remove("dynamodb", "delete_table", {"TableName": name})


_KIND = Kind(
    _make,
    _delete,
    _change,
    fixed=_FIXED,
    named="TableName",
    expected=lambda wanted: {"TableName": wanted.name},
    exists=lambda aws, facts: aws.is_there("dynamodb", "describe_table", facts),
)

KINDS: dict[str, Kind] = {"AWS::DynamoDB::Table": _KIND, "AWS::DynamoDB::GlobalTable": _KIND}
"""The kinds of AWS::DynamoDB, by type."""
