"""An open SQLite file, with one thread that writes and one that reads. The writer commits waiting operations together.

Guarantees:
- When `Database.write` returns, its changes are on the disk (write-ahead log, synchronous=FULL: one fsync for the whole
  group), and in the file that has the database's name. If that file was removed or replaced while it is open, the
  writer notices before any `write` returns.
- When `Database.write` raises an exception, none of its changes are in the file that has the database's name. If the
  file was moved, the moved file may contain them.
- Reads see a snapshot and never wait for writers.

The writer and the reader are separate threads. The event loop only queues operations. It is woken once for each group
of writes, and once for each read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from thawd.errors import NoThreadError, StoreError
from thawd.stores import sqlite_file
from thawd.stores.moved_files import Whereabouts
from thawd.system import threads
from thawd.system.inline import InlineFuture

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

APPLICATION_ID = 0x74687764
"""Marks thawd's own state file: "thwd" in ASCII."""
MAX_GROUP = 1000
"""Most operations in one transaction."""
# `Database.give_space_back` returns this number of pages (16 MiB with SQLite's usual pages of 4 KiB) to the file
# system, if more pages than that, and more than the share _FREE_SHARE of all pages, are free.
_PAGES_BACK = 4096
_FREE_SHARE = 0.5


@dataclass(slots=True)
class _Job:
    """A queued operation; `loop` is None when a thread waits for it instead of a coroutine."""

    work: Work[Any]
    future: InlineFuture[Any] | concurrent.futures.Future[Any]
    loop: asyncio.AbstractEventLoop | None


@dataclass(slots=True)
class _Outcome:
    """The result or the exception of a job."""

    job: _Job
    value: Any = None
    error: Exception | None = None


