"""The cluster's database for code that runs in the event loop: a few threads, each with its own session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from thawd.resources import StoreUrl
from thawd.stores import threads
from thawd.stores.cluster import machines
from thawd.stores.cluster.machines import Machine
from thawd.stores.cluster.sessions import ANSWER_S, Session

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

T = TypeVar("T")


class ClusterDatabase:
    """The cluster's database.

    Args:
        url: the database, which `thawd.stores.cluster.schema.prepare` has prepared.
        connections: most connections at the same time.

    Raises:
        NoThreadError: the operating system refused to start a thread (HTTP 503).
    """

    def __init__(self, url: StoreUrl, *, connections: int = 2) -> None:
        self._url = url
        self._local = threading.local()
        self._lock = threading.Lock()  # protects `_sessions`
        self._sessions: list[Session] = []
        self._threads = threads.StoreThreads(connections, store=f"the cluster's database {url}")

    @property
    def opened(self) -> int:
        """How many connections were opened. If this grows, the database was perhaps replaced by a copy of it."""
        with self._lock:
            return sum(session.opened for session in self._sessions)

    async def run(self, work: Callable[[PatientConnection], T], *, patience_s: float = ANSWER_S) -> T:
        """`Session.run` in another thread, for at most `patience_s` seconds. `work` may be repeated.

        Raises:
            UnknownOutcomeError: the database did not answer in time.
            StoreError: the database refused, or could not be reached.
        """
        until = time.monotonic() + patience_s
        return await self._threads.run(lambda: self._session().run(work, until=until))

    async def transact(self, work: Callable[[PatientConnection], T], *, patience_s: float = ANSWER_S) -> T:
        """`Session.transact` in another thread, for at most `patience_s` seconds.

        Raises:
            UnknownOutcomeError: it is unknown whether the transaction happened.
            StoreError: nothing was changed: the database refused, or could not be reached.
        """
        until = time.monotonic() + patience_s
        return await self._threads.run(lambda: self._session().transact(work, until=until))

    async def living(self) -> list[Machine]:
        """The machines that are alive, in the order of their names.

        Raises:
            StoreError: the database could not be reached.
        """
        return await self.run(machines.living)

    def close(self, *, until: float | None = None) -> bool:
        """Close all connections. Running operations fail soon. Blocks.

        Args:
            until: when to stop waiting for them, ``time.monotonic()`` seconds; None: after `threads.PATIENCE_S`.

        Returns:
            Whether all operations have ended.
        """
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.break_off()
        ended = self._threads.close(until=threads.patience_over() if until is None else until)
        for session in sessions if ended else ():
            session.close()
        return ended

    def _session(self) -> Session:
        session: Session | None = getattr(self._local, "session", None)
        if session is None:
            self._local.session = session = Session(self._url)
            with self._lock:
                self._sessions.append(session)
        return session
