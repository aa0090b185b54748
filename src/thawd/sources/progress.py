"""The figures of a source that thawd reads itself, as operators see them."""

from __future__ import annotations

from dataclasses import dataclass

from thawd.control.event_source_mapping_records import UNPROCESSED


@dataclass(slots=True)
class SourceProgress:
    """The figures of a source so far.

    Attributes:
        received: number of messages received, including those that no pattern matches.
        filtered: number of messages that no pattern matches.
        failed: number of messages whose handling failed.
        troubles: how many times in a row the queue could not be read.
        trouble: why the queue cannot be read now; None: it can be read.
        last_result: result of the last batch, in the form of ``LastProcessingResult``.
        waiting: about how many messages wait; None: not known.
        in_flight: about how many messages are received and not deleted; None: not known.
        oldest_s: age of the oldest message in the last reception, or of the record of a stream that was read last,
            seconds; 0: nothing was received.
    """

    received: int = 0
    filtered: int = 0
    failed: int = 0
    troubles: int = 0
    trouble: str | None = None
    last_result: str = UNPROCESSED
    waiting: int | None = None
    in_flight: int | None = None
    oldest_s: float = 0.0
