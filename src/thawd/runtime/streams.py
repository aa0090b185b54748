"""Runs a streaming handler: sends its answer part by part, or whole if the caller does not want a stream."""

import os
from typing import Any, Dict, List, Optional, Tuple

from thawd import streaming
from thawd.runtime import invoking
from thawd.runtime.channel import Channel
from thawd.runtime.faults import TOO_LARGE, Fault
from thawd.wire import frames


class Streams:
    """Runs the invocations of one streaming handler.

    Attributes:
        result_head: a field for the RESULT frame of the last invocation: ``type``, the content type of its answer.
    """

    def __init__(self, handler: Any, channel: Optional[Channel]) -> None:
        self.result_head: Dict[str, Any] = {}
        self._handler = handler
        self._channel = channel

    def invoke(self, head: Any, event: bytes, *, now_s: float) -> Tuple[bytes, bool]:
        """Run one invocation, as `invoking.invoke` does; the body is empty if the answer was sent in parts.

        Args:
            head: head of the INVOKE frame. If it contains ``stream``, the answer is sent in parts; the value of
                ``stream`` is the largest size of the answer in bytes. Otherwise the answer of a web application is a
                document for Lambda's HTTP integrations.
            event: JSON text.
            now_s: when the invocation began, ``time.monotonic()`` seconds.
        """
        limit_bytes = head.get("stream")
        if limit_bytes is None and getattr(self._handler, "answers_whole", False) is True:
            self.result_head = {}
            return invoking.invoke(self._handler, head, event, now_s=now_s)
        sender = _Sender(self._channel if limit_bytes else None, limit_bytes or invoking.MAX_RESPONSE_BYTES)
        stream = streaming.Stream(sender.send)
        sender.stream = stream

        def answer(decoded: Any, context: Any) -> None:
            rest = self._handler.run(decoded, stream, context)
            if rest is not None:
                sender.keep(len(rest))
                stream.write(rest)
            stream.close()
            if sender.fault is not None:
                raise sender.fault

        def whole(_: Any) -> bytes:
            return b"".join(sender.kept)

        try:
            body, failed = invoking.invoke(answer, head, event, now_s=now_s, encode=whole)
        finally:
            stream.abandon()
        self.result_head = {} if failed else {"type": stream.content_type}
        return body, failed


class _Sender:
    """Sends a stream's parts over `channel`, or keeps them.

    Attributes:
        kept: the parts of an answer that is returned whole.
        fault: the error with which a part was refused; None before. If the handler ignores the error, the invocation
            fails with it at the end.
    """

    def __init__(self, channel: Optional[Channel], limit_bytes: int) -> None:
        self.kept: List[bytes] = []
        self.fault: Optional[Fault] = None
        self.stream: Optional[streaming.Stream] = None
        self._channel = channel
        self._left = self._limit = limit_bytes
        self._owner = os.getpid()

    def keep(self, size_bytes: int) -> None:
        """Return the answer, of which nothing was sent, whole, unless it is too large for that."""
        if size_bytes <= invoking.MAX_RESPONSE_BYTES:
            self._channel = None

    def send(self, data: bytes) -> None:
        if os.getpid() != self._owner:
            raise streaming.StreamError(
                "a child process of the handler cannot write to the stream; write in the handler's own process"
            )
        self._left -= len(data)
        if self._left < 0:
            self.fault = Fault(
                TOO_LARGE,
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
