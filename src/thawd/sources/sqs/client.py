"""Calls one SQS queue with boto3. Each call runs in its own daemon thread, so the server can stop without waiting.

Source: Amazon SQS API reference, the operations that the docstrings name.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from thawd.errors import NoThreadError
from thawd.grammar.queue_names import QueueName
from thawd.system import threads

T = TypeVar("T")
RawMessage = Mapping[str, Any]
MOST_AT_ONCE = 10
"""Most messages in one call of SQS."""
LONGEST_POLL_S = 20
_CONNECT_S = 5
_ANSWER_S = LONGEST_POLL_S + 10
_CONNECTIONS = 50


class SourceError(Exception):
    """SQS cannot be reached or refuses a request; the message says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An SQS emulator, used instead of AWS.

    Attributes:
        url: the emulator's URL.
        access_key: id of an access key that the emulator accepts.
        secret: the access key's secret.
    """

    url: str
    access_key: str = "test"
    secret: str = "test"


@dataclass(frozen=True, slots=True)
class QueueLook:
    """A queue's attributes, as SQS returned them last.

    Attributes:
        visible: about how many messages wait to be received.
        in_flight: about how many messages are received and not deleted.
        visibility_s: the queue's visibility timeout, seconds.
    """

    visible: int
    in_flight: int
    visibility_s: int


class SqsQueue:
    """One SQS queue.

    Args:
        name: the queue's name, account and region.
        endpoint: address of SQS; None: as given by the name, the environment variables and AWS's configuration files.
    """

    def __init__(self, name: QueueName, *, endpoint: Endpoint | None = None) -> None:
        self.name = name
        self._endpoint = endpoint
        self._client: Any = None
        self._url = "" if endpoint is not None else name.url or ""
        self._lock = threading.Lock()

    async def receive(self, *, most: int, wait_s: int, hold_s: int | None = None) -> list[RawMessage]:
        """Receive messages with ReceiveMessage.

        Messages that arrive after the caller was cancelled are made visible to all clients again.

        Args:
            most: most messages, 1 to 10.
            wait_s: how long to wait for the first message, 0 to 20 seconds.
            hold_s: for how long no other client receives the messages, seconds; None: for the queue's visibility
                timeout.

        Raises:
            SourceError: the call failed.
        """

        held = {} if hold_s is None else {"VisibilityTimeout": hold_s}

        def work() -> list[RawMessage]:
            answer = self._ready().receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=most,
                WaitTimeSeconds=wait_s,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
                **held,
            )
            return list(answer.get("Messages", []))

        return await _in_thread(lambda: _explained(work), unwanted=self.release)

    async def delete(self, handles: Sequence[str]) -> list[str]:
        """Delete messages with DeleteMessageBatch. Return the handles of messages that were not deleted.

        Raises:
            SourceError: the call failed as a whole.
        """
        return await self._each("delete_message_batch", handles, {})

    async def set_visibility(self, handles: Sequence[str], wait_s: int) -> list[str]:
        """Make messages visible again in `wait_s` seconds, with ChangeMessageVisibilityBatch.

        Returns the handles that SQS refused.

        Raises:
            SourceError: the call failed as a whole.
        """
        return await self._each("change_message_visibility_batch", handles, {"VisibilityTimeout": wait_s})

    async def look(self) -> QueueLook:
        """Read the queue's attributes with GetQueueAttributes.

        Raises:
            SourceError: the call failed.
        """
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "VisibilityTimeout"]

        def work() -> QueueLook:
            answer = self._ready().get_queue_attributes(QueueUrl=self._url, AttributeNames=names)
            values = [int(answer["Attributes"][name]) for name in names]
            return QueueLook(*values)

        return await _in_thread(lambda: _explained(work))

    def release(self, messages: Sequence[RawMessage]) -> None:
        """Make messages visible to all clients now. May be called from any thread.

        If the call of SQS fails, the messages become visible when their visibility timeout is over.
        """
        handles = [message["ReceiptHandle"] for message in messages]
        try:
            for part in _parts(handles):
                entries = [_entry(index, handle, {"VisibilityTimeout": 0}) for index, handle in enumerate(part)]
                self._ready().change_message_visibility_batch(QueueUrl=self._url, Entries=entries)
        except Exception:  # nothing waits for the answer
            return

    async def _each(self, operation: str, handles: Sequence[str], fields: Mapping[str, Any]) -> list[str]:
        def work() -> list[str]:
            failed = []
            for part in _parts(handles):
                entries = [_entry(index, handle, fields) for index, handle in enumerate(part)]
                answer = getattr(self._ready(), operation)(QueueUrl=self._url, Entries=entries)
                failed += [part[int(one["Id"])] for one in answer.get("Failed", [])]
            return failed

        return await _in_thread(lambda: _explained(work))

    def _ready(self) -> Any:
        """Return boto3's client. The first call makes the client, which reads files and takes time."""
        with self._lock:
            if self._client is None:
                self._client = self._make()
            if not self._url:
                self._url = self._client.get_queue_url(
                    QueueName=self.name.name, QueueOwnerAWSAccountId=self.name.account
                )["QueueUrl"]
            return self._client

    def _make(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise SourceError("boto3 is not installed; install it with: pip install 'thawd[aws]'") from None
        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_ANSWER_S,
            retries={"total_max_attempts": 1},
            max_pool_connections=_CONNECTIONS,
        )
        access: dict[str, Any] = {"endpoint_url": self.name.endpoint}
        if self._endpoint is not None:
            access = {
                "endpoint_url": self._endpoint.url,
                "aws_access_key_id": self._endpoint.access_key,
                "aws_secret_access_key": self._endpoint.secret,
            }
        return boto3.session.Session().client("sqs", region_name=self.name.region, config=config, **access)


