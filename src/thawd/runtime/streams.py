"""Running a streaming handler: its parts go to the platform as they come, or together where nobody wants them so."""

import os
from typing import Any, Dict, List, Optional, Tuple

from thawd import streaming
from thawd.runtime import invoking
from thawd.runtime.channel import Channel
from thawd.runtime.faults import Fault
from thawd.wire import frames


class Streams:
    """One function's way of answering, invocation after invocation.

    Attributes:
        told: what the RESULT of the last invocation says of its answer: ``type``.
    """

    def __init__(self, handler: Any, channel: Optional[Channel]) -> None:
        self.told: Dict[str, Any] = {}
        self._handler = handler
        self._channel = channel

    def invoke(self, head: Any, event: bytes, *, now_s: float) -> Tuple[bytes, bool]:
        """As `invoking.invoke`; the body is empty where the answer was sent in parts, and the whole answer else.

        Args:
            head: of the INVOKE frame; ``stream``: the answer is wanted in parts, of so many bytes at most.
            event: JSON text.
            now_s: when the invocation began, ``time.monotonic()`` seconds.
        """
        limit_bytes = head.get("stream")
        sender = _Sender(self._channel if limit_bytes else None, limit_bytes or invoking.MAX_RESPONSE_BYTES)
        stream = streaming.Stream(sender.send)
        sender.stream = stream

        def answer(decoded: Any, context: Any) -> None:
            self._handler.run(decoded, stream, context)
            stream.close()
            if sender.fault is not None:
                raise sender.fault

        def whole(_: Any) -> bytes:
            return b"".join(sender.kept)

        try:
            body, failed = invoking.invoke(answer, head, event, now_s=now_s, marshal=whole)
        finally:
            stream.abandon()
        self.told = {} if failed else {"type": stream.content_type}
        return body, failed


class _Sender:
    """Where a stream's parts go: over `channel`, or into `kept`.

    Attributes:
        kept: parts that nobody wanted as they came.
        fault: why a part was not taken; handlers that go on all the same fail with it in the end.
    """

    def __init__(self, channel: Optional[Channel], limit_bytes: int) -> None:
        self.kept: List[bytes] = []
        self.fault: Optional[Fault] = None
        self.stream: Optional[streaming.Stream] = None
        self._channel = channel
        self._left = self._limit = limit_bytes
        self._owner = os.getpid()

    def send(self, data: bytes) -> None:
        if os.getpid() != self._owner:
            raise streaming.StreamError("a child process of the handler cannot write its answer; let the handler do it")
        self._left -= len(data)
        if self._left < 0:
            self.fault = Fault(
                "Function.ResponseSizeTooLarge",
                "Response payload size exceeded maximum allowed payload size (%d bytes)." % self._limit,
            )
        if self.fault is not None:
            raise self.fault
        if self._channel is None:
            self.kept.append(data)
            return
        assert self.stream is not None
        try:
            self._channel.send(frames.PART, {"type": self.stream.content_type}, data)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
