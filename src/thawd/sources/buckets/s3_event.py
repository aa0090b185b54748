"""Makes the JSON text of S3's event notifications. No side effects.

Source: Amazon S3 user guide, "Event message structure" and "Event notification types and destinations".
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from urllib.parse import quote_plus

import msgspec

from thawd.resources import ACCOUNT_ID, REGION

CREATED = "ObjectCreated:Put"
REMOVED = "ObjectRemoved:Delete"


class ObjectEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The creation or removal of an object.

    Attributes:
        name: event name, for example ``ObjectCreated:Put``.
        bucket: name of the bucket.
        key: the object's key, as the bytes of its path in the file system.
        size: the object's size, bytes; None: it was removed.
        etag: MD5 of the content in hexadecimal digits; None: the object was removed.
        sequencer: number that increases with each event of a key.
        at_s: when the event happened, seconds since the epoch.
        request_id: request id of the invocation that the event causes.
        region: the region of the bucket.
    """

    name: str
    bucket: str
    key: bytes
    size: int | None
    etag: str | None
    sequencer: int
    at_s: float
    request_id: str
    region: str = REGION


def encode(event: ObjectEvent, *, configuration_id: str) -> bytes:
    """Return the event as the JSON text that a function receives: a list of one record.

    Args:
        event: the event.
        configuration_id: id of the notification configuration that the event matches.
    """
    described: dict[str, object] = {"key": quote_plus(event.key, safe="/")}
    if event.size is not None:
        described["size"] = event.size
    if event.etag is not None:
        described["eTag"] = event.etag
    described["sequencer"] = f"{event.sequencer:016X}"
    at = datetime.fromtimestamp(event.at_s, UTC).isoformat(timespec="milliseconds")
    proof = hashlib.sha256(event.request_id.encode())
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": event.region,
        "eventTime": at.removesuffix("+00:00") + "Z",
        "eventName": event.name,
        "userIdentity": {"principalId": f"AWS:{ACCOUNT_ID}"},
        "requestParameters": {"sourceIPAddress": "127.0.0.1"},
        "responseElements": {
            "x-amz-request-id": proof.hexdigest()[:16].upper(),
            "x-amz-id-2": base64.b64encode(proof.digest()).decode(),
        },
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": configuration_id,
            "bucket": {
                "name": event.bucket,
                "ownerIdentity": {"principalId": ACCOUNT_ID},
                "arn": f"arn:aws:s3:::{event.bucket}",
            },
            "object": described,
        },
    }
    return msgspec.json.encode({"Records": [record]})


def row_key(key: bytes) -> str:
    """Return the object's key as text: the key under which a table stores a function's answer to the object's event.

    A byte that is not UTF-8 is written as ``%`` and its hexadecimal digits, for example ``%FF``.
    """
    text = key.decode("utf-8", "surrogateescape")
    return "".join(f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char for char in text)
