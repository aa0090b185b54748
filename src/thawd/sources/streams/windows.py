"""Tumbling windows: the state that a function builds up from the records of one period of one shard. No side effects.

Time is divided into windows of equal length, counted from the epoch; a record belongs to the window in which it was
written. The function gets the state with each batch, and returns the next state. When a window is over, the function
gets it once more, without records.

Source: AWS Lambda developer guide, "Implementing stateful Kinesis Data Streams processing in Lambda".
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from thawd.sources.streams.lambda_event import StreamRecord, event, time_text

MAX_STATE_BYTES = 1_048_576
"""A window with a larger state ends early."""
_EMPTY = b"{}"


class WindowError(Exception):
    """An answer has no state; the message says so."""


class Window:
    """The windows of one shard, of which one is open at a time.

    Args:
        length_s: length of a window, seconds.
        shard: id of the shard.
        arn: ARN of the event source.
        start: start of the window that is open, seconds since the epoch; None: none is.
        state: the state of the window that is open, JSON text.

    Attributes:
        start: start of the window that is open, seconds since the epoch; None: none is.
        state: its state, JSON text.
    """

    def __init__(self, length_s: int, *, shard: str, arn: str, start: int | None, state: str) -> None:
        self._length_s = length_s
        self._shard = shard
        self._arn = arn
        self.start = start
        self._state = state.encode() or _EMPTY

    @property
    def state(self) -> str:
        return "" if self.start is None else self._state.decode()

    @property
    def end(self) -> int | None:
        """End of the window that is open, seconds since the epoch; None: none is open."""
        return None if self.start is None else self.start + self._length_s

    @property
    def is_too_large(self) -> bool:
        """Whether the state is so large that the window must end early."""
        return self.start is not None and len(self._state) > MAX_STATE_BYTES

    @property
    def size_bytes(self) -> int:
        """How much larger the event of a batch becomes by the window."""
        return len(self._state) + len(self._fields(final=False))

    def includes(self, record: StreamRecord) -> bool:
        """Return whether a record belongs to the window that is open; one that comes late does.

        If none is open, it does.
        """
        return self.end is None or record.arrived_at < self.end

    def open_for(self, record: StreamRecord) -> None:
        """Open the window of a record, unless one is open."""
        if self.start is None:
            self.start = int(record.arrived_at // self._length_s) * self._length_s
            self._state = _EMPTY

    def close(self) -> None:
        """End the window, or reset its state if it was ended early: its next record opens it again."""
        self.start, self._state = None, _EMPTY

    def event(self, records: Sequence[StreamRecord]) -> bytes:
        """Return the event of a batch as JSON text; without records, it is the last one of the window."""
        return event(records)[:-1] + b"," + self._fields(final=not records) + b',"state":' + self._state + b"}"

    def _fields(self, *, final: bool) -> bytes:
        assert self.start is not None, "an event belongs to an open window"
        assert self.end is not None
        ends = {"start": _text(self.start), "end": _text(self.end)}
        fields = {
            "window": ends,
            "shardId": self._shard,
            "eventSourceARN": self._arn,
            "isFinalInvokeForWindow": final,
            "isWindowTerminatedEarly": final and self.is_too_large,
        }
        return msgspec.json.encode(fields)[1:-1]

    def take(self, answer: bytes) -> None:
        """Replace the state by the one in a function's answer.

        Raises:
            WindowError: the answer contains no state.
        """
        try:
            found = msgspec.json.decode(answer, type=dict[str, msgspec.Raw]).get("state")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found = None
        if found is None or bytes(found).strip() == b"null":
            raise WindowError("the answer of the function contains no state, which a tumbling window needs")
        self._state = bytes(found)


def _text(at: int) -> str:
    return time_text(at, milliseconds=False)
