"""S3 event notifications of the AWS emulator's (moto's) buckets, set by PutBucketNotificationConfiguration.

thawd stores the notification configurations in a file beside the emulator's own state, and invokes the functions that
they name. thawd passes only the rest of each configuration, which names queues and topics, on to the emulator.

Source: Amazon S3 API reference, "PutBucketNotificationConfiguration".
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree

import msgspec

from thawd.errors import ThawdError
from thawd.gateway.http import Message, Receive, Scope, Send, header, raw_path_of, read_body, respond, trace_of
from thawd.gateway.lambda_api.invoke import Accept
from thawd.gateway.s3 import xml
from thawd.gateway.s3.request import is_of_operation
from thawd.gateway.s3.xml import S3Error
from thawd.invocation import Invocation, new_request_id
from thawd.resources import Notification
from thawd.sources.buckets.notification_rules import wants
from thawd.system import folders

_XML = (b"content-type", b"application/xml")
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_TAGS = ("CloudFunctionConfiguration", "LambdaFunctionConfiguration")
MAX_BYTES = 1 << 20

PassOn = Callable[[Scope, bytes, Send], Awaitable[int]]
Head = Callable[[str, Scope], Awaitable[tuple[int, str] | None]]
Encode = Callable[["EmulatedObjectEvent"], bytes]
Find = Callable[[str], tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class NotificationRule:
    """A rule of a notification configuration: which function runs for which events of which objects.

    Attributes:
        identifier: the configuration's id.
        notification: which events invoke which function; the function is named by its ARN.
    """

    identifier: str
    notification: Notification

    @property
    def arn(self) -> str:
        """The function's ARN."""
        return self.notification.function


@dataclass(frozen=True, slots=True)
class EmulatedObjectEvent:
    """An event of an object in one of the emulator's buckets.

    Attributes:
        name: event name, for example ``ObjectCreated:Put``.
        bucket: name of the bucket.
        key: the object's key.
        size: bytes; None: the object does not exist, or no longer exists.
        etag: MD5 in hexadecimal digits; None: the object does not exist, or no longer exists.
        sequencer: a number that is larger than that of every earlier event.
        request_id: request id of the invocation that the event causes.
        configuration_id: id of the notification configuration that matched.
    """

    name: str
    bucket: str
    key: str
    size: int | None
    etag: str | None
    sequencer: int
    request_id: str
    configuration_id: str


@dataclass(slots=True)
class _Configuration:
    document: bytes
    rules: list[NotificationRule]


