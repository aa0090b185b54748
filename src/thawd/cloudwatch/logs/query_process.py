"""The program that runs one Logs Insights query: ``python -m thawd.cloudwatch.logs.query_process``.

It runs in a process of its own, because a regular expression of a query may take any time and would stop the whole
server. The process has less priority than the server, and a memory limit. It reads a `QueryTask` from standard input,
and writes a `QueryOutcome` to standard output, both as JSON.
"""

from __future__ import annotations

import base64
import heapq
import os
import resource
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from thawd.cloudwatch.logs.events import Event, GroupEvents, GroupSource
from thawd.errors import StoreError
from thawd.grammar.insights import query as insights
from thawd.grammar.insights.rows import Record, Row
from thawd.stores.log_events import reading_elsewhere

MEMORY_BYTES = 1 << 30
MAX_RESULT_BYTES = 32 << 20
_NICENESS = 10
# The lines of a file are ordered by time unless the clock was set back; this much disorder is allowed for.
_DISORDER_MS = 60_000


class QueryTask(msgspec.Struct, kw_only=True):
    """A query to run.

    Attributes:
        query: its text.
        limit: most results if the query has no ``limit``; None: the default.
        start_ms: events from before this time do not count, milliseconds since 1970.
        end_ms: events from after this time do not count.
        state: path of the state file.
        account: account id of the groups.
        groups: where the events of each group are.
    """

    query: str
    limit: int | None
    start_ms: int
    end_ms: int
    state: str
    account: str
    groups: list[GroupTask]


class GroupTask(msgspec.Struct):
    """A group that a query reads; see `GroupSource`."""

    name: str
    path: str
    stored: int | None
    since_ms: int
    hidden: dict[str, int]


class QueryOutcome(msgspec.Struct, kw_only=True):
    """The end of a query.

    Attributes:
        results: for each result its fields with their values.
        matched: number of events that the filters let through.
        scanned: number of events that were read.
        scanned_bytes: bytes that were read.
        error: why the query failed; None: it did not.
    """

    results: list[list[tuple[str, str]]] = []
    matched: int = 0
    scanned: int = 0
    scanned_bytes: int = 0
    error: str | None = None


def main() -> None:
    """Run the query on standard input."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=QueryTask)
    with suppress(OSError):
        os.nice(_NICENESS)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        outcome = run(task)
    except MemoryError:
        outcome = QueryOutcome(error=f"the query needs more than {MEMORY_BYTES >> 20} MiB of memory")
    except (OSError, StoreError) as error:
        outcome = QueryOutcome(error=str(error))
    except Exception as error:  # a bug in thawd; the query has failed, and its caller is to learn why
        traceback.print_exc()
        outcome = QueryOutcome(error=f"the query failed inside thawd: {error!r}")
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


def run(task: QueryTask) -> QueryOutcome:
    """Run a query in this process. Blocks.

    Raises:
        QueryError: the query cannot be understood.
        OSError: a file cannot be read.
        StoreError: the state file cannot be read.
    """
    query = insights.parse(task.query, limit=task.limit)
    outcome = QueryOutcome()
    with ExitStack() as stack:
        reading = stack.enter_context(reading_elsewhere(Path(task.state)))
        opened: list[tuple[str, GroupEvents]] = []
        for group in task.groups:
            source = GroupSource(group.name, Path(group.path), group.stored, group.since_ms, group.hidden)
            opened.append((group.name, stack.enter_context(GroupEvents(source, reading))))
        merged = heapq.merge(
            *(_latest_first(name, events, task) for name, events in opened), key=lambda pair: -pair[1].time_ms
        )

        def rows() -> Iterator[Row]:
            for name, event in merged:
                outcome.scanned += 1
                yield Row(_record(event, name, task.account))

        def matched() -> None:
            outcome.matched += 1

        size = 0
        for result in query.run(rows(), matched=matched):
            size += sum(len(name) + len(value) for name, value in result)
            if size > MAX_RESULT_BYTES:
                return QueryOutcome(error=f"the results have more than {MAX_RESULT_BYTES >> 20} MiB; use limit")
            outcome.results.append(result)
        outcome.scanned_bytes = sum(events.read_bytes for _, events in opened)
    return outcome


def _latest_first(name: str, events: GroupEvents, task: QueryTask) -> Iterator[tuple[str, Event]]:
    """The events of a group in the period of the query, the latest first."""
    for event in events.backward():
        if event.time_ms < task.start_ms - _DISORDER_MS:
            return
        if task.start_ms <= event.time_ms <= task.end_ms:
            yield name, event


def _record(event: Event, group: str, account: str) -> Record:
    def pointer() -> str:
        place = (group, *event.before.file, *event.before.stored, event.id)
        return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()

    return Record(event.time_ms, event.ingested_ms, event.text, event.stream, group, account, pointer)


if __name__ == "__main__":
    main()
