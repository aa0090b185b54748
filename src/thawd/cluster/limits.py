"""What this machine may do as a member of its cluster: whether it may act at all, and its shares of concurrency limits.

Machines that find each other in a database exchange their shares there several times a second
(`thawd.stores.cluster.concurrency`). Guarantees:
- a machine accepts and begins nothing unless it holds its lease at that moment;
- what runs on all machines together never exceeds a limit, whichever machines come, go, are paused or cut off, as long
  as each machine ends invocations at their timeout. A machine whose thawd is paused does not: what exceeds its timeout
  there runs beside what others begin `_ENDING_S` seconds after that timeout;
- a share moves to where requests are, within about a second.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from thawd.cluster.shares import fair_share
from thawd.errors import NotMemberError
from thawd.resources import Function
from thawd.scheduling.function_entries import FunctionEntry
from thawd.stores.cluster.concurrency import Claim, Share
from thawd.stores.cluster.leases import Lease

# What it takes to end an invocation at its timeout, and to notice that it has ended.
_ENDING_S = 5.0


class Member:
    """This machine as a member: a `thawd.scheduling.function_entries.ClusterPart`. Used by the event loop only.

    Args:
        machine: name of this machine.
        membership: returns this machine's lease, if it holds it at this moment.

    Attributes:
        drained: why this machine is no member although it could be one; empty: it is to be a member.
        wake: set when shares should be exchanged soon.
    """

    def __init__(self, machine: str, membership: Callable[[], Lease | None]) -> None:
        self._machine = machine
        self._membership = membership
        self._token = 0  # token of the lease for which `_counts` were agreed
        self._counts: dict[str, int] = {}
        self._rows: Mapping[str, list[Share]] = {}
        self._denied: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._last: dict[str, Claim] = {}
        self._timeouts_s: dict[str, int] = {}  # the longest timeout of each function at the last exchange
        self._gone_s: dict[str, float] = {}  # when all invocations of a removed function have ended
        self._exchanged = asyncio.Event()
        self.drained = ""
        self.wake = asyncio.Event()

    @property
    def why_not(self) -> str | None:
        """Why this machine may accept and begin nothing at this moment; None: it may."""
        if self._membership() is not None:
            return None
        return self.drained or "this machine is cut off from its cluster"

    def require_member(self) -> None:
        """See `ClusterPart`."""
        if (why := self.why_not) is not None:
            raise NotMemberError(f"{why}, so it accepts and begins nothing; send the request to another machine")

    def share(self, function: Function) -> int:
        """See `ClusterPart`."""
        lease = self._membership()
        if lease is None or lease.token != self._token:
            return 0
        return min(self._counts.get(function.name, 0), function.reserved_concurrency or 0)

    @property
    def shares(self) -> dict[str, int]:
        """How many environments of each function with reserved concurrency may run here, as last agreed."""
        lease = self._membership()
        return dict(self._counts) if lease is not None and lease.token == self._token else {}

    def denied(self, function: str) -> None:
        """Note that a request found the share of a function used, so that the share grows."""
        self._denied[function] = self._denied.get(function, 0) + 1
        if self._denied[function] == 1:
            self.wake.set()

    def wait(self, function: str, count: int) -> None:
        """See `ClusterPart`."""
        self._waiting[function] = count

    def holders(self, function: str) -> list[str]:
        """The other machines that had a share of the function's limit when shares were last exchanged."""
        rows = self._rows.get(function, ())
        return [row.machine for row in rows if row.is_alive and row.count and row.machine != self._machine]

    def knows(self, function: str) -> bool:
        """Whether this machine's share of a function is known."""
        lease = self._membership()
        return lease is None or (lease.token == self._token and function in self._counts)

    async def until_known(self, function: str) -> None:
        """Wait until this machine's share of a function is known, if it was declared a moment ago."""
        while not self.knows(function):
            self._exchanged.clear()
            self.wake.set()
            await self._exchanged.wait()

    def claims(self, families: Iterable[FunctionEntry], lease: Lease) -> dict[str, Claim]:
        """Return this machine's claims. From now on, it uses no more than they say it holds, until `got`.

        Args:
            families: all functions.
            lease: this machine's lease.
        """
        agreed = self._counts if lease.token == self._token else {}
        claims, counts, timeouts_s = {}, {}, {}
        for family in families:
            function = family.latest.function
            limit = function.reserved_concurrency or 0
            running = family.load.environments
            timeout_s = timeouts_s[function.name] = family.longest_timeout_s
            if not limit and not running:
                continue
            each = function.most_in_environment
            waiting = family.in_flight - family.running
            in_flight = running + math.ceil(max(0, waiting - family.load.places) / each)
            unserved = self._denied.get(function.name, 0) + self._waiting.get(function.name, 0)
            wanted = in_flight + math.ceil(unserved / each)
            count = min(limit, agreed.get(function.name, 0))
            if function.name in agreed:
                alive = {row.machine: row.wanted for row in self._rows.get(function.name, ()) if row.is_alive}
                fair = fair_share(limit, {**alive, self._machine: wanted}, self._machine)
                count = min(count, max(fair, in_flight))
            counts[function.name] = count
            held = max(count, running)
            # An invocation that got its environment before the version was replaced may begin only now.
            lingers_s = max(timeout_s, self._timeouts_s.get(function.name, 0)) + _ENDING_S
            claims[function.name] = Claim(limit, held=held, wanted=wanted, lingers_s=lingers_s)
        if lease.token == self._token:
            self._counts = counts
        self._denied.clear()
        self._waiting.clear()
        self._timeouts_s = timeouts_s
        self._last = claims | self._of_removed(claims)
        return self._last

    def _of_removed(self, claims: Mapping[str, Claim]) -> dict[str, Claim]:
        """Claims of functions that were removed, whose invocations perhaps still run."""
        now_s = time.monotonic()
        removed = {name: claim for name, claim in self._last.items() if name not in claims}
        self._gone_s = {name: self._gone_s.get(name, now_s + claim.lingers_s) for name, claim in removed.items()}
        return {name: replace(claim, wanted=0) for name, claim in removed.items() if self._gone_s[name] > now_s}

    def got(self, rows: Mapping[str, list[Share]], lease: Lease) -> None:
        """Use the shares that the database has agreed to; empty: it has agreed to none."""
        if rows or lease.token == self._token:
            self._rows = rows
        counts = {name: row.count for name, found in rows.items() for row in found if row.machine == self._machine}
        if counts or lease.token != self._token:
            self._token, self._counts = lease.token, counts
        self._exchanged.set()