class Database:
    """A SQLite file, its writer thread and its reader thread.

    An operation (`work`) is a function that takes the connection. It must not begin or end transactions, and must have
    no effect except on the connection, because it may run up to three times: when an operation of a group raises an
    exception, and when a group cannot be committed, the operations of the group are tried again. If it raises an
    exception, its own changes are undone, but not those of other operations in the group. Cancelling a caller that
    waits does not undo its operation.

    Attributes:
        path: the file.
        gauged: the number that the argument `gauge` read in the last committed transaction; 0 before the first.
        gauge_from: from which number on `gauged` must be exact; None: always. If it is set, the number may grow only by
            one for each row that a statement inserts, changes or deletes. The number is then read only in transactions
            that could leave it at `gauge_from` or above. In others, `gauged` may be out of date, but both it and the
            actual number are below `gauge_from`.
    """

    def __init__(
        self,
        path: Path,
        *,
        migrations: Sequence[str],
        application_id: int = APPLICATION_ID,
        busy_timeout_s: float = 5.0,
        gauge: Work[int] | None = None,
        is_lazy: bool = False,
    ) -> None:
        """Open the file, and create it if it is missing. Blocks for a few milliseconds.

        Args:
            path: the file.
            migrations: SQL scripts that lead from an empty file to the current schema; append only.
            application_id: marks the kind of file.
            busy_timeout_s: how long to wait for a lock that another process holds, seconds.
            gauge: reads a number at the end of each transaction, and must be quick; None: no number is read.
            is_lazy: whether a commit does not wait for the disk, so that a power cut may undo the last transactions.

        Raises:
            StoreError: the file cannot be used; the message says why and what to do.
            StoreFullError: the disk is full.
            NoThreadError: the operating system refused to start a thread.
        """
        self.path = path
        self.gauged = 0
        self.gauge_from: float | None = None
        self._gauge = gauge
        self._gauged_after: int | None = None  # the connection's `total_changes` when `gauged` was read
        connection = sqlite_file.open_writer(
            path, migrations=migrations, application_id=application_id, busy_timeout_s=busy_timeout_s
        )
        if is_lazy:
            connection.execute("PRAGMA synchronous=NORMAL")
        try:
            reader = sqlite_file.open_reader(path, busy_timeout_s=busy_timeout_s)
        except StoreError:
            connection.close()
            raise
        try:
            self._whereabouts = Whereabouts(path)
            self._misplaced = False  # whether the check after the last commit found that the file was moved or removed
            self._write = _ConnectionThread(f"{path.name}: writer", connection, self._run_writes, self._part_from_log)
        except (OSError, NoThreadError) as error:
            reader.close()
            connection.close()
            raise (sqlite_file.unusable(path, error) if isinstance(error, OSError) else error) from None
        try:
            self._read = _ConnectionThread(f"{path.name}: reader", reader, self._run_reads)
        except NoThreadError:
            reader.close()
            self._write.close()
            raise

    async def write(self, work: Work[T]) -> T:
        """Run `work` in a transaction and return its value once that is on the disk.

        Raises:
            StoreError: the changes could not be stored; none of them was, unless the file was moved (see the module's
                guarantees).
            StoreFullError: the same, because the disk is full; the next write may succeed.
        """
        return await self._await(self._write, work)

    async def read(self, work: Work[T]) -> T:
        """Run `work` on a snapshot of the committed data and return its value, which must not be a cursor.

        Raises:
            StoreError: the file could not be read.
        """
        return await self._await(self._read, work)

    def misplaced(self) -> str | None:
        """If the file, its log or the log's index was moved, removed or replaced, the message that says so; else None.

        As long as there is such a message, nothing can be stored.
        """
        try:
            self._whereabouts.require()
        except StoreError as error:
            return error.message
        return None

    @property
    def is_elsewhere(self) -> bool:
        """Whether the file was removed, moved or replaced: the next start would not find its content."""
        return self._whereabouts.is_elsewhere

    async def give_space_back(self) -> None:
        """If over half of the file and over 16 MiB are free, return 16 MiB to the file system. Call this now and then.

        Raises:
            StoreError: the file cannot be used.
        """
        if await self.read(_free_share) > _FREE_SHARE:
            await self.write(_give_pages_back)

    def write_now(self, work: Work[T]) -> T:
        """`write`, for a thread without an event loop; blocks. A `write` operation that calls it waits for ever."""
        return self._block(self._write, work)

    def read_now(self, work: Work[T]) -> T:
        """`read`, for a thread without an event loop; blocks. A `read` operation that calls it waits for ever."""
        return self._block(self._read, work)

    def close(self) -> None:
        """Finish what is queued, end the threads, close the file. Blocks; a second call does nothing."""
        # Close the writer last: SQLite copies the log into the file when the last connection closes, and the reader's
        # connection cannot write.
        self._read.close()
        self._write.close()
        self._whereabouts.close()

    async def _await(self, thread: _ConnectionThread, work: Work[T]) -> T:
        loop = asyncio.get_running_loop()
        future: InlineFuture[T] = InlineFuture(loop)
        self._submit(thread, _Job(work, future, loop))
        return await future

    def _block(self, thread: _ConnectionThread, work: Work[T]) -> T:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._submit(thread, _Job(work, future, None))
        return future.result()

    def _submit(self, thread: _ConnectionThread, job: _Job) -> None:
        if not thread.submit(job):
            raise StoreError(f"{self.path} is closed, because thawd is shutting down")

    def _run_writes(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        try:
            if self._misplaced:
                self._whereabouts.require()
            outcomes = self._commit(connection, jobs)
            self._misplaced = True
            self._whereabouts.require()  # checked before any caller gets its result
            self._misplaced = False
        except StoreError as error:
            outcomes = [_Outcome(job, error=StoreError(error.message)) for job in jobs]
        _deliver(outcomes)

    def _commit(
        self, connection: sqlite3.Connection, jobs: list[_Job], *, has_savepoints: bool = False, last_try: bool = False
    ) -> list[_Outcome]:
        """Run operations in a transaction.

        Args:
            jobs: the operations.
            has_savepoints: whether each operation has a savepoint. They take as long as the statements of a small
                operation, so they are made only after an operation of the group has raised an exception.
            last_try: whether the operations fail if the transaction does.
        """
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            return [_Outcome(job, error=self._explained(error)) for job in jobs]
        have_run = False
        try:
            if len(jobs) == 1:
                outcomes = [self._only(connection, jobs[0])]
            elif has_savepoints:
                outcomes = [self._step(connection, job) for job in jobs]
            else:
                outcomes = [self._run(connection, job) for job in jobs]
            have_run = True
            if len(jobs) > 1 or outcomes[0].error is None:
                gauged, gauged_after = self._read_gauge(connection)
                connection.execute("COMMIT")
                self.gauged, self._gauged_after = gauged, gauged_after  # set before any caller gets its result
        except BaseException as error:
            # On a full disk, SQLite may undo the whole transaction, not only the operation that failed. Source:
            # sqlite.org/lang_transaction.html, "Response To Errors Within A Transaction".
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if last_try:
                return [_Outcome(job, error=self._explained(error)) for job in jobs]
        else:
            return outcomes
        if not have_run and len(jobs) > 1 and not has_savepoints:
            return self._commit(connection, jobs, has_savepoints=True)
        self._make_room(connection)
        return [outcome for job in jobs for outcome in self._commit(connection, [job], last_try=True)]

    def gauge_at_most(self, connection: sqlite3.Connection) -> float:
        """An upper bound of the number that `gauge` would read now. To be called by an operation of `write`.

        Unlike `gauge`, this executes no statement. Every statement makes the writer wait for the event loop's thread a
        few times, because it releases the interpreter's lock (GIL).
        """
        if self._gauged_after is None:
            return math.inf
        # SQLite counts with 32 bits: after 2,147,483,647 changes, it goes on at -2,147,483,648.
        return self.gauged + (connection.total_changes - self._gauged_after) % (1 << 32)

    def _read_gauge(self, connection: sqlite3.Connection) -> tuple[int, int | None]:
        if self._gauge is None:
            return 0, None
        if self.gauge_from is not None and self.gauge_at_most(connection) < self.gauge_from:
            return self.gauged, self._gauged_after
        try:
            return self._gauge(connection), connection.total_changes
        except sqlite3.Error:
            # The gauge may read a damaged page that no operation has read. That must not make the operations fail.
            return self.gauged, None

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """Copy the log into the file, so that the log can be reused from its beginning.

        On a full disk the log cannot grow, and without this even finished events could not be deleted.
        """
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()

    def _only(self, connection: sqlite3.Connection, job: _Job) -> _Outcome:
        """Run the only operation of a transaction. If it fails, the transaction ends, so no savepoint is needed."""
        try:
            return _Outcome(job, job.work(connection))
        except BaseException as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK")
            return _Outcome(job, error=self._explained(error))

    def _run(self, connection: sqlite3.Connection, job: _Job) -> _Outcome:
        """Run one of several operations without a savepoint. The transaction is undone if it raises an exception."""
        outcome = _Outcome(job, job.work(connection))
        if not connection.in_transaction:
            raise sqlite3.OperationalError("an operation has ended the transaction")
        return outcome

    def _step(self, connection: sqlite3.Connection, job: _Job) -> _Outcome:
        connection.execute("SAVEPOINT work")
        try:
            outcome = _Outcome(job, job.work(connection))
        except BaseException as error:
            # Any exception of an operation goes to that operation's caller; the writer thread must continue.
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO work")
            outcome = _Outcome(job, error=self._explained(error))
        connection.execute("RELEASE work")
        return outcome

    def _part_from_log(self, connection: sqlite3.Connection) -> None:
        """If the file was moved away, copy the log into it, and remove the log from the file's old folder.

        SQLite does neither when it closes such a file. The next start would then apply the log to any other file that
        has the database's name by then.
        Source: sqlite3, pager.c, `sqlite3PagerClose` and `databaseIsUnmoved`.
        """
        if not self._whereabouts.is_elsewhere:
            return
        folded = False
        with contextlib.suppress(sqlite3.Error):
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            folded = not busy
        self._whereabouts.take_log_away(folded=folded)

    def _run_reads(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        for job in jobs:
            try:
                connection.execute("BEGIN")
                outcome = _Outcome(job, job.work(connection))
            except BaseException as error:
                outcome = _Outcome(job, error=self._explained(error))
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            # Deliver each result at once, because a quick read must not wait for a long one behind it.
            _deliver([outcome])

    def _explained(self, error: BaseException) -> Exception:
        if isinstance(error, sqlite3.Error):
            explained: Exception = sqlite_file.explain(self.path, error)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            return error
        else:
            # A future cannot carry a StopIteration, and any other BaseException would end the caller's event loop.
            explained = RuntimeError(f"a database operation raised {error!r}")
        explained.__cause__ = error
        return explained


def _free_share(connection: sqlite3.Connection) -> float:
    """The share of free pages in the file; 0 if at most _PAGES_BACK are free, because SQLite will reuse these."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    return float(free / pages) if free > _PAGES_BACK else 0.0


def _give_pages_back(connection: sqlite3.Connection) -> None:
    # One page for each statement: each step of this pragma frees one page, but Python's sqlite3 module runs only one
    # step of a statement that returns no columns.
    for _ in range(_PAGES_BACK):
        connection.execute("PRAGMA incremental_vacuum(1)")


class _ConnectionThread:
    """A thread with its own connection, and the queue of its jobs."""

    def __init__(
        self,
        name: str,
        connection: sqlite3.Connection,
        run: Callable[[sqlite3.Connection, list[_Job]], None],
        end: Callable[[sqlite3.Connection], None] = lambda connection: None,
    ) -> None:
        self._connection = connection
        self._run = run
        self._end = end
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        threads.start(self._thread)

    def submit(self, job: _Job) -> bool:
        """Queue `job`; False when `close` was called."""
        with self._lock:
            if self._closed:
                return False
            self._queue.put(job)
        return True

    def close(self) -> None:
        with self._lock:
            already = self._closed
            self._closed = True
            if not already:
                self._queue.put(None)
        self._thread.join()

    def _main(self) -> None:
        ending = False
        while not ending:
            jobs, ending = self._take()
            if jobs:
                self._run(self._connection, jobs)
        self._end(self._connection)
        self._connection.close()

    def _take(self) -> tuple[list[_Job], bool]:
        """Wait for a job, then take the waiting jobs, up to MAX_GROUP; returns them, and whether `close` was called."""
        jobs: list[_Job] = []
        job = self._queue.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == MAX_GROUP:
                return jobs, False
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True


def _deliver(outcomes: list[_Outcome]) -> None:
    """Set the results of jobs: directly for waiting threads, and with a single wake-up of each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        if outcome.job.loop is None:
            _resolve([outcome])
        else:
            by_loop.setdefault(outcome.job.loop, []).append(outcome)
    for loop, of_loop in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, of_loop)
        except RuntimeError:
            # The loop is closed, so nothing waits there any more.
            pass


def _resolve(outcomes: list[_Outcome]) -> None:
    for outcome in outcomes:
        future = outcome.job.future
        if future.done():
            continue
        if outcome.error is not None:
            future.set_exception(outcome.error)
        elif isinstance(future, InlineFuture):
            future.set_result_now(outcome.value)  # this is a callback of the event loop
        else:
            future.set_result(outcome.value)
