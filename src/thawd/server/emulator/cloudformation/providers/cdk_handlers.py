"""Does the work of the functions that CDK itself puts into stacks, for its own custom resources.

These functions empty buckets, copy files into buckets, set notifications of buckets and the retention of logs, and call
operations of AWS's API. They need interpreters that this machine may not have, AWS's SDK for JavaScript or the AWS CLI
in a layer, and some answer only to addresses with HTTPS. So such a function, which is recognised by its code, is
recorded and not made, and its work is done here. Other custom resources are the work of the functions that the stack
has.

Source: AWS CDK API reference, `aws-s3.Bucket` (`autoDeleteObjects`, `addEventNotification`),
`aws-s3-deployment.BucketDeployment`, `aws-logs.LogRetention`.
"""

from __future__ import annotations

import io
import mimetypes
import re
import zipfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers import cdk_calls
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.resource_kind import Made, Wanted

_AT_ONCE = 1000
_PREFIX = "thawd-does-"
# Between the kind and the logical id in a recorded name, of which stacks also make names of log groups.
_BETWEEN = "."
_ENTRY_POINTS, _SOURCES = ("index.handler", "__entrypoint__.handler"), ("index.py", "index.js")
# CDK's own functions are smaller, and others are not searched.
_LARGEST_BYTES = 4 << 20
# What follows the constants in the logical ids of CDK's functions: a digest of the path in the stack.
_DIGEST = re.compile(r"\w*[0-9A-F]{8}")
_DELETES_TAG = "aws-cdk:auto-delete-objects"

Properties = dict[str, Any]
Handler = Callable[[Aws, str, Properties, Properties], Properties]


def handler_of(function: str) -> Handler | None:
    """Return the handler that does the work of a function; None: the function itself does it.

    Args:
        function: ARN of the function that a stack has for a custom resource, as `recorded` has made it.
    """
    _, found, name = function.partition(f":function:{_PREFIX}")
    if not found:
        return None
    kind, _, logical_id = name.replace(":", _BETWEEN, 1).partition(_BETWEEN)
    return _HANDLERS[kind][0] if logical_id and kind in _HANDLERS else _earlier_handler(name)


def recorded(aws: Aws, wanted: Wanted) -> Made | None:
    """Return the record of a function whose work is done here; None: the function must be made.

    Such a function is recognised by its code. Its name does not matter.
    """
    kind = kind_of(_source(aws, wanted.properties))
    if kind is None:
        return None
    name = f"{_PREFIX}{kind}{_BETWEEN}{wanted.logical_id}"
    arn = f"arn:aws:lambda:{wanted.stack.region}:{wanted.stack.account}:function:{name}"
    return Made(name, {"Arn": arn}, {"is_recorded": True})


def kind_of(source: str) -> str | None:
    """Return which of CDK's functions has this source; None: the work of the function is not done here.

    A function is recognised by words that minifying does not change: names of properties and operations, and marks that
    CDK puts into its requests.
    """
    return next((kind for kind, (_, marks) in _HANDLERS.items() if all(mark in source for mark in marks)), None)


def _source(aws: Aws, properties: Properties) -> str:
    """Return the source of a function's handler; "" if it cannot be a function of CDK."""
    code = properties.get("Code")
    if properties.get("Handler") not in _ENTRY_POINTS or not isinstance(code, dict):
        return ""
    if "ZipFile" in code:
        return str(code["ZipFile"])
    place = {"Bucket": code.get("S3Bucket"), "Key": code.get("S3Key")}
    if not all(place.values()) or not aws.is_there("s3", "head_object", place):
        return ""
    if aws.call("s3", "head_object", place)["ContentLength"] > _LARGEST_BYTES:
        return ""
    content = aws.call("s3", "get_object", place)["Body"].read()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found = [archive.getinfo(name) for name in _SOURCES if name in archive.namelist()]
            small = [entry for entry in found if entry.file_size <= _LARGEST_BYTES]
            return "".join(archive.read(entry).decode(errors="replace") for entry in small)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return ""  # the Lambda API then reports the problem


def _earlier_handler(logical_id: str) -> Handler | None:
    """Return the handler of a function that an earlier version of thawd recorded by its logical id in CDK."""
    for constant, kind in _EARLIER.items():
        if logical_id.startswith(constant) and _DIGEST.fullmatch(logical_id.removeprefix(constant)):
            return _HANDLERS[kind][0]
    return None


