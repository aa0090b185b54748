"""The log of a function on all machines of a cluster, merged by time. The server on this machine asks the others.

Each machine sends its log in pages and says until when a page is complete. A line is printed once every machine that
answers is complete until the line's time. If the clocks of machines differ, a line is printed after a second anyway.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from thawd.cli.client import NoAnswerError
from thawd.cli.exits import warn
from thawd.cli.log_lines import Layout, LogLine, print_lines

if TYPE_CHECKING:
    from thawd.cli.machines import Cluster
    from thawd.telemetry.logs.selection import Selection

_FOLLOW_S = 0.2
_HOLD_S = 1.0


class _Held(NamedTuple):
    time_ms: int
    machine: str
    number: int
    arrived_s: float
    line: LogLine


class Merger:
    """Merges the lines of several machines by time. The lines of each machine keep their order. Pure."""

    def __init__(self) -> None:
        self._held: list[_Held] = []
        self._numbers = itertools.count()
        self._last_ms: dict[str, int] = {}
        self._complete_ms: dict[str, int] = {}

    def add(self, machine: str, lines: list[tuple[int, LogLine]], *, complete_ms: int, now_s: float) -> None:
        """Take the next lines of a machine.

        Args:
            machine: its name.
            lines: time, in milliseconds since 1970, and line.
            complete_ms: no line from before this time follows.
            now_s: the present time.
        """
        for time_ms, line in lines:
            # A clock that was set back must not change the order of a machine's lines.
            self._last_ms[machine] = max(self._last_ms.get(machine, 0), time_ms)
            heapq.heappush(self._held, _Held(self._last_ms[machine], machine, next(self._numbers), now_s, line))
        self._complete_ms[machine] = complete_ms

    def forget(self, machine: str) -> None:
        """Wait no longer for the lines of a machine, because it does not answer."""
        self._complete_ms.pop(machine, None)

    def take(self, now_s: float) -> list[LogLine]:
        """Return the lines that are due, oldest first.

        Args:
            now_s: the present time; 0: lines are due only when all machines are complete until their time.
        """
        bound_ms = min(self._complete_ms.values(), default=0)
        due = []
        while self._held and (self._held[0].time_ms < bound_ms or now_s - self._held[0].arrived_s >= _HOLD_S):
            due.append(heapq.heappop(self._held).line)
        return due

    def behind(self, machines: set[str]) -> str:
        """Return the one of these machines whose lines are known until the earliest time."""
        return min(machines, key=lambda machine: self._complete_ms.get(machine, 0))

    def rest(self) -> list[LogLine]:
        """Return all lines that are left, oldest first."""
        return [heapq.heappop(self._held).line for _ in range(len(self._held))]


class ClusterLog:
    """A log group on the machines of a cluster.

    Args:
        cluster: asks the machines.
        group: name of the log group.
        selection: the lines that are wanted.

    Attributes:
        exists: whether a machine that has answered has such a log.
    """

    def __init__(self, cluster: Cluster, group: str, selection: Selection) -> None:
        self.exists = False
        self._cluster = cluster
        self._group = group
        self._selection = selection
        self._selections: dict[str, Selection] = {}  # lines of invocations are found by the lines before them
        self._after: dict[str, str] = {}
        self._merger = Merger()
        self._away: dict[str, str] = {}
        self._begun_ms = int(time.time() * 1000)

    def past(self, count: int | None) -> Iterator[LogLine]:
        """Yield the lines that are there, oldest first.

        Args:
            count: how many lines the caller keeps; None: all. Lines before the last `count` may be left out.
        """
        is_read = self._selection.wants_all and count is not None and not self._round({"last": str(count)})
        if not is_read:
            self._after, self._merger = {}, Merger()  # these are too many lines for one page
            reading = self._round()
            while reading:
                # The machine that is behind all others is asked next, so that few lines of the others must be kept.
                machine = self._merger.behind(reading)
                reading = (reading - {machine}) | self._round(only=machine)
                yield from self._merger.take(0.0)
        yield from self._merger.rest()

    def follow(self) -> Iterator[list[LogLine]]:
        """Yield lines as they are written, after `past`, until interrupted. Waits for a server that is restarted."""
        is_answered = True
        while True:
            more: set[str] = set()
            try:
                more = self._round(is_following=True)
            except NoAnswerError as error:
                if is_answered:
                    warn(f"waiting for the server: {error}")
                is_answered = False
            else:
                is_answered = True
            lines = self._merger.take(time.monotonic())
            if lines:
                yield lines
            if not more:
                time.sleep(_FOLLOW_S)

    def _round(
        self, arguments: dict[str, str] | None = None, *, only: str | None = None, is_following: bool = False
    ) -> set[str]:
        """Ask each machine for its next page, or only one. Return those that have answered and have more pages."""
        since_ms = self._begun_ms if is_following else self._selection.since_ms
        query = {"group": self._group, "since_ms": str(since_ms), **(arguments or {})}
        query |= {f"after.{machine}": place for machine, place in self._after.items()}
        ask = self._cluster.attempt if is_following else self._cluster.ask
        answers = ask("logs", query, only=only)
        for machine in answers.away:
            self._merger.forget(machine)
        self._note_away(answers.away, is_following=is_following)
        return {name for name, page in answers.documents.items() if self._take(name, page, is_following=is_following)}

    def _take(self, machine: str, page: dict[str, Any], *, is_following: bool) -> bool:
        """Take a page of a machine. Return whether there are more pages."""
        self.exists = self.exists or page["exists"]
        # Of a machine that answers for the first time while the log is followed, only new lines are wanted.
        is_new = machine not in self._after
        floor_ms = self._begun_ms if is_new and is_following else self._selection.since_ms
        self._after[machine] = page["next"]
        selection = self._selections.get(machine)
        if selection is None:
            from thawd.telemetry.logs.selection import Selection

            wanted = self._selection
            selection = self._selections[machine] = Selection(wanted.pattern, wanted.request, wanted.since_ms)
        lines = []
        for time_ms, stream, text in page["lines"]:
            stream_bytes, message = stream.encode("latin-1"), text.encode("latin-1")
            is_wanted, request_id = selection.take(stream_bytes, message)
            if is_wanted and time_ms >= floor_ms:
                lines.append((time_ms, LogLine.at(time_ms, stream_bytes, message, request_id, machine)))
        self._merger.add(machine, lines, complete_ms=page["read_ms"], now_s=time.monotonic())
        return not page["is_last"]

    def _note_away(self, away: dict[str, str], *, is_following: bool) -> None:
        """Name machines that do not answer once, and machines that answer again."""
        for machine in away.keys() - self._away.keys():
            warn(f"no lines of the machine {machine}: {away[machine]}")
        for machine in self._away.keys() - away.keys() if is_following else ():
            warn(f"the machine {machine} answers again")
        self._away = away if is_following else {**self._away, **away}


def print_log(log: ClusterLog, layout: Layout, *, count: int | None, follow: bool, may_be_missing: bool) -> bool:
    """Print a log. Return False if it is missing and may not be.

    Args:
        log: the log.
        layout: how lines are printed.
        count: number of past lines; None: all that are wanted.
        follow: whether further lines are printed, until Ctrl-C.
        may_be_missing: whether there may be no such log yet.
    """
    with contextlib.suppress(KeyboardInterrupt):
        past = log.past(count)
        print_lines(past if count is None else deque(past, maxlen=count), layout)
        if not (log.exists or may_be_missing):
            return False
        for lines in log.follow() if follow else ():
            print_lines(lines, layout)
    return True
