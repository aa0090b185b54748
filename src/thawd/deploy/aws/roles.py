"""The roles of functions: each allows what the function's code and settings use, and nothing else.

A role's policy is derived from the code (`used_stores`), from the settings (log group, tracing, destinations, queues)
and from ``[[deploy.aws.statements]]`` in thawd.toml.
"""

from __future__ import annotations

from typing import Any

from thawd.deploy.aws import naming
from thawd.deploy.aws.buckets_and_tables import bucket_operations, bucket_place, table_names, table_place
from thawd.deploy.aws.destinations import delivery_statements
from thawd.deploy.aws.stack import Stack, pattern_of, statement, sub, trust
from thawd.deploy.aws.used_stores import ANY, Uses
from thawd.resources import Function

_BUCKET_ACTIONS = {"read": "s3:GetObject", "write": "s3:PutObject"}
_TABLE_ACTIONS = {
    "delete": "dynamodb:DeleteItem",
    "get": "dynamodb:GetItem",
    "put": "dynamodb:PutItem",
    "scan": "dynamodb:Scan",
}


def add_role(stack: Stack, function: Function, uses: Uses, *, log_group: str) -> str:
    """Add the role of a function, and return its logical id.

    Args:
        stack: the stack.
        function: the function.
        uses: the buckets and tables that its code uses.
        log_group: name of its log group, as a text for `sub`.
    """
    statements = [
        statement(
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            sub(f"arn:${{AWS::Partition}}:logs:${{AWS::Region}}:${{AWS::AccountId}}:log-group:{log_group}:*"),
        ),
        *_tracing_statements(stack, function),
        *_store_statements(stack, function.name, uses),
        *_boto3_statements(stack, function, uses),
        *delivery_statements(stack, function),
        *_source_statements(stack, function),
        *_part_statements(stack, function),
        *_own_statements(stack, function),
    ]
    properties = {
        "AssumeRolePolicyDocument": trust("lambda.amazonaws.com"),
        "Policies": [{"PolicyName": "uses", "PolicyDocument": {"Version": "2012-10-17", "Statement": statements}}],
    }
    return stack.add(naming.logical_id(function.name, "Role"), "AWS::IAM::Role", properties)


def _store_statements(stack: Stack, function: str, uses: Uses) -> list[dict[str, Any]]:
    """Return the statements for the buckets and tables that the function's code uses."""
    statements = []
    where = f"functions.{function}"
    for name, operations in sorted(bucket_operations(stack, function, uses).items()):
        place = bucket_place(stack, name)
        if place is None:
            stack.add_missing(where, f'thawd.bucket("{name}") fails: {_why_not(stack, name)}')
            continue
        if "path" in operations:
            stack.add_missing(where, f'thawd.bucket("{name}").path fails: objects in S3 have no path; use read')
        statements += _bucket_statements(*place, operations=operations)
    for name in table_names(stack, uses):
        operations = uses.tables.get(name, uses.tables.get(ANY, ()))
        table = table_place(stack, name)
        if table is None:
            declared = stack.settings.tables.get(name)
            reason = "the configuration declares no such table" if declared is None else f"it is at {declared.url}"
            stack.add_missing(where, f'thawd.table("{name}") fails: {reason}')
            continue
        actions = [_TABLE_ACTIONS[operation] for operation in operations]
        if not table.key:
            actions.append("dynamodb:DescribeTable")  # the package asks for the name of the partition key
        statements.append(statement(actions, sub(table.arn)))
    return statements


def _bucket_statements(bucket: str, prefix: str, *, operations: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the statements that allow operations on the objects of a bucket."""
    arn = f"arn:${{AWS::Partition}}:s3:::{bucket}"
    actions = [_BUCKET_ACTIONS[name] for name in operations if name in _BUCKET_ACTIONS]
    statements = [statement(actions, sub(f"{arn}/{pattern_of(prefix)}*"))] if actions else []
    if "read" in operations:
        # Without it, S3 answers 403 instead of 404 for objects that do not exist.
        # Source: S3 API reference, GetObject, "Permissions".
        statements.append(statement(["s3:ListBucket"], sub(arn)))
    return statements


def _why_not(stack: Stack, name: str) -> str:
    remote = stack.settings.remote_buckets.get(name)
    return "the configuration declares no such bucket" if remote is None else f"it is at {remote.url}"


def _part_statements(stack: Stack, function: Function) -> list[dict[str, Any]]:
    part = stack.order.code[function.name].part
    if part is None:
        return []
    arn = f"arn:${{AWS::Partition}}:s3:::{naming.ASSETS_BUCKET}/{stack.name}/{part}"
    return [statement(["s3:GetObject"], sub(arn))]


def _tracing_statements(stack: Stack, function: Function) -> list[dict[str, Any]]:
    actions = ("xray:PutTelemetryRecords", "xray:PutTraceSegments")
    return [statement(actions, "*")] if stack.traces(function) else []  # X-Ray has no resources


def _boto3_statements(stack: Stack, function: Function, uses: Uses) -> list[dict[str, Any]]:
    """Return the statements for a function that uses boto3: it may read the objects of which its buckets notify it.

    Everything else must be declared in ``[[deploy.aws.statements]]``, because the code does not show what boto3 calls.
    """
    if not uses.has_boto3:
        return []
    statements = []
    for bucket in stack.settings.buckets.values():
        prefixes = sorted({entry.prefix for entry in bucket.notify if entry.function == function.name})
        for prefix in prefixes:
            name = naming.bucket_name(stack.name, bucket.name)
            statements += _bucket_statements(name, prefix, operations=("read",))
    if not any(entry.function in (None, function.name) for entry in stack.aws.statements):
        stack.add_missing(
            f"functions.{function.name}.code",
            "it uses boto3, and its role allows only what thawd.toml shows; add [[deploy.aws.statements]] for the rest",
        )
    return statements


def _source_statements(stack: Stack, function: Function) -> list[dict[str, Any]]:
    actions = ("sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage")
    places = [stack.arn_of(source.sqs) for source in stack.settings.sources.get(function.name, ())]
    return [statement(actions, place) for place in places]


def _own_statements(stack: Stack, function: Function) -> list[dict[str, Any]]:
    return [
        statement(entry.actions, sorted(entry.resources))
        for entry in stack.aws.statements
        if entry.function in (None, function.name)
    ]