def _entry(index: int, handle: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"Id": str(index), "ReceiptHandle": handle, **fields}


def _parts(handles: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(handles), MOST_AT_ONCE):
        yield handles[start : start + MOST_AT_ONCE]


def _explained(work: Callable[[], T]) -> T:
    """Run `work`, and raise any error of boto3 as a `SourceError` with a one-line message."""
    try:
        return work()
    except SourceError:
        raise
    except Exception as error:  # from botocore, urllib3 or the operating system: they all mean that the call failed
        raise SourceError(" ".join(str(error).split()) or type(error).__name__) from error


async def _in_thread(work: Callable[[], T], *, unwanted: Callable[[T], None] | None = None) -> T:
    """Run `work` in a daemon thread and return its value. If the caller is cancelled, `unwanted` gets the value."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def left_over(value: T) -> None:
        if unwanted is not None:
            unwanted(value)

    def resolve_unwanted(value: T) -> None:
        with contextlib.suppress(NoThreadError):  # unreleased messages become visible after their timeout
            threads.start(threading.Thread(target=left_over, args=(value,), daemon=True))

    def resolve(value: T) -> None:
        if future.cancelled():
            resolve_unwanted(value)
        else:
            future.set_result(value)

    def fail(error: Exception) -> None:
        if not future.cancelled():
            future.set_exception(error)

    def run() -> None:
        try:
            value = work()
        except Exception as error:
            _call(loop, fail, error)
        else:
            if not _call(loop, resolve, value):
                left_over(value)

    try:
        threads.start(threading.Thread(target=run, name="sqs", daemon=True))
    except NoThreadError as error:
        raise SourceError(error.message) from error
    try:
        return await future
    except asyncio.CancelledError:
        if (
            future.done() and not future.cancelled() and future.exception() is None
        ):  # the value arrived together with the cancellation
            resolve_unwanted(future.result())
        raise


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[Any], None], value: Any) -> bool:
    """Make the loop call `function`. Return whether it will: False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, value)
    except RuntimeError:
        return False
    return True
