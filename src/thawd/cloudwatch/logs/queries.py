"""Logs Insights queries: starts each in a process of its own (`query_process`), and keeps the results for a while.

A few queries run at the same time; further ones wait. The results of the last queries are kept in memory, so a restart
forgets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from thawd.cloudwatch.logs.errors import (
    InvalidParameterException,
    LimitExceededException,
    LogsNotFoundException,
    MalformedQueryException,
)
from thawd.cloudwatch.logs.groups import LogGroups, now_ms
from thawd.cloudwatch.logs.query_process import GroupTask, QueryOutcome, QueryTask
from thawd.grammar.insights import query as insights
from thawd.grammar.insights.tokens import QueryError
from thawd.invocation import new_request_id
from thawd.resources import ACCOUNT_ID
from thawd.telemetry.console import stderr_of_children

_AT_ONCE = 2
_MOST_WAITING = 30
_MOST_KEPT = 100
_KEPT_BYTES = 64 << 20
# Source: CloudWatch Logs quotas, "Logs Insights query timeout".
_LONGEST_S = 3600.0


@dataclass(slots=True)
class Query:
    """A query that was started.

    Attributes:
        id: its id.
        text: its text.
        groups: the names of its groups.
        created_ms: when it was started, milliseconds since 1970.
        status: AWS's word for its state.
        outcome: what it has found; empty until it has ended.
        size_bytes: how much memory its results need, about.
        duration_ms: how long it ran; None until it has ended.
    """

    id: str
    text: str
    groups: Sequence[str]
    created_ms: int
    status: str = "Scheduled"
    outcome: QueryOutcome = field(default_factory=QueryOutcome)
    size_bytes: int = 0
    duration_ms: int | None = None
    process: asyncio.subprocess.Process | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the query neither waits nor runs."""
        return self.status not in ("Scheduled", "Running")


class Queries:
    """The queries of a server.

    Args:
        groups: all log groups.
        state: path of the state file.
        spawn_task: runs a coroutine in the background.
        spare_own_programs: returns the context in which thawd runs a process of its own; see
            `Launcher.spare_own_programs`.
    """

    def __init__(
        self,
        groups: LogGroups,
        state: Path,
        *,
        spawn_task: Callable[[Coroutine[None, None, None]], object],
        spare_own_programs: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._groups = groups
        self._state = state
        self._spawn_task = spawn_task
        self._spare_own_programs = spare_own_programs
        self._queries: dict[str, Query] = {}
        self._waiting: dict[str, QueryTask] = {}
        self._running = 0

    def start(self, text: str, groups: Sequence[str], *, period_ms: tuple[int, int], limit: int | None) -> str:
        """Start a query; returns its id.

        Args:
            text: the query.
            groups: the names of the groups that it reads.
            period_ms: first and last time of the events that it reads, milliseconds since 1970.
            limit: most results if the query has no ``limit``; None: the default.

        Raises:
            MalformedQueryException: the query cannot be understood (400).
            LogsNotFoundException: there is no such group (400).
            LimitExceededException: too many queries wait already (400).
        """
        try:
            insights.parse(text, limit=limit)
        except QueryError as error:
            raise MalformedQueryException(str(error), start=error.start, end=error.end) from None
        sources = [self._groups.source(name) for name in groups]
        if len(self._waiting) >= _MOST_WAITING:
            raise LimitExceededException("Resource limit exceeded.")
        self._groups.flush()
        task = QueryTask(
            query=text,
            limit=limit,
            start_ms=period_ms[0],
            end_ms=period_ms[1],
            state=str(self._state),
            account=ACCOUNT_ID,
            groups=[
                GroupTask(source.name, str(source.path), source.stored, source.since_ms, source.hidden)
                for source in sources
            ],
        )
        query = Query(new_request_id(), text, tuple(groups), now_ms())
        self._queries[query.id] = query
        self._waiting[query.id] = task
        self._run_waiting()
        return query.id

    def _run_waiting(self) -> None:
        """Begin the queries that have waited longest, as many as may run."""
        while self._waiting and self._running < _AT_ONCE:
            identifier = next(iter(self._waiting))
            query, task = self._queries[identifier], self._waiting.pop(identifier)
            query.status = "Running"
            self._running += 1
            self._spawn_task(self._run(query, task))

    async def _run(self, query: Query, task: QueryTask) -> None:
        try:
            await self._run_to_end(query, task)
        except asyncio.CancelledError:
            self._waiting.clear()  # the server ends
            raise
        finally:
            self._running -= 1
            self._forget()
            self._run_waiting()

    async def _run_to_end(self, query: Query, task: QueryTask) -> None:
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(_LONGEST_S):
                outcome = await self._outcome(query, task)
        except TimeoutError:
            outcome, query.status = QueryOutcome(), "Timeout"
        except (OSError, msgspec.MsgspecError) as error:
            outcome = QueryOutcome(error=str(error))
        query.duration_ms = int((time.monotonic() - begun_s) * 1000)
        if query.status == "Running":
            query.outcome = outcome
            query.size_bytes = sum(len(name) + len(value) for row in outcome.results for name, value in row)
            query.status = "Complete" if outcome.error is None else "Failed"

    async def _outcome(self, query: Query, task: QueryTask) -> QueryOutcome:
        """Run the query's process to its end.

        Raises:
            OSError: the process cannot be started.
            msgspec.MsgspecError: the process was killed.
        """
        with self._spare_own_programs():
            query.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "thawd.cloudwatch.logs.query_process"),  # -P: no modules from the working folder
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr_of_children(),
                start_new_session=True,
            )
            try:
                if query.has_ended:  # it was stopped while its process started
                    query.process.kill()
                written, _ = await query.process.communicate(msgspec.json.encode(task))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    query.process.kill()
                query.process = None
        return msgspec.json.decode(written, type=QueryOutcome)

    def _forget(self) -> None:
        """Forget the oldest queries that have ended, if there are too many, or their results are too large."""
        ended = [query for query in self._queries.values() if query.has_ended]
        size = sum(query.size_bytes for query in ended)
        for query in ended[:-1]:
            if len(self._queries) <= _MOST_KEPT and size <= _KEPT_BYTES:
                break
            size -= query.size_bytes
            del self._queries[query.id]

    def find(self, identifier: str) -> Query:
        """The query with this id.

        Raises:
            LogsNotFoundException: there is none (400).
        """
        query = self._queries.get(identifier)
        if query is None:
            raise LogsNotFoundException(f"Query with id {identifier} does not exist.")
        return query

    def stop(self, identifier: str) -> None:
        """Stop a query.

        Raises:
            LogsNotFoundException: there is no such query (400).
            InvalidParameterException: the query has ended already (400).
        """
        query = self.find(identifier)
        if query.has_ended:
            raise InvalidParameterException("Query is not in running state")
        query.status = "Cancelled"
        self._waiting.pop(identifier, None)
        if query.process is not None:
            with contextlib.suppress(ProcessLookupError):
                query.process.kill()
        self._forget()

    def list(self) -> list[Query]:
        """The queries that are known, the latest first."""
        return list(self._queries.values())[::-1]

    def close(self) -> None:
        """Stop all queries, because the server ends."""
        for query in list(self._queries.values()):
            if not query.has_ended:
                self.stop(query.id)


def result_fields(result: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """One result as the API shows it."""
    return [{"field": name, "value": value} for name, value in result]
