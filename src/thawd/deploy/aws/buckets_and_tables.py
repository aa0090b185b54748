"""Buckets and tables of the stack, with the buckets' notifications. `roles` has the permissions on them."""

from __future__ import annotations

import itertools
import json
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from thawd.deploy.aws import naming
from thawd.deploy.aws.stack import DeploymentError, Stack, literal, sub
from thawd.deploy.aws.used_stores import ANY, NOTIFYING, Uses
from thawd.resources import Bucket, Notification, RemoteBucket, StoreUrl, Table

KEY = "key"
"""Name of the partition key of tables in the stack."""
_PUBLIC_ACCESS = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")


def add_stores(stack: Stack) -> None:
    """Add all buckets with their notifications, and all tables."""
    for bucket in stack.settings.buckets.values():
        _add_bucket(stack, bucket)
    for remote in stack.settings.remote_buckets.values():
        _check_remote_bucket(stack, remote)
    for table in stack.settings.tables.values():
        _add_table(stack, table)


def bucket_place(stack: Stack, name: str) -> tuple[str, str] | None:
    """Return a bucket's name in the account, as a text for `sub`, and its prefix; None: not in S3, or not declared."""
    if name in stack.settings.buckets:
        return naming.bucket_name(stack.name, name), ""
    remote = stack.settings.remote_buckets.get(name)
    return (remote.bucket, remote.prefix) if remote is not None and _is_at_aws(remote.url, "s3") else None


class TablePlace(NamedTuple):
    """A DynamoDB table: its name, the name of its partition key (empty: unknown), its region (empty: the stack's)."""

    table: str
    key: str
    region: str

    @property
    def arn(self) -> str:
        """The table's ARN, as a text for `sub`."""
        region = self.region or "${AWS::Region}"
        return f"arn:${{AWS::Partition}}:dynamodb:{region}:${{AWS::AccountId}}:table/{self.table}"


def table_place(stack: Stack, name: str) -> TablePlace | None:
    """Return the DynamoDB table of a declared table; None: it is not in DynamoDB at AWS, or not declared."""
    table = stack.settings.tables.get(name)
    if table is None:
        return None
    if table.url is None:
        return TablePlace(naming.table_name(stack.name, name), KEY, "")
    if not _is_at_aws(table.url, "dynamodb"):
        return None
    parts = urlsplit(table.url.text)
    return TablePlace(parts.netloc, "", dict(parse_qsl(parts.query)).get("region", ""))


def _is_at_aws(url: StoreUrl, scheme: str) -> bool:
    """Return whether a store is in the stack's account.

    Otherwise it is in another profile's account, or in a server that has AWS's API.
    """
    parameters = dict(parse_qsl(urlsplit(url.text).query))
    return url.scheme == scheme and not parameters.keys() & {"endpoint", "profile"}


def store_variables(stack: Stack, function: str, uses: Uses) -> dict[str, Any]:
    """Return the environment variables that tell the package ``thawd`` on AWS the names of buckets and tables."""
    variables = {}
    buckets = {name: bucket_place(stack, name) for name in bucket_operations(stack, function, uses)}
    tables = {name: table_place(stack, name) for name in table_names(stack, uses)}
    placed = {name: [place[0], literal(place[1])] for name, place in buckets.items() if place is not None}
    if placed:
        variables["STACK_THAWD_BUCKETS"] = sub(json.dumps(placed, sort_keys=True, separators=(",", ":")))
    if found := {name: list(place) for name, place in tables.items() if place is not None}:
        variables["STACK_THAWD_TABLES"] = json.dumps(found, sort_keys=True, separators=(",", ":"))
    return variables


def bucket_operations(stack: Stack, function: str, uses: Uses) -> dict[str, tuple[str, ...]]:
    """Return the operations of the code on each bucket.

    If the code takes a bucket's name from an event, the operations apply to each bucket that notifies the function. If
    the code computes the name, they apply to every declared bucket.
    """
    stores: tuple[Bucket | RemoteBucket, ...]
    stores = (*stack.settings.buckets.values(), *stack.settings.remote_buckets.values())
    notifying = tuple(each.name for each in stores if any(entry.function == function for entry in each.notify))
    found: dict[str, set[str]] = {}
    for name, operations in uses.buckets.items():
        for meant in {ANY: _all_buckets(stack), NOTIFYING: notifying}.get(name, (name,)):
            found.setdefault(meant, set()).update(operations)
    return {name: tuple(sorted(operations)) for name, operations in found.items()}


