"""Reads one SQS queue for one function: the poller of an event source mapping.

`thawd.sources.mapping_pollers` starts and stops the pollers.
Source: AWS Lambda developer guide, "Using Lambda with Amazon SQS"; "Scaling behavior".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from thawd.control.event_source_mapping_records import SourceMapping
from thawd.errors import ResourceNotFoundException, ThawdError
from thawd.grammar import lineage, queue_names
from thawd.grammar.event_patterns import Pattern
from thawd.invocation import MAX_PAYLOAD_BYTES, Invocation, Result
from thawd.scheduling.dispatcher import Dispatcher
from thawd.sources.aws_calls import Endpoint, SourceError
from thawd.sources.progress import SourceProgress
from thawd.sources.sqs import lambda_event
from thawd.sources.sqs.batch import Batching, ReceivedMessage
from thawd.sources.sqs.client import RawMessage, SqsQueue
from thawd.sources.sqs.receiver import Receiver, StaysInQueue, Throttled
from thawd.system.retry import Backoff, is_set_within

# How long a batch may wait for an environment, seconds. Its messages are held during that time.
_QUEUE_S = 300.0
_THROTTLE_FIRST_S = 0.5
_NO_QUEUE = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}
# Size of an event without its records.
_ENVELOPE_BYTES = len(lambda_event.event([]))


async def queue_problem(mapping: SourceMapping, *, endpoint: Endpoint | None) -> str | None:
    """Return AWS's words if the mapping's queue does not exist; None: it exists, or this is not known."""
    name = queue_names.parse(mapping.source)
    assert name is not None, "thawd.control has checked it"
    try:
        await SqsQueue(name, endpoint=endpoint).look()
    except SourceError as error:
        if error.code not in _NO_QUEUE:
            return None
        return (
            "Error occurred while ReceiveMessage. SQS Error Code: AWS.SimpleQueueService.NonExistentQueue. SQS Error "
            "Message: The specified queue does not exist."
        )
    return None


class SqsPoller:
    """Reads one queue for one function.

    Args:
        mapping: the event source mapping.
        dispatcher: runs the function.
        endpoint: address of SQS; None: as configured by AWS's environment variables and files.
        progress: the source's figures so far, which the poller continues.
        report: takes a line for the operator.

    Attributes:
        mapping: the event source mapping.
        progress: the source's figures.
        receiver: receives the messages.
    """

    def __init__(
        self,
        mapping: SourceMapping,
        dispatcher: Dispatcher,
        *,
        endpoint: Endpoint | None,
        progress: SourceProgress,
        report: Callable[[str], None],
    ) -> None:
        queue = queue_names.parse(mapping.url or mapping.source)
        assert queue is not None, "thawd.config or thawd.control has checked the name of the queue"
        self.mapping = mapping
        self.progress = progress
        self._region = queue.region
        self._dispatcher = dispatcher
        self._patterns = [Pattern(text) for text in mapping.patterns]
        self.receiver = Receiver(
            SqsQueue(queue, endpoint=endpoint),
            open_=self._open,
            handle=self._handle,
            batching=Batching(
                mapping.batch_size,
                mapping.window_s,
                MAX_PAYLOAD_BYTES - _ENVELOPE_BYTES,
                ordered=queue.is_fifo,
            ),
            room=self._room,
            progress=progress,
            report=lambda text: report(f"thawd: source {mapping.name}: {text}"),
        )

    async def run(self) -> None:
        """Read the queue until `stop` is called and the running batches have ended."""
        await self.receiver.run()

    def stop(self) -> None:
        """Receive no more messages. Running batches are completed."""
        self.receiver.stop()

    async def look(self) -> None:
        """Update the length of the queue in `progress`.

        Raises:
            SourceError: the queue's attributes cannot be read.
        """
        await self.receiver.look()

    def _open(self, message: RawMessage) -> bytes | None:
        function = self.mapping.function
        if self._dispatcher.refuses_loop(function, _trace_of(message)):
            raise StaysInQueue(
                f"{function} has been invoked {lineage.MAX_INVOCATIONS} times in one chain of invocations, so thawd "
                "assumes a loop; break the loop, or allow it with PutFunctionRecursionConfig"
            )
        encoded = msgspec.json.encode(lambda_event.record(message, arn=self.mapping.source, region=self._region))
        return encoded if lambda_event.is_wanted(self._patterns, encoded, message["Body"]) else None

    def _room(self) -> int:
        """Return how many batches may be handled at the same time; 0: the function is missing or cannot run."""
        mapping = self.mapping
        try:
            entry = self._dispatcher.entry(mapping.function, mapping.qualifier)
            if self._dispatcher.family(mapping.function).latest.function.reserved_concurrency == 0:
                self.progress.last_result = "PROBLEM: the function's reserved concurrency is 0"
                return 0
            most = self._dispatcher.most_at_once(mapping.function)
        except ResourceNotFoundException as error:
            self.progress.last_result = f"PROBLEM: {error.message}"
            return 0
        if entry.state == "Failed" and entry.pool is None and entry.publish is None:
            self.progress.last_result = f"PROBLEM: {entry.reason}"
            return 0
        return most if mapping.maximum_concurrency is None else min(most, mapping.maximum_concurrency)

    async def _handle(self, messages: Sequence[ReceivedMessage]) -> set[str]:
        ids = [message.id for message in messages]
        function = self.mapping.function
        traces = [trace for message in messages if (trace := _trace_of(message.raw)) is not None]
        invocation = Invocation(
            function,
            lambda_event.event(message.content for message in messages),
            time.monotonic() + _QUEUE_S,
            # One invocation can continue only one chain: the one that has invoked the function most often.
            trace_id=max(traces, key=lambda trace: lineage.invocations(trace, function), default=None),
            asynchronous=True,
            qualifier=self.mapping.qualifier,
        )
        result = await self._invoke(invocation, since=min(message.received_at for message in messages))
        failed: set[str] | None = set()
        if result.function_error is not None:
            failed = None
        elif self.mapping.reports_failures:
            failed = lambda_event.failures(result.payload, ids)
        self.progress.last_result = "PROBLEM: Function call failed" if failed is None else "OK"
        return set(ids) if failed is None else failed

    async def _invoke(self, invocation: Invocation, *, since: float) -> Result:
        """Invoke the function with a batch. If it cannot run now, retry with back-off during the visibility timeout.

        Args:
            invocation: the invocation whose event is the batch.
            since: when the batch's first message was received, ``time.monotonic()`` seconds.

        Raises:
            Throttled: the function could not run during the visibility timeout, or the source is stopping.
        """
        backoff = Backoff(first_s=_THROTTLE_FIRST_S)
        while True:
            try:
                return await self._dispatcher.invoke(invocation)
            except ThawdError as error:
                now_s = time.monotonic()
                wait_s = backoff.failed(now_s)
                if since + self.receiver.visibility_s - now_s < wait_s or self.receiver.stopping.is_set():
                    raise Throttled(error.message) from error
            await is_set_within(self.receiver.stopping, wait_s)


def _trace_of(message: RawMessage) -> str | None:
    """Return the trace header of a message; None: it has none.

    Source: Amazon SQS developer guide, "Amazon SQS message metadata", the system attribute AWSTraceHeader.
    """
    trace: str | None = message.get("Attributes", {}).get("AWSTraceHeader")
    return trace