def _empty_bucket(aws: Aws, request: str, properties: Properties, more: Properties) -> Properties:
    """Empty the bucket when it is to be deleted, or when another bucket takes its place."""
    old = more.get("OldResourceProperties", {}).get("BucketName")
    bucket = properties["BucketName"]
    if request == "Delete" and _is_marked(aws, bucket):
        _delete_objects(aws, bucket, "")
    if request == "Update" and old not in (None, bucket) and _is_marked(aws, old):
        _delete_objects(aws, old, "")
    return {"PhysicalResourceId": bucket}


def _is_marked(aws: Aws, bucket: str) -> bool:
    """Return whether the bucket exists and still has CDK's tag."""
    if not aws.is_there("s3", "get_bucket_tagging", {"Bucket": bucket}):
        return False
    tags = aws.call("s3", "get_bucket_tagging", {"Bucket": bucket})["TagSet"]
    return any(tag["Key"] == _DELETES_TAG and tag["Value"] == "true" for tag in tags)


def _delete_objects(aws: Aws, bucket: str, prefix: str) -> None:
    client = aws.client("s3")
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix):
        found = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        objects = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in found]
        for start in range(0, len(objects), _AT_ONCE):
            client.delete_objects(Bucket=bucket, Delete={"Objects": objects[start : start + _AT_ONCE], "Quiet": True})


def _retain_logs(aws: Aws, request: str, properties: Properties, more: Properties) -> Properties:
    """Make the log group if it does not exist, and set how long its events are kept."""
    name = properties["LogGroupName"]
    if request == "Delete":
        if properties.get("RemovalPolicy") == "destroy":
            aws.remove("logs", "delete_log_group", {"logGroupName": name})
        return {"PhysicalResourceId": name}
    client = aws.client("logs")
    try:
        aws.call("logs", "create_log_group", {"logGroupName": name})
    except client.exceptions.ResourceAlreadyExistsException:
        pass
    if properties.get("RetentionInDays"):
        given = {"logGroupName": name, "retentionInDays": properties["RetentionInDays"]}
        aws.call("logs", "put_retention_policy", given)
    else:
        aws.remove("logs", "delete_retention_policy", {"logGroupName": name})
    return {"PhysicalResourceId": name, "Data": {"LogGroupName": name}}


def _deploy_files(aws: Aws, request: str, properties: Properties, more: Properties) -> Properties:
    """Unpack zip files from buckets into a bucket, and delete what is no longer among the files."""
    bucket, prefix = properties["DestinationBucketName"], properties.get("DestinationBucketKeyPrefix", "").strip("/")
    folder = f"{prefix}/" if prefix else ""
    identity = {"PhysicalResourceId": more.get("PhysicalResourceId") or f"aws.cdk.s3deployment.{bucket}.{prefix}"}
    if request == "Delete":
        retains = properties.get("RetainOnDelete", "true") == "true"
        if not retains and aws.is_there("s3", "head_bucket", {"Bucket": bucket}):
            _delete_objects(aws, bucket, folder)
        return identity
    client, written = aws.client("s3"), set()
    for key, content in _files(aws, properties):
        written.add(folder + key)
        kind = mimetypes.guess_type(key)[0] or "binary/octet-stream"
        metadata = properties.get("UserMetadata") or {}
        client.put_object(Bucket=bucket, Key=folder + key, Body=content, ContentType=kind, Metadata=metadata)
    if properties.get("Prune", "true") == "true":
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=folder):
            for one in page.get("Contents", []):
                if one["Key"] not in written and _is_included(one["Key"].removeprefix(folder), properties):
                    client.delete_object(Bucket=bucket, Key=one["Key"])
    keys = list(properties.get("SourceObjectKeys", []))
    data = {"DestinationBucketArn": f"arn:aws:s3:::{bucket}", "SourceObjectKeys": keys}
    return {**identity, "Data": data}


def _files(aws: Aws, properties: Properties) -> Iterator[tuple[str, bytes]]:
    """Yield the files of all sources, with markers replaced by values that are known only in the stack."""
    buckets, keys = properties["SourceBucketNames"], properties["SourceObjectKeys"]
    markers = properties.get("SourceMarkers") or [{} for _ in keys]
    for bucket, key, marks in zip(buckets, keys, markers, strict=True):
        content = aws.call("s3", "get_object", {"Bucket": bucket, "Key": key})["Body"].read()
        if properties.get("Extract", "true") == "false":
            yield key.rpartition("/")[2], content
            continue
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for entry in archive.infolist():
                if ".." in entry.filename.split("/"):
                    raise ResourceError(f"{key} has a file outside of its folder: {entry.filename}")
                if not entry.is_dir() and _is_included(entry.filename, properties):
                    text = archive.read(entry)
                    for mark, value in marks.items():
                        text = text.replace(mark.encode(), str(value).encode())
                    yield entry.filename, text


