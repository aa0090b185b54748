"""Runs each request on the machine that placement chooses: on this one, or forwarded to another.

Guarantees:
- a request is forwarded at most once: the machine that gets it runs it or refuses it;
- a request that was refused, or that could not be sent, runs elsewhere or here. One that was sent and not answered is
  never sent again: the caller gets an error, as of any failure of the platform, and decides;
- a request runs on another machine only if the version there has the same identifier;
- the request's id, deadline, trace header, client context and log tail are the same as without a forward.

Requests to functions that separate tenants, and to aliases with several versions, run where they enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from thawd.cluster import channel
from thawd.cluster.held_requests import HeldRequests
from thawd.cluster.identity import Identities
from thawd.cluster.limits import Member
from thawd.cluster.links import Links, MayHaveRunError, NotRunError
from thawd.cluster.listening import Host, error_of, invocation_head, result_of
from thawd.cluster.machine_index import MachineIndex, Summary
from thawd.cluster.placement import Demand, Placement, Strategy
from thawd.cluster.questions import Question, answer
from thawd.environments.version import Version
from thawd.errors import NotMemberError, ResourceNotFoundException, ServiceException
from thawd.invocation import Invocation, Result
from thawd.resources import Function
from thawd.scheduling.dispatcher import Dispatcher
from thawd.scheduling.function_entries import FunctionEntry, VersionEntry
from thawd.scheduling.pool import Pool
from thawd.scheduling.room import Room
from thawd.system.inline import in_task
from thawd.system.retry import SayOnce

OTHER_VERSION = "it does not have this version"
_TRIES = 3
_IMAGES_S = 1.0
_SHARE_S = 2.0


@dataclass(slots=True)
class ForwardCounts:
    """How many requests were forwarded, refused by other machines, and lost with another machine.

    Attributes:
        forwarded: requests that another machine has answered.
        refused: times that a machine refused a request, or could not be reached.
        lost: requests that may have run on a machine that was lost.
        accepted: requests that this machine has run for others.
    """

    forwarded: int = 0
    refused: int = 0
    lost: int = 0
    accepted: int = 0


class ClusterDispatcher(Dispatcher):
    """A dispatcher that forwards requests.

    Attributes:
        forward: forwards a request if another machine is to run it; returns None if it is to run here.
        on_ended: called when a request has ended here.
        member: what this machine may do, if machines find each other in a database.
    """

    forward: Callable[[Invocation], Awaitable[Result | None]] | None = None
    on_ended: Callable[[Invocation], None] = staticmethod(lambda invocation: None)
    member: Member | None = None

    def declare(self, functions: Mapping[str, Function]) -> None:
        """Make `functions` the declared functions; see `Dispatcher.declare`."""
        super().declare(functions)
        for family in self._families.values():
            family.cluster = self.member

    def families(self) -> list[FunctionEntry]:
        """Return all functions with their versions."""
        return list(self._families.values())

    @property
    def room(self) -> Room:
        """The room on this machine."""
        return self._room

    def thawable(self) -> list[Version]:
        """Return the versions whose snapshot is on this machine."""
        return [version for version in self.versions() if self._spawner.origin(version).frozen is not None]

    @property
    def most_waiting(self) -> int:
        """Highest number of requests of a version that wait."""
        return self._max_waiting

    async def _run_here(self, invocation: Invocation) -> Result:
        try:
            return await super().invoke(invocation)
        finally:
            self.on_ended(invocation)

    async def invoke(self, invocation: Invocation) -> Result:
        """Run `invocation` here or elsewhere; see `Dispatcher.invoke`."""
        if self.member is not None:
            self.member.require_member()
        if self.forward is None or invocation.forwarded:
            return await self._run_here(invocation)
        self._in_flight += 1
        self._idle.clear()
        try:
            try:
                result = await self.forward(invocation)
            finally:
                self._in_flight -= 1
            # `_idle` is not set in between: `drain` would end, and the request with it.
            return await self._run_here(invocation) if result is None else result
        finally:
            if not self._in_flight:
                self._idle.set()


class Router(Host):
    """Decides where requests run, and forwards them.

    Args:
        own: name of this machine.
        dispatcher: runs requests here.
        index: the machines that are alive.
        links: connections to the other machines, by name; filled before the first request.
        key: the cluster's key.
        strategy: see `Placement`.
        zone: this machine's zone.
        labels: this machine's labels.
        report: called with a line for the operator.

    Attributes:
        links: connections to the other machines, by name.
        counts: what happened to requests.
        questions: answers questions of other machines, by name.
        answered_in_parts: answers those questions whose answers are sent in parts.
        draining: whether this machine takes no more requests of others.
        leaves: whether requests that enter here run on other machines.
        still_serves: whether a request that enters here while this machine leaves runs here if no other machine can run
            it, for example because all others have another version of thawd.
        kept_s: when such a request entered last, ``time.monotonic()`` seconds.
    """

    def __init__(  # noqa: PLR0913 - what a machine is
        self,
        own: str,
        dispatcher: ClusterDispatcher,
        index: MachineIndex,
        *,
        key: str,
        strategy: Strategy,
        zone: str = "",
        labels: dict[str, str] | None = None,
        report: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._reports = SayOnce(report)
        self.links: dict[str, Links] = {}
        self.counts = ForwardCounts()
        self.questions: Mapping[str, Question] = {}
        self.answered_in_parts: Mapping[str, Callable[[], AsyncGenerator[bytes]]] = {}
        self.draining = False
        self.leaves = False
        self.still_serves = False
        self.kept_s = 0.0
        self._own = own
        self._dispatcher = dispatcher
        self._index = index
        self._identities = Identities(key)
        self._placement = Placement(own, index, strategy=strategy, draw=random.random)
        self._zone = zone
        self._labels = labels or {}
        self._images: frozenset[str] = frozenset()
        self._images_s = -_IMAGES_S
        self._held = HeldRequests()
        dispatcher.on_ended = self._ended_here

    async def forward(self, invocation: Invocation) -> Result | None:
        """Forward a request if another machine is to run it. None: it is to run here, and has not run.

        Raises:
            ServiceException: the other machine was lost, and the request may have run (500).
            NotMemberError: this machine is being drained, and no other machine runs the request (503).
            ThawdError: the other machine's answer is an error.
        """
        is_first = False
        while (result := await self._placed(invocation)) is None and (identity := self._held_as(invocation)):
            await in_task()
            await self._held.wait(identity, until_s=invocation.queue_deadline, is_first=is_first)
            is_first = True
        if result is None and self.leaves:
            if self.still_serves:
                self.kept_s = time.monotonic()
                return None
            raise NotMemberError(
                "this machine is being drained, and no other machine could run the request; send it to another one"
            )
        return result

    async def _placed(self, invocation: Invocation) -> Result | None:
        """Forward a request if placement chooses another machine. None: it has not run.

        Raises:
            ThawdError: as `forward`.
        """
        family = self._dispatcher.family(invocation.function, invocation.qualifier)
        entry = _only_version(family, invocation.qualifier)
        pool = None if entry is None else entry.pool
        await self._until_share_known(family)
        if entry is None or pool is None or pool.version.function.tenants:
            self._note_denied(family)
        else:
            is_busy = family.is_full(entry) or not self._begins_now(pool)
            if is_busy or self.leaves:
                return await self._forwarded(invocation, family, entry, pool)
        return None

    def _held_as(self, invocation: Invocation) -> str | None:
        """The identifier of the version if a request that would wait here is held, because it may run elsewhere sooner.

        Events are not: they wait in their own queue.
        """
        family = self._dispatcher.family(invocation.function, invocation.qualifier)
        entry = _only_version(family, invocation.qualifier)
        pool = None if entry is None else entry.pool
        member = self._dispatcher.member
        if entry is None or pool is None or pool.version.function.tenants or invocation.asynchronous or self._stops:
            return None
        if family.is_full(entry):
            return None  # it is throttled
        if (member is not None and member.why_not is not None) or time.monotonic() >= invocation.queue_deadline:
            return None
        busy, waiting = pool.counts()["busy"], pool.waiting
        if not 0 < busy <= waiting or waiting + len(self._held) >= self._dispatcher.most_waiting:
            return None
        free_environments, free_mb = self._free()
        is_full = free_environments <= 0 or free_mb < pool.version.function.memory_mb
        return self._identities.of(pool.version) if is_full and len(self._index) > 1 else None

    def _ended_here(self, invocation: Invocation) -> None:
        """Let a held request go on, because one has ended here."""
        if self._held:
            with contextlib.suppress(ResourceNotFoundException):
                family = self._dispatcher.family(invocation.function, invocation.qualifier)
                entry = _only_version(family, invocation.qualifier)
                if entry is not None and entry.pool is not None:
                    self._held.wake(self._identities.of(entry.pool.version))

    def _note_denied(self, family: FunctionEntry) -> None:
        """If a request that runs nowhere else finds the share of this machine used, let the share grow."""
        member = self._dispatcher.member
        if member is not None and family.is_full(family.latest):
            member.denied(family.latest.function.name)

    async def _until_share_known(self, family: FunctionEntry) -> None:
        """Wait until this machine's share of a limit is known, for two seconds at most."""
        member, name = self._dispatcher.member, family.latest.function.name
        if member is not None and family.latest.function.reserved_concurrency and not member.knows(name):
            await in_task()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SHARE_S):
                    await member.until_known(name)

    async def _forwarded(
        self, invocation: Invocation, family: FunctionEntry, entry: VersionEntry, pool: Pool
    ) -> Result | None:
        """Forward a request that cannot begin here now. None: it is to run here after all.

        Raises:
            ThawdError: as `forward`.
        """
        identity = self._identities.of(pool.version)
        if not pool.counts()["idle"]:
            self._index.has_no_idle(self._own, identity)
        lacking_room: set[str] = set()
        refusing: set[str] = set()
        for _ in range(_TRIES):
            must_leave = family.is_full(entry) or self.leaves  # either may be so since the last try
            excluded = lacking_room | refusing | ({self._own} if must_leave else set())
            demand = Demand(identity, pool.version.function.memory_mb, excluded=frozenset(excluded))
            machine = self._placement.place(demand, time.monotonic()).machine
            if machine == self._own and must_leave:
                machine = self._with_share(invocation.function, refusing)
            if machine == self._own:
                return None
            await in_task()
            try:
                result = await self._send(machine, invocation, identity, may_wait=must_leave)
            except NotRunError as error:
                self._refused(machine, invocation, error)
                (refusing if must_leave else lacking_room).add(machine)
                continue
            self.counts.forwarded += 1
            self._index.ended(machine, identity)
            self._held.wake(identity)
            return result
        return None

    def _with_share(self, function: str, refusing: set[str]) -> str:
        """A machine where a share of the function's limit may be left, so that the request waits there.

        This machine's own share is used; if no other machine comes into question, it is this one.
        """
        others = self._index.others(refusing | {self._own}, time.monotonic())
        member = self._dispatcher.member
        if member is not None:
            member.denied(function)
            holders = set(member.holders(function))
            others = [name for name in others if name in holders] or others
        return random.choice(others) if others else self._own

    def _refused(self, machine: str, invocation: Invocation, error: NotRunError) -> None:
        self.counts.refused += 1
        if OTHER_VERSION in str(error):
            line = f"thawd: {machine} has another version of {invocation.function}, or another file in its code"
            self._reports.say(f"{line}, so no request for it is forwarded there", topic=machine)

    async def _send(self, machine: str, invocation: Invocation, identity: str, *, may_wait: bool) -> Result:
        links = self.links.get(machine)
        if links is None:
            raise NotRunError(f"this machine does not know the machine {machine}")
        head = invocation_head(invocation, identity, now_s=time.monotonic(), may_wait=may_wait)
        try:
            reply = await links.call(head, invocation.payload, invocation.stream)
        except MayHaveRunError as error:
            self.counts.lost += 1
            raise ServiceException(
                f"{error} while it ran request {invocation.request_id}; it is unknown whether the function has run. "
                "Invoke it again if it may run twice."
            ) from None
        if reply.kind == channel.ERROR:
            raise error_of(reply.head)
        result = result_of(reply.head, reply.body)
        invocation.trace_id = reply.head["trace_id"]
        if invocation.stream is not None:
            invocation.stream.executed_version = result.executed_version
        return result

    def why_refused(self, invocation: Invocation, identity: str, *, may_wait: bool) -> str | None:
        """Return why a forwarded request does not run here now; None: it does (`Host`)."""
        if self._stops:
            return "it is stopping"
        if self._dispatcher.member is not None and (why := self._dispatcher.member.why_not) is not None:
            return why
        try:
            family = self._dispatcher.family(invocation.function, invocation.qualifier)
            entry = _only_version(family, invocation.qualifier)
        except ResourceNotFoundException:
            entry = None
        pool = None if entry is None else entry.pool
        if entry is None or pool is None or self._identities.of(pool.version) != identity:
            return OTHER_VERSION
        if family.is_full(entry):
            return "its share of the function's reserved concurrency is used"
        accepts = may_wait or self._begins_now(pool) or self._has_room(pool)
        return None if accepts else "it has no room"

    def _has_room(self, pool: Pool) -> bool:
        free_environments, free_mb = self._free()
        return free_environments > 0 and free_mb >= pool.version.function.memory_mb and not pool.waiting

    async def run(self, invocation: Invocation) -> Result:
        """Run a forwarded request here (`Host`)."""
        self.counts.accepted += 1
        return await self._dispatcher.invoke(invocation)

    async def tell(self, question: str, arguments: Mapping[str, str]) -> bytes:
        """Answer a question of another machine (`Host`)."""
        return await answer(self.questions, question, arguments)

    def tell_parts(self, question: str) -> AsyncGenerator[bytes] | None:
        """Answer a question of another machine in parts (`Host`)."""
        told = self.answered_in_parts.get(question)
        return None if told is None else told()

    def heard(self, machine: str, summary: Summary) -> None:
        """Use the summary of another machine (`Host`)."""
        self._index.update(machine, summary, time.monotonic())
        for identity, count in summary.idle.items():
            self._held.wake(identity, count)

    def tick(self) -> None:
        """Have held requests look for an environment from time to time, in case a notice was lost; call it often."""
        member = self._dispatcher.member
        holds = not self._stops and (member is None or member.why_not is None)
        self._held.wake_each(1 if holds else len(self._held))

    @property
    def held(self) -> int:
        """How many requests are held: they wait until this or another machine can run them."""
        return len(self._held)

    @property
    def _stops(self) -> bool:
        return self._dispatcher.stopping or self.draining or self.leaves

    def lost(self, machine: str) -> None:
        """Place no more requests on a machine that has gone (`Host`)."""
        self._index.remove(machine)

    def summary(self) -> Summary:
        """Return this machine's summary."""
        idle: dict[str, int] = {}
        for occupant in self._dispatcher.room.occupied():
            version = occupant.version
            if isinstance(occupant, Pool) and not version.function.tenants and self._has_share(occupant):
                count = occupant.counts()["idle"]
                if count and not occupant.waiting:
                    idle[self._identities.of(version)] = count
        free_environments, free_mb = self._free()
        member = self._dispatcher.member
        is_busy = bool(self._dispatcher.room.cores.waiting)
        return Summary(
            idle={} if is_busy else idle,
            images=self._held_images(),
            free_environments=free_environments,
            free_mb=free_mb,
            labels=self._labels,
            zone=self._zone,
            draining=self.draining or self.leaves or (member is not None and member.why_not is not None),
        )

    def _held_images(self) -> frozenset[str]:
        """The versions with a snapshot here. They are looked up once a second, because there may be thousands."""
        now_s = time.monotonic()
        if now_s - self._images_s >= _IMAGES_S:
            self._images_s = now_s
            self._images = frozenset(map(self._identities.of, self._dispatcher.thawable()))
        return self._images

    def _has_share(self, pool: Pool) -> bool:
        """Whether the function may run another invocation on this machine."""
        version = pool.version
        try:
            family = self._dispatcher.family(version.function.name)
        except ResourceNotFoundException:
            return False
        entry = family.find(version.number)
        return entry is not None and entry.pool is pool and not family.is_full(entry)

    def _begins_now(self, pool: Pool) -> bool:
        """Whether a request of the version would begin immediately, in an idle environment."""
        return bool(pool.counts()["idle"]) and not pool.waiting and not self._dispatcher.room.cores.waiting

    def _free(self) -> tuple[int, int]:
        """How many more environments may start, and how much memory is left for them, MiB.

        Idle environments count as free, because they can be ended.
        """
        room = self._dispatcher.room
        if not room.cores.carries_start():
            return 0, 0
        environments, memory_mb = room.max_environments, room.memory_mb
        for occupant in room.occupied():
            if isinstance(occupant, Pool):
                counts = occupant.counts()
                used = counts["busy"] + counts["starting"]
                environments -= used
                memory_mb -= used * occupant.version.function.memory_mb
        return environments, max(0, memory_mb)


def _only_version(family: FunctionEntry, qualifier: str | None) -> VersionEntry | None:
    """The version that a qualifier names; None if there is none, or if an alias chooses among several."""
    if qualifier is not None and len(family.aliases.get(qualifier, ())) > 1:
        return None
    return family.find(qualifier)