class BucketNotifications:
    """The notifications of all emulated buckets.

    Args:
        accept: stores an asynchronous invocation.
        find: returns the name and qualifier of the function that an ARN names; raises ThawdError if there is none.
        encode: makes the invocation's event document from the object's event.
        complain: reports a problem to the operator.

    Attributes:
        head: returns size and ETag of the object at a path, or None if there is no object. `AwsProxy` sets `head`.
    """

    def __init__(self, *, accept: Accept, find: Find, encode: Encode, complain: Callable[[str], None]) -> None:
        self._accept = accept
        self._find = find
        self._encode = encode
        self._complain = complain
        self._by_bucket: dict[str, _Configuration] = {}
        self._sequence = itertools.count(time.time_ns())
        self._file: Path | None = None
        self._writing = asyncio.Lock()
        self.head: Head

    def keep_in(self, file: Path) -> None:
        """Load the configurations from `file`, and from now on write every change of a configuration to `file`.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not JSON, or was not written by thawd.
            S3Error: an entry of the file is not a notification configuration.
        """
        self._file = file
        try:
            kept = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return
        for bucket, document in kept.items():
            self._by_bucket[bucket] = _Configuration(document.encode("latin-1"), parse(document.encode("latin-1"))[0])

    async def _save(self) -> None:
        """Write all configurations to the file. If that fails, the newest ones are in effect until the server stops."""
        if self._file is None:
            return
        async with self._writing:  # one write at a time, so that an older state does not replace a newer one
            documents = {bucket: one.document.decode("latin-1") for bucket, one in self._by_bucket.items()}
            try:
                await asyncio.to_thread(_replace, self._file, msgspec.json.encode(documents))
            except OSError as error:
                self._complain(
                    f"thawd: the notification configurations of buckets could not be written to {self._file}: {error}; "
                    "if no later write succeeds, the latest changes are lost when thawd stops"
                )

    async def serve(self, scope: Scope, receive: Receive, send: Send, pass_on: PassOn) -> bool:
        """Serve a request for a bucket's notification configuration; False: it is left to the emulator."""
        bucket, key = _bucket_and_key(scope)
        if "notification" not in _query(scope) or key or not bucket:
            return False
        if scope["method"] == "GET" and bucket in self._by_bucket:
            await respond(send, 200, [_XML], self._by_bucket[bucket].document)
            return True
        if scope["method"] != "PUT":
            return False
        try:
            document = await read_body(scope, receive, limit_bytes=MAX_BYTES, operation="PutBucketNotification")
            rules, rest = parse(document)
            for rule in rules:
                self._check(rule)
        except (S3Error, ThawdError) as error:
            refused = error if isinstance(error, S3Error) else S3Error(400, "InvalidRequest", str(error))
            resource = {"resource": scope["path"], "request_id": new_request_id()}
            await respond(send, refused.status, [_XML], refused.document(**resource))
            return True

        async def after_keeping(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300:
                self._by_bucket[bucket] = _Configuration(document, rules)
                await self._save()
            await send(message)

        await pass_on(scope, rest, after_keeping)
        return True

    def _check(self, rule: NotificationRule) -> None:
        try:
            self._find(rule.arn)
        except ThawdError as error:
            raise S3Error(
                400,
                "InvalidArgument",
                f"Unable to validate the following destination configurations: {rule.arn}: {error.message}",
            ) from None

    async def request_succeeded(self, scope: Scope) -> None:
        """Invoke the functions whose notifications match an S3 request that the emulator has just carried out.

        If the request deleted a bucket, remove the bucket's configuration.
        """
        bucket, key = _bucket_and_key(scope)
        removes = scope["method"] == "DELETE" and not key and bucket and not _query(scope)
        if removes and self._by_bucket.pop(bucket, None) is not None:
            await self._save()
        name = event_name(scope)
        configuration = self._by_bucket.get(bucket)
        if name is None or configuration is None:
            return
        wanted = [rule for rule in configuration.rules if wants(rule.notification, name, key.encode())]
        if not wanted:
            return
        found = None
        if name.startswith("ObjectCreated"):
            found = await self.head(raw_path_of(scope), scope)
        for rule in wanted:
            await self._invoke(rule, name, (bucket, key), found, trace_of(scope))

    async def objects_deleted(self, scope: Scope, answer: bytes) -> None:
        """Invoke the functions whose notifications match the objects that a DeleteObjects answer lists as deleted."""
        bucket, _ = _bucket_and_key(scope)
        configuration = self._by_bucket.get(bucket)
        if configuration is None:
            return
        name = "ObjectRemoved:Delete"
        for element in ElementTree.fromstring(answer).iter():
            if _local(element.tag) == "Deleted":
                key = next((child.text or "" for child in element if _local(child.tag) == "Key"), "")
                for rule in configuration.rules:
                    if wants(rule.notification, name, key.encode()):
                        await self._invoke(rule, name, (bucket, key), None, trace_of(scope))

    async def _invoke(
        self, rule: NotificationRule, name: str, at: tuple[str, str], found: tuple[int, str] | None, trace_id: str
    ) -> None:
        bucket, key = at
        size, etag = found or (None, None)
        request_id = new_request_id()
        event = self._encode(
            EmulatedObjectEvent(name, bucket, key, size, etag, next(self._sequence), request_id, rule.identifier)
        )
        try:
            function, qualifier = self._find(rule.arn)
            await self._accept(
                Invocation(
                    function,
                    event,
                    time.monotonic(),
                    request_id,
                    trace_id=trace_id,
                    asynchronous=True,
                    qualifier=qualifier,
                )
            )
        except ThawdError as error:
            self._complain(f"thawd: the event {name} of {bucket}/{key} could not be passed to {rule.arn}: {error}")


def is_bulk_delete(scope: Scope) -> bool:
    """Whether a request is a DeleteObjects."""
    return scope["method"] == "POST" and "delete" in _query(scope)


def event_name(scope: Scope) -> str | None:
    """The name of the event that a successful request causes; None for a request that causes no event."""
    _, key = _bucket_and_key(scope)
    query = _query(scope)
    if not key:
        return None
    method = scope["method"]
    if method == "PUT" and not query:
        return "ObjectCreated:Copy" if header(scope, b"x-amz-copy-source") else "ObjectCreated:Put"
    if method == "POST" and "uploadId" in query:
        return "ObjectCreated:CompleteMultipartUpload"
    if method == "DELETE" and not (set(query) - {"versionId"}):
        return "ObjectRemoved:Delete"
    return None


def parse(document: bytes) -> tuple[list[NotificationRule], bytes]:
    """The rules for functions in a notification configuration, and the document without these rules.

    Raises:
        S3Error: the document is not a notification configuration (400).
    """
    root = xml.parse(document or b"<NotificationConfiguration/>")
    rules: list[NotificationRule] = []
    for element in list(root):
        if _local(element.tag) in _TAGS:
            rules.append(_rule(element, len(rules)))
            root.remove(element)
    ElementTree.register_namespace("", _NAMESPACE)
    return rules, ElementTree.tostring(root)


def _rule(element: ElementTree.Element, index: int) -> NotificationRule:
    texts: dict[str, list[str]] = {}
    filters: dict[str, str] = {}
    for item in element.iter():
        texts.setdefault(_local(item.tag), []).append((item.text or "").strip())
        if _local(item.tag) == "FilterRule":
            fields = {_local(child.tag): child.text or "" for child in item}
            filters[fields.get("Name", "").lower()] = fields.get("Value", "")
    arns = [*texts.get("CloudFunction", []), *texts.get("LambdaFunctionArn", [])]
    if not arns or not texts.get("Event"):
        raise S3Error(
            400, "MalformedXML", "The notification configuration for a function must have an ARN and at least one Event"
        )
    if set(filters) - {"prefix", "suffix"}:
        raise S3Error(400, "InvalidArgument", "filter rule name must be either prefix or suffix")  # AWS's words
    identifier = (texts.get("Id") or [f"thawd-{index}"])[0]
    notification = Notification(
        function=arns[0],
        events=tuple(texts["Event"]),
        prefix=filters.get("prefix", ""),
        suffix=filters.get("suffix", ""),
    )
    return NotificationRule(identifier, notification)


def _replace(path: Path, content: bytes) -> None:
    with folders.replacing(path) as file:
        file.write(content)


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _query(scope: Scope) -> dict[str, list[str]]:
    """The query parameters of the operation, without those of a presigned URL's signature of either version."""
    given = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return {name: value for name, value in given.items() if is_of_operation(name.lower())}


def _bucket_and_key(scope: Scope) -> tuple[str, str]:
    """Bucket and key in the path of a request, decoded."""
    bucket, _, key = raw_path_of(scope).lstrip("/").partition("/")
    return unquote(bucket), unquote(key)
