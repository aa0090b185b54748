"""Live tails: sessions that are sent the events of groups as they arrive.

Source: CloudWatch Logs API reference, "StartLiveTail"; quotas, "Live Tail".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from thawd.cloudwatch.logs.errors import LimitExceededException, LogsNotFoundException
from thawd.cloudwatch.logs.events import Arrival, Event, arrivals, arrived_until_now
from thawd.cloudwatch.logs.groups import LogGroups
from thawd.grammar.log_filters import Wanted

MOST_SESSIONS = 15
MOST_IN_UPDATE = 500
"""Most events in one update; of more, the first ones are sent, and the update says that it is a sample."""
_UPDATE_S = 1.0
_STEP_BYTES = 4 << 20


@dataclass(slots=True)
class Selection:
    """Which events of the groups a session wants.

    Attributes:
        groups: names of the groups.
        wanted: the filter pattern.
        streams: names of streams; None: all.
        prefixes: what the names of streams begin with; None: anything.
    """

    groups: Sequence[str]
    wanted: Wanted
    streams: frozenset[str] | None = None
    prefixes: tuple[str, ...] | None = None

    def takes(self, event: Event) -> bool:
        """Whether the session wants an event."""
        if self.streams is not None and event.stream not in self.streams:
            return False
        if self.prefixes is not None and not event.stream.startswith(self.prefixes):
            return False
        return self.wanted(event.message.decode(errors="replace"))


@dataclass(slots=True)
class Update:
    """What has arrived: events with their groups; whether these are only some of the events."""

    events: list[tuple[str, Event]] = field(default_factory=list)
    is_sample: bool = False


class LiveTails:
    """The sessions of a server.

    Args:
        groups: all log groups.
    """

    def __init__(self, groups: LogGroups) -> None:
        self._groups = groups
        self._sessions = 0

    async def follow(self, selection: Selection) -> AsyncGenerator[Update, None]:
        """Yield an update about once a second: what has arrived since the one before.

        Raises:
            LimitExceededException: there are too many sessions (400).
            LogsNotFoundException: there is no such group (400).
            StoreError: the state file cannot be read.
            OSError: the files cannot be read.
        """
        if self._sessions >= MOST_SESSIONS:
            raise LimitExceededException("The limit of concurrent Live Tail sessions has been reached.")
        self._sessions += 1
        try:
            self._groups.flush()
            reading = self._groups.store.reading
            places: dict[str, Arrival] = {}
            for name in selection.groups:
                places[name] = await asyncio.to_thread(arrived_until_now, self._groups.source(name), reading)
            yield Update()
            while True:
                await asyncio.sleep(_UPDATE_S)
                self._groups.flush()
                yield await asyncio.to_thread(self._read, selection, places)
        finally:
            self._sessions -= 1

    def _read(self, selection: Selection, places: dict[str, Arrival]) -> Update:
        """Read what has arrived after `places`, and move them. Blocks."""
        update = Update()
        for name in selection.groups:
            size = 0
            try:
                source = self._groups.source(name)
            except LogsNotFoundException:
                continue  # deleted meanwhile; it may be made again
            for event, place in arrivals(source, self._groups.store.reading, places[name]):
                places[name] = place
                if selection.takes(event):
                    if len(update.events) < MOST_IN_UPDATE:
                        update.events.append((name, event))
                    else:
                        update.is_sample = True
                size += len(event.message)
                if size >= _STEP_BYTES:
                    break  # the rest is read for the next update
        return update
