"""Parses destinations as users write them: ``table:labels``, ``function:notify``, a URL, an ARN. No side effects.

Source: AWS Lambda API reference, ``OnFailure`` and ``OnSuccess``; service authorization reference, the forms of ARNs.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from thawd.resources import ACCOUNT_ID, REGION, Destination

FORMS = (
    '"table:NAME", "bucket:NAME", "function:NAME" or "function:NAME:QUALIFIER", the URL of a webhook ("https://...", '
    'or "http://..." on this machine), or the ARN of an SQS queue, an SNS topic, an EventBridge bus, a function, an S3 '
    "bucket or a table"
)
"""The forms that a destination can have, as a text for error messages."""

_OWN = re.compile(r"(?P<kind>table|bucket):(?P<name>\S+)")
_FUNCTION = re.compile(r"[a-zA-Z0-9-_]{1,64}(:(\$LATEST|[a-zA-Z0-9-_]{1,128}))?")
_ADDRESS = re.compile(r"https?://[!-~]{1,2000}")
_ARN = re.compile(r"arn:aws[a-z-]*:(?P<service>[a-z0-9]+):(?P<region>[a-z0-9-]*):(?P<account>\d{12}|):(?P<rest>\S+)")
_REST = {
    "sqs": re.compile(r"[a-zA-Z0-9_-]{1,80}(\.fifo)?"),
    "sns": re.compile(r"[a-zA-Z0-9_-]{1,256}(\.fifo)?"),
    "events": re.compile(r"event-bus/[a-zA-Z0-9/._-]{1,256}"),
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    "dynamodb": re.compile(r"table/[a-zA-Z0-9_.-]{1,255}"),
    "lambda": re.compile(r"function:" + _FUNCTION.pattern),
}
_OWN_KINDS = {"dynamodb": "table", "lambda": "function"}


def parse(text: str) -> Destination | None:
    """Return the destination that `text` names; None: it is not a destination."""
    if text.startswith("arn:"):
        return parse_arn(text)
    if _ADDRESS.fullmatch(text):
        return Destination("http", text)
    if text.startswith("function:"):
        name = text.removeprefix("function:")
        return Destination("function", name) if _FUNCTION.fullmatch(name) else None
    own = _OWN.fullmatch(text)
    return None if own is None else Destination(own["kind"], own["name"])


def parse_arn(arn: str) -> Destination | None:
    """Return the destination that an ARN names; None: thawd does not support it.

    Functions and tables belong to thawd, so their ARNs must have thawd's account and region. An S3 bucket's ARN has
    neither an account nor a region. The ARN of a queue, topic or event bus must have both, but they can have any value.
    """
    found = _ARN.fullmatch(arn)
    if found is None or found["service"] not in _REST or not _REST[found["service"]].fullmatch(found["rest"]):
        return None
    service, rest, place = found["service"], found["rest"], (found["region"], found["account"])
    if service == "s3":
        return Destination(service, rest) if place == ("", "") else None
    if service in _OWN_KINDS:
        name = re.split("[:/]", rest, maxsplit=1)[1]
        return Destination(_OWN_KINDS[service], name) if place == (REGION, ACCOUNT_ID) else None
    return Destination(service, arn) if all(place) else None


def parse_dead_letter(arn: str) -> Destination | None:
    """Return the SQS queue or SNS topic that an ARN names; None: the ARN names neither."""
    found = parse_arn(arn)
    return found if found is not None and found.kind in ("sqs", "sns") else None


def address_of(destination: Destination) -> SplitResult | None:
    """Return the parts of a webhook's URL; None: its host or port is not valid."""
    try:
        parts = urlsplit(destination.name)
        is_valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return parts if is_valid else None


def is_fifo(destination: Destination) -> bool:
    """Return whether the destination is a FIFO queue or FIFO topic, to which Lambda does not deliver."""
    return destination.kind in ("sqs", "sns") and destination.name.endswith(".fifo")


def function_of(destination: Destination) -> tuple[str, str | None]:
    """Return the name and qualifier of a destination that is a function."""
    name, _, qualifier = destination.name.partition(":")
    return name, qualifier or None
