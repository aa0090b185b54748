"""The thread that renews the leases of a process, and takes the leases that the process wants and nobody holds.

A process has one `LeaseThread`. Its first lease is that of its machine; without it, the thread takes no other lease, so
a machine that is cut off leads nothing. The thread has its own connection, and a busy event loop does not delay it.

`Lease.is_held` is exact at any time. The callbacks come from the thread: `on_gained` right after a lease was taken,
`on_lost` when the thread notices that a lease has ended, up to two seconds later. They must return quickly and must not
raise.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thawd.errors import StoreError
from thawd.resources import StoreUrl
from thawd.stores.cluster import leases, machines, schema
from thawd.stores.cluster.leases import DURATION_S, Lease
from thawd.stores.cluster.sessions import Session
from thawd.system import threads
from thawd.system.retry import SayOnce

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

# A lease is renewed, and a free one noticed, this number of times during the length of a lease.
_TURNS = 6


@dataclass(slots=True)
class _Wish:
    """A lease that this process wants, and what to call when it gets or loses the lease."""

    on_gained: Callable[[Lease], object]
    on_lost: Callable[[Lease], object]
    lease: Lease | None = None


class LeaseThread:
    """Keeps the leases of one process.

    Args:
        url: the cluster's database, which `thawd.stores.cluster.schema.prepare` has prepared.
        machine: this machine.
        holder: identifies this process among all processes of all machines, also after a restart.
        duration_s: how long a lease lasts without renewal, seconds; the same on all machines.
        report: gets a line for the operator when the database cannot be reached, and when it can be reached again.

    Attributes:
        summary: up to a few KiB that other machines get from `machines.living`; sent at the next turn of the thread.
    """

    def __init__(
        self,
        url: StoreUrl,
        machine: machines.Identity,
        *,
        holder: str,
        duration_s: float = DURATION_S,
        report: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._url = url
        self._machine = machine
        self._holder = holder
        self._duration_s = duration_s
        self._reports = SayOnce(report)
        self._session = Session(url)
        self._lock = threading.Lock()  # protects `_wishes`
        self._wishes: dict[str, _Wish] = {}
        self._own = machines.lease_name(machine.name)
        self._wake = threading.Event()
        self._ending = False
        self._is_retired = False
        self._thread = threading.Thread(target=self._main, name="leases", daemon=True)
        self.summary = b""

    def start(self, *, on_gained: Callable[[Lease], object], on_lost: Callable[[Lease], object]) -> None:
        """Start the thread. The arguments are called when this machine becomes a member, and when it is none any more.

        Raises:
            NoThreadError: the thread could not be started (HTTP 503).
        """
        self._wishes[self._own] = _Wish(on_gained, on_lost)
        threads.start(self._thread)

    @property
    def membership(self) -> Lease | None:
        """The machine's own lease; None: this machine is no member at this moment, and must accept nothing."""
        return self.lease(self._own)

    def lease(self, name: str) -> Lease | None:
        """The lease `name`, if this process holds it at this moment."""
        wish = self._wishes.get(name)
        lease = None if wish is None else wish.lease
        return lease if lease is not None and lease.is_held else None

    def want(
        self,
        name: str,
        *,
        on_gained: Callable[[Lease], object] = lambda lease: None,
        on_lost: Callable[[Lease], object] = lambda lease: None,
    ) -> None:
        """Take the lease `name` whenever nobody holds it, and renew it, until `give_up` or `close`.

        After a lease was lost, the next one has another token.
        """
        with self._lock:
            self._wishes[name] = _Wish(on_gained, on_lost)
        self._wake.set()

    def give_up(self, name: str) -> None:
        """Want the lease `name` no longer. If this process holds it, stop acting for it first. Blocks for a moment.

        If the database cannot be reached, the lease ends when its time is over.
        """
        with self._lock:
            wish = self._wishes.pop(name, None)
        if wish is None or wish.lease is None:
            return
        lease, wish.lease = wish.lease, None
        lease.ends_s = 0.0
        self._release([lease])

    def retire(self) -> None:
        """Give all leases back, and take none until `resume`. Stop acting for them first. Blocks for a moment."""
        with self._lock:
            self._is_retired = True
            wishes = [wish for wish in self._wishes.values() if wish.lease is not None]
            held = [wish.lease for wish in wishes if wish.lease is not None]
            for wish in wishes:
                wish.lease = None
        for lease in held:
            lease.ends_s = 0.0
        self._release(held)

    def resume(self) -> None:
        """Take leases again after `retire`."""
        self._is_retired = False
        self._wake.set()

    def close(self) -> None:
        """End the thread and release all leases, so that other machines take over at once. Stop acting for them first.

        Blocks, for two seconds at most if the database cannot be reached.
        """
        self._ending = True
        self._session.break_off()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._session.close()
        with self._lock:
            held = [wish.lease for wish in self._wishes.values() if wish.lease is not None]
            self._wishes.clear()
        for lease in held:
            lease.ends_s = 0.0
        self._release(held)

    def _release(self, held: list[Lease]) -> None:
        session = Session(self._url)
        with contextlib.suppress(StoreError):
            if held:
                session.run(
                    lambda connection: leases.release(connection, held, holder=self._holder),
                    until=time.monotonic() + 2,
                )
        session.close()

    def _main(self) -> None:
        pause_s = self._duration_s / _TURNS
        while not self._ending:
            self._wake.clear()
            begun = time.monotonic()
            try:
                # A request that takes longer than until the end of the earliest lease helps no lease.
                self._session.run(self._turn, until=begun + self._patience_s())
                self._reports.resolved(f"thawd: {self._url} answers again")
            except StoreError as error:
                if not self._ending:
                    line = f"thawd: the leases of this machine could not be renewed: {error.message}"
                    self._reports.say(line, cause=type(error).__name__)
            self._notice_ends()
            self._wake.wait(max(0.0, begun + pause_s - time.monotonic()))

    def _patience_s(self) -> float:
        held = [wish.lease.left_s for wish in self._copied() if wish.lease is not None]
        return max(self._duration_s / _TURNS, min(held, default=self._duration_s))

    def _turn(self, connection: PatientConnection) -> None:
        """Renew what is held, then take what is free."""
        if self._is_retired:
            return
        held = [wish.lease for wish in self._copied() if wish.lease is not None]
        if held:
            _, lost = leases.renew(connection, held, holder=self._holder, duration_s=self._duration_s)
            for lease in lost:
                self._lose(lease)
        if self.membership is None:
            self._take(connection, [self._own])
        member = self.membership
        if member is None:
            for wish in self._copied():
                if wish.lease is not None:
                    self._lose(wish.lease)
            return
        machines.store(connection, self._machine, token=member.token, summary=self.summary)
        with self._lock:
            missing = [name for name, wish in self._wishes.items() if wish.lease is None]
        if missing:
            self._take(connection, missing)

    def _take(self, connection: PatientConnection, names: list[str]) -> None:
        unwanted = []
        taken = leases.take(connection, names, holder=self._holder, duration_s=self._duration_s)
        if self._own in names and taken:
            self._require_known_tables(connection, taken)
        for lease in taken:
            with self._lock:
                wish = None if self._is_retired else self._wishes.get(lease.name)
                if wish is not None:
                    wish.lease = lease
            if wish is None:
                unwanted.append(lease)  # `give_up` or `retire` was called in the meantime
            else:
                wish.on_gained(lease)
        if unwanted:
            leases.release(connection, unwanted, holder=self._holder)

    def _require_known_tables(self, connection: PatientConnection, taken: list[Lease]) -> None:
        """Give the leases back if a newer thawd has changed the tables while this machine was cut off.

        Contractions look for older machines, and hold a lock on the leases. So one that did not see this lease has
        ended now.

        Raises:
            StoreError: this thawd cannot use the tables any more.
        """
        try:
            schema.require_known(connection, self._url)
        except StoreError:
            leases.release(connection, taken, holder=self._holder)
            raise

    def _notice_ends(self) -> None:
        for wish in self._copied():
            if wish.lease is not None and not wish.lease.is_held:
                self._lose(wish.lease)

    def _lose(self, lease: Lease) -> None:
        lease.ends_s = 0.0
        with self._lock:
            wish = self._wishes.get(lease.name)
            if wish is None or wish.lease is not lease:
                return
            wish.lease = None
        wish.on_lost(lease)

    def _copied(self) -> list[_Wish]:
        with self._lock:
            return list(self._wishes.values())
