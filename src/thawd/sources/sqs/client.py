"""Calls one SQS queue with boto3. Each call runs in its own daemon thread, so the server can stop without waiting.

Source: Amazon SQS API reference, the operations that the docstrings name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thawd.grammar.queue_names import QueueName
from thawd.sources.aws_calls import Endpoint, explained, in_thread, make_client

RawMessage = Mapping[str, Any]
MOST_AT_ONCE = 10
"""Most messages in one call of SQS."""
LONGEST_POLL_S = 20
_ANSWER_S = LONGEST_POLL_S + 10
_CONNECTIONS = 50


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

        return await in_thread(lambda: explained(work), unwanted=self.release)

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

        return await in_thread(lambda: explained(work))

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

        return await in_thread(lambda: explained(work))

    def _ready(self) -> Any:
        """Return boto3's client. The first call makes the client, which reads files and takes time."""
        with self._lock:
            if self._client is None:
                self._client = make_client(
                    "sqs",
                    region=self.name.region,
                    endpoint=self._endpoint,
                    url=self.name.endpoint,
                    answer_s=_ANSWER_S,
                    connections=_CONNECTIONS,
                )
            if not self._url:
                self._url = self._client.get_queue_url(
                    QueueName=self.name.name, QueueOwnerAWSAccountId=self.name.account
                )["QueueUrl"]
            return self._client


def _entry(index: int, handle: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"Id": str(index), "ReceiptHandle": handle, **fields}


def _parts(handles: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(handles), MOST_AT_ONCE):
        yield handles[start : start + MOST_AT_ONCE]