def _is_included(name: str, properties: Properties) -> bool:
    """Return whether the patterns of a deployment include a file, as `aws s3 sync` applies them."""
    if any(fnmatch(name, pattern) for pattern in properties.get("Include") or []):
        return True
    return not any(fnmatch(name, pattern) for pattern in properties.get("Exclude") or [])


def _notify(aws: Aws, request: str, properties: Properties, more: Properties) -> Properties:
    """Set the notifications of a bucket. If another stack owns the bucket, keep its other notifications."""
    bucket = properties["BucketName"]
    identity = {"PhysicalResourceId": more.get("PhysicalResourceId") or f"notifications-{bucket}"}
    if request == "Delete" and not aws.is_there("s3", "head_bucket", {"Bucket": bucket}):
        return identity
    wanted: Properties = {} if request == "Delete" else dict(properties.get("NotificationConfiguration") or {})
    if properties.get("Managed", "true") == "false":
        former = more.get("OldResourceProperties", properties if request == "Delete" else {})
        found = aws.call("s3", "get_bucket_notification_configuration", {"Bucket": bucket})
        wanted = _merged(found, former.get("NotificationConfiguration") or {}, wanted)
    given = {"Bucket": bucket, "NotificationConfiguration": wanted}
    aws.call("s3", "put_bucket_notification_configuration", given)
    return identity


def _merged(found: Properties, former: Properties, wanted: Properties) -> Properties:
    """Return the notifications that a bucket has, with the wanted ones in place of the former ones of the stack."""
    merged: Properties = {name: {} for name in ("EventBridgeConfiguration",) if name in wanted or name in found}
    for name in ("LambdaFunctionConfigurations", "QueueConfigurations", "TopicConfigurations"):
        targets = [_target(one) for one in former.get(name, [])]
        others = [one for one in found.get(name, []) if _target(one) not in targets]
        if others or wanted.get(name):
            merged[name] = [*others, *wanted.get(name, [])]
    return merged


def _target(configuration: Properties) -> Any:
    """Return the identity of a notification of a bucket: target, events and filter, without the generated id."""
    return {name: value for name, value in configuration.items() if name != "Id"}


def _leave_group(aws: Aws, request: str, properties: Properties, more: Properties) -> Properties:
    """Leave the default security group of a network as it is: the emulated network carries no traffic."""
    return {"PhysicalResourceId": properties.get("DefaultSecurityGroupId") or "default"}


# The handler of each of CDK's functions, and the words by which its source is recognised.
_HANDLERS: dict[str, tuple[Handler, tuple[str, ...]]] = {
    "calls": (cdk_calls.call, ("PHYSICAL:RESOURCEID:", "ignoreErrorCodesMatching", "outputPaths")),
    "notifications": (_notify, ("put_bucket_notification_configuration", "NotificationConfiguration", "ResponseURL")),
    "files": (_deploy_files, ("aws.cdk.s3deployment", "SourceBucketNames", "DestinationBucketName")),
    "emptying": (_empty_bucket, ("aws-cdk:auto-delete-objects", "BucketName", "RequestType")),
    "security-groups": (_leave_group, ("DefaultSecurityGroupId", "revokeSecurityGroupIngress", "RequestType")),
    "retention": (_retain_logs, ("LogGroupRegion", "retentionInDays", "RequestType")),
}
# Earlier versions of thawd recorded functions by these constants, with which CDK begins their logical ids.
_EARLIER = {
    "AWS679f53fac002430cb0da5b7982bd2287": "calls",
    "BucketNotificationsHandler050a0587b7544547bf325f094a3db834": "notifications",
    "CustomCDKBucketDeployment8693BB64968944B69AAFB0CC9EB8756C": "files",
    "CustomS3AutoDeleteObjectsCustomResourceProviderHandler": "emptying",
    "CustomVpcRestrictDefaultSGCustomResourceProviderHandler": "security-groups",
    "LogRetentionaae0aa3c5b4d4f87b02d85b201efdd8a": "retention",
}