def table_names(stack: Stack, uses: Uses) -> list[str]:
    """Return the names of the tables that the code uses: all declared ones if it computes names."""
    return sorted({*uses.tables, *stack.settings.tables} - {ANY} if ANY in uses.tables else uses.tables)


def _all_buckets(stack: Stack) -> tuple[str, ...]:
    return (*stack.settings.buckets, *stack.settings.remote_buckets)


def _require_apart(bucket: Bucket) -> None:
    """Raise `DeploymentError` if S3 would refuse the notifications, because two apply to the same object and event.

    Source: S3 user guide, "Configuring event notifications using object key name filtering".
    """
    for first, second in itertools.combinations(bucket.notify, 2):
        events = any(
            fnmatchcase(one, other) or fnmatchcase(other, one) for one in first.events for other in second.events
        )
        prefixes = first.prefix.startswith(second.prefix) or second.prefix.startswith(first.prefix)
        suffixes = first.suffix.endswith(second.suffix) or second.suffix.endswith(first.suffix)
        if events and prefixes and suffixes:
            shown = " and ".join(f"{each.function} ({each.prefix}*{each.suffix})" for each in (first, second))
            raise DeploymentError(
                f"buckets.{bucket.name}.notify: S3 notifies one function of an object, and both {shown} may be "
                "notified of the same one; give them prefixes or suffixes that exclude each other"
            )


def _add_bucket(stack: Stack, bucket: Bucket) -> None:
    _require_apart(bucket)
    name = naming.bucket_name(stack.name, bucket.name)
    arn = sub(f"arn:${{AWS::Partition}}:s3:::{name}")
    permissions = sorted(
        {
            stack.permit(entry.function, principal="s3.amazonaws.com", source=bucket.name, source_arn=arn)
            for entry in bucket.notify
        }
    )
    configurations = [configuration for entry in bucket.notify for configuration in _configurations(stack, entry)]
    properties = {
        "BucketName": sub(name),
        "PublicAccessBlockConfiguration": dict.fromkeys(_PUBLIC_ACCESS, True),
        "NotificationConfiguration": {"LambdaConfigurations": configurations} if configurations else None,
    }
    stack.add(
        naming.logical_id(bucket.name, "Bucket"),
        "AWS::S3::Bucket",
        properties,
        **({"DependsOn": permissions} if permissions else {}),
        DeletionPolicy="Delete",
        UpdateReplacePolicy="Retain",
    )
    stack.output(naming.logical_id(bucket.name, "BucketName"), sub(name), f"bucket {bucket.name}")


def _configurations(stack: Stack, entry: Notification) -> list[dict[str, Any]]:
    rules = [{"Name": name, "Value": getattr(entry, name)} for name in ("prefix", "suffix") if getattr(entry, name)]
    key_filter = {"Filter": {"S3Key": {"Rules": rules}}} if rules else {}
    return [{"Event": event, "Function": stack.alias(entry.function), **key_filter} for event in entry.events]


def _check_remote_bucket(stack: Stack, bucket: RemoteBucket) -> None:
    if bucket.notify:
        stack.add_missing(
            f"buckets.{bucket.name}.notify",
            f"the functions are not invoked: {bucket.url} exists already, and a stack cannot change its notifications. "
            "Add them to the bucket itself",
        )


def _add_table(stack: Stack, table: Table) -> None:
    if table.url is not None:
        if not _is_at_aws(table.url, "dynamodb"):
            stack.add_missing(f"tables.{table.name}", f"on AWS, thawd.table cannot reach {table.url}")
        return
    properties = {
        "TableName": naming.table_name(stack.name, table.name),
        "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
        "BillingMode": "PAY_PER_REQUEST",
    }
    logical_id = naming.logical_id(table.name, "Table")
    stack.add(logical_id, "AWS::DynamoDB::Table", properties, DeletionPolicy="Delete", UpdateReplacePolicy="Retain")
    stack.output(logical_id + "Name", properties["TableName"], f"table {table.name}")
