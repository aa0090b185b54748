"""Names in a stack: logical ids in the template, and names of resources in the account.

All names of resources that others refer to are computed from the stack's name, before any resource exists. So a bucket
can notify a function whose role names the bucket, without a circular dependency in the template.
"""

from __future__ import annotations

import hashlib
import re

ALIAS = "live"
"""The alias of each function that everything else in the stack invokes."""
_LONGEST_FUNCTION_NAME = 64
_LONGEST_QUEUE_NAME = 80
# Source: S3 user guide, "Bucket naming rules": 63 characters. Account (12), the longest region (14) and two hyphens
# follow the name.
_LONGEST_BUCKET_BEGIN = 63 - 12 - 14 - 2
_STACK = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}")


def is_stack_name(text: str) -> bool:
    """Return whether `text` can be the name of a stack. Source: CloudFormation API reference, CreateStack."""
    return _STACK.fullmatch(text) is not None


def stack_name_from(folder: str) -> str:
    """Return a stack name made from a folder's name."""
    text = re.sub(r"[^A-Za-z0-9]+", "-", folder).strip("-")
    return text[:100] if is_stack_name(text[:100]) else f"thawd-{text}"[:100].rstrip("-")


def digest(text: str, *, length: int) -> str:
    """Return the first `length` hexadecimal digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def logical_id(name: str, kind: str) -> str:
    """Return the logical id of a resource: the name in camel case, then `kind`.

    Two names that look alike in camel case get different ids, because a digest is added to all but the plainest names.
    """
    words = re.findall(r"[A-Za-z0-9]+", name)
    camel = "".join(word[:1].upper() + word[1:] for word in words)
    is_plain = re.fullmatch(r"[a-z][a-z0-9]*", name) is not None
    return f"{camel}{'' if is_plain else digest(name, length=6)}{kind}"


def shortened(name: str, *, longest: int) -> str:
    """Return `name`; if it is longer than `longest`, its beginning and a digest of it."""
    return name if len(name) <= longest else f"{name[: longest - 9].rstrip('-.')}-{digest(name, length=8)}"


def function_name(stack: str, name: str) -> str:
    """Return the name of a function in the account."""
    return shortened(f"{stack}-{name}", longest=_LONGEST_FUNCTION_NAME)


def table_name(stack: str, name: str) -> str:
    """Return the name of a DynamoDB table in the account."""
    return shortened(f"{stack}-{name}", longest=255)


def queue_name(stack: str, name: str) -> str:
    """Return the name of an SQS queue in the account; a FIFO queue keeps its suffix."""
    plain, suffix = (name[:-5], ".fifo") if name.endswith(".fifo") else (name, "")
    return shortened(f"{stack}-{plain}", longest=_LONGEST_QUEUE_NAME - len(suffix)) + suffix


def bucket_name(stack: str, name: str) -> str:
    """Return the name of a bucket, as a text for ``Fn::Sub``: names of buckets are unique in all of AWS."""
    begin = shortened(f"{stack}-{name}".lower(), longest=_LONGEST_BUCKET_BEGIN)
    return f"{begin}-${{AWS::AccountId}}-${{AWS::Region}}"


def alarm_name(stack: str, function: str, what: str) -> str:
    """Return the name of a function's alarm."""
    return shortened(f"{stack}-{function}-{what}", longest=255)


def repository_name(stack: str) -> str:
    """Return the name of the repository with a stack's container images.

    Names of repositories have lower-case letters only, so stacks whose names differ in case get a digest.
    Source: ECR API reference, CreateRepository.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", stack.lower()).strip("-")
    return f"thawd-assets/{plain if plain == stack else f'{plain}-{digest(stack, length=8)}'}"


def image_name(stack: str, digest: str) -> str:
    """Return the name of an image in the stack's repository, as a text for ``Fn::Sub``."""
    registry = "${AWS::AccountId}.dkr.ecr.${AWS::Region}.${AWS::URLSuffix}"
    return f"{registry}/{repository_name(stack)}@{digest}"


ASSETS_BUCKET = "thawd-assets-${AWS::AccountId}-${AWS::Region}"
"""Name of the bucket with the code of all stacks of an account and region, as a text for ``Fn::Sub``."""
