"""Reads templates from S3, by the addresses that clients of CloudFormation give."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, unquote, urlsplit

from thawd.server.emulator.cloudformation.errors import StackError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws

_MOST_BYTES = 4 << 20
# The bucket is a part of the host's name: BUCKET.s3.REGION.amazonaws.com, BUCKET.s3.localhost.
_HOST_WITH_BUCKET = re.compile(r"(.+?)\.s3[.-][^/]+")


def place_of(url: str) -> tuple[str, str, str | None]:
    """Bucket, key and version in the URL of an object.

    Raises:
        StackError: the URL is not one of an object in S3.
    """
    parts = urlsplit(url)
    path = unquote(parts.path.lstrip("/"))
    version = parse_qs(parts.query).get("versionId", [None])[0]
    host = _HOST_WITH_BUCKET.fullmatch(parts.hostname or "")
    if parts.scheme == "s3" and parts.hostname:
        bucket, key = parts.hostname, path
    elif host:
        bucket, key = host[1], path
    else:
        bucket, _, key = path.partition("/")
    if not bucket or not key:
        raise StackError(f"TemplateURL must reference a valid S3 object to which you have access: {url}")
    return bucket, key, version


def fetched(aws: Aws, url: str) -> str:
    """Return the text at the URL of an object in S3, which is thawd's own or emulated.

    Raises:
        StackError: there is none.
    """
    from botocore.exceptions import ClientError

    bucket, key, version = place_of(url)
    given = {"Bucket": bucket, "Key": key, "VersionId": version}
    try:
        content: bytes = aws.call("s3", "get_object", given)["Body"].read(_MOST_BYTES + 1)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        raise StackError(f"S3 error: {error.response['Error'].get('Message', code)} ({url})") from error
    if len(content) > _MOST_BYTES:
        raise StackError(f"Template may not exceed {_MOST_BYTES} bytes in size.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise StackError(f"The template at {url} is not text in UTF-8: {error}") from error
