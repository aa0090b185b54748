"""Sends spans to a collector, by OTLP over HTTP, from a thread of its own.

The path of a request only appends to a list. What waits is bounded: if more is reported than the thread can send,
further spans are dropped, and their number is reported. The collector may be down: spans are kept up to the bound, and
sent when it answers again.

Source: OpenTelemetry protocol specification, "OTLP/HTTP".
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

from thawd.recording import otlp
from thawd.recording.spans import Span, spans_of
from thawd.scheduling.ended_invocations import EndedInvocation
from thawd.system import threads
from thawd.system.retry import Backoff, SayOnce

_BATCH_S = 0.5
_BATCH_SPANS = 512
_MOST_SPANS = 8192
# Invocations whose spans are not made yet. Each keeps its event and its answer in memory.
_MOST_ENDED = 2048
_MOST_BYTES = 16 << 20
_ANSWER_S = 5.0
_LAST_S = 0.8
_LONGEST_WAIT_S = 30.0
# Spans that functions have made themselves. They are sent after the others, and have bounds of their own.
_MOST_OFFERED = 4096
_MOST_OFFERED_BYTES = 8 << 20
_BATCH_BYTES = 1 << 20
# While the collector is down, spans are made this often: a span needs less memory than its invocation's event.
_LONGEST_SLEEP_S = 2.0
_RETRIED = (429, 502, 503, 504)
# Spans that wait to be sent: each one's function, and the encoded span.
_Encoded = deque[tuple[str, bytes]]


class SpanSender:
    """Sends spans.

    Args:
        url: the collector's address, such as ``http://127.0.0.1:4318``; ``/v1/traces`` is appended.
        report: takes a line for the operator.

    Raises:
        NoThreadError: the operating system refused to start a thread.

    Attributes:
        dropped: number of spans and invocations that were dropped since the server has started.
        refused: number of spans that were offered and not accepted since the server has started.
    """

    def __init__(self, url: str, *, report: Callable[[str], object]) -> None:
        self.dropped = 0
        self.refused = 0
        self._url = url
        self._parts = urlsplit(url)
        self._reports = SayOnce(report)
        self._ended: deque[EndedInvocation] = deque()
        # Only the event loop changes the first, and only the thread the second, so no update is lost.
        self._reported_bytes = 0
        self._taken_bytes = 0
        self._spans: _Encoded = deque()
        self._offered: _Encoded = deque()
        # Only the thread that offers changes the first, and only the sender's thread the second.
        self._offered_bytes = 0
        self._done_bytes = 0
        self._backoff = Backoff(first_s=1.0, longest_s=_LONGEST_WAIT_S)
        self._wait_until_s = 0.0
        self._awake = threading.Event()
        self._stop = threading.Event()
        self._deadline_s = 0.0
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        threads.start(self._thread)

    def ended(self, ended: EndedInvocation) -> None:
        """Send the spans of an invocation."""
        invocation, result = ended.invocation, ended.result
        size = len(invocation.payload) + (0 if result is None else len(result.payload))
        waiting_bytes = self._reported_bytes - self._taken_bytes
        if len(self._ended) >= _MOST_ENDED or waiting_bytes + size > _MOST_BYTES:
            self.dropped += 1
            return
        self._reported_bytes += size
        self._ended.append(ended)
        if not self._awake.is_set():
            self._awake.set()

    def add(self, span: Span) -> None:
        """Send a span."""
        if len(self._spans) >= _MOST_SPANS:
            self.dropped += 1
            return
        self._spans.append((span.function, otlp.span_fields(span)))
        if not self._awake.is_set():
            self._awake.set()

    def offer(self, span: Span) -> bool:
        """Send a span that a function has made, if few of these wait. Only one thread may call this.

        Returns:
            Whether the span is to be sent.
        """
        encoded = otlp.span_fields(span)
        waiting_bytes = self._offered_bytes - self._done_bytes
        if len(self._offered) >= _MOST_OFFERED or waiting_bytes + len(encoded) > _MOST_OFFERED_BYTES:
            self.refused += 1
            return False
        self._offered_bytes += len(encoded)
        self._offered.append((span.function, encoded))
        if not self._awake.is_set():
            self._awake.set()
        return True

    def close(self) -> None:
        """Send what waits, within a second. Blocks."""
        self._deadline_s = time.monotonic() + _LAST_S
        self._stop.set()
        self._awake.set()
        self._thread.join(_LAST_S + 0.1)

    def _run(self) -> None:
        while True:
            self._awake.wait()
            self._stop.wait(max(_BATCH_S, min(_LONGEST_SLEEP_S, self._wait_until_s - time.monotonic())))
            is_last = self._stop.is_set()
            self._awake.clear()
            self._make()
            while (self._spans or self._offered) and (is_last or time.monotonic() >= self._wait_until_s):
                if is_last and time.monotonic() >= self._deadline_s:
                    break
                if not self._send_batch():
                    break
            if is_last:
                if left := len(self._spans) + len(self._offered):
                    self._reports.say(f"thawd: {left} spans were not sent to {self._url}", cause="end")
                return
            if self._spans or self._offered:
                self._awake.set()

    def _make(self) -> None:
        """Make the spans of the invocations that have ended."""
        while self._ended:
            ended = self._ended.popleft()
            result = ended.result
            size = len(ended.invocation.payload) + (0 if result is None else len(result.payload))
            self._taken_bytes += size
            try:
                for span in spans_of(ended):
                    self.add(span)
            except Exception as error:  # a bug in thawd that one invocation triggers must not end the thread
                self._reports.say(f"thawd: making spans failed inside thawd: {error!r}", topic="bug")

    def _send_batch(self) -> bool:
        """Send a batch; returns whether the next one may be sent now."""
        queue = self._spans or self._offered
        batch, size = _batch_of(queue)
        try:
            status = self._post(otlp.request(batch))
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: the host's name is too long
            self._failed(queue, batch, str(error) or type(error).__name__)
            return False
        if status in _RETRIED:
            self._failed(queue, batch, f"status {status}")
            return False
        self._backoff.succeeded()
        if queue is self._offered:
            self._done_bytes += size
        if 200 <= status < 300:
            self._reports.resolved(f"thawd: traces are sent to {self._url} again{self._lost()}")
        else:
            self.dropped += len(batch)
            self._reports.say(
                f"thawd: {self._url} refuses traces with status {status}; check server.traces", cause=status
            )
        return True

    def _failed(self, queue: _Encoded, batch: list[tuple[str, bytes]], why: str) -> None:
        # The bytes of offered spans are still counted, so there is room for them.
        room = max(0, _MOST_SPANS - len(queue))
        self.dropped += max(0, len(batch) - room)
        queue.extendleft(reversed(batch[:room]))
        now_s = time.monotonic()
        self._wait_until_s = now_s + self._backoff.failed(now_s)
        self._reports.say(
            f"thawd: traces cannot be sent to {self._url} and are kept for now: {why}; start the collector, or check "
            "server.traces",
            cause="down",
        )

    def _lost(self) -> str:
        return f"; {self.dropped} were dropped so far" if self.dropped else ""

    def _post(self, body: bytes) -> int:
        """Send a request, and return the answer's status.

        Raises:
            OSError: the collector cannot be reached, or does not answer in time.
            http.client.HTTPException: its answer is not HTTP.
        """
        limit_s = _ANSWER_S
        if self._stop.is_set():
            limit_s = max(0.05, self._deadline_s - time.monotonic())
        connection = _connection(self._parts, limit_s)
        try:
            path = f"{self._parts.path.rstrip('/')}/v1/traces"
            connection.request("POST", path, body, {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            answer.read(1 << 16)
            return answer.status
        finally:
            connection.close()


def _batch_of(queue: _Encoded) -> tuple[list[tuple[str, bytes]], int]:
    """Take spans for one request from a queue that is not empty; returns them and their size, bytes."""
    batch = [queue.popleft()]
    size = len(batch[0][1])
    while queue and len(batch) < _BATCH_SPANS and size + len(queue[0][1]) <= _BATCH_BYTES:
        batch.append(queue.popleft())
        size += len(batch[-1][1])
    return batch, size


def _connection(url: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection to the host of a URL; each batch has its own, so that none is stale."""
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    return kind(url.hostname or "127.0.0.1", url.port, timeout=timeout_s)
