"""Builds what one look at a whole cluster needs: answers to the other machines' questions, and an overview of all."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

import msgspec

from thawd import __version__
from thawd.cluster import own_state
from thawd.cluster.forwarding import ClusterDispatcher
from thawd.cluster.overview import MachineReport, Overview, SeenMachine
from thawd.cluster.questions import Asker, Question, order_name
from thawd.config import Settings
from thawd.config.options.functions import LOG_GROUP
from thawd.errors import InvalidParameterValueException, ResourceNotFoundException, StoreError
from thawd.gateway.application import StatusDocument
from thawd.gateway.thawd_api.machines import MachinesApi
from thawd.gateway.thawd_api.queue import Change, changes_of
from thawd.queue.operator_view import MAX_PAGE, OperatorView
from thawd.recording.minute_counts import failures_in
from thawd.recording.records import Records
from thawd.scheduling.pool import Pool
from thawd.server.assembly.cluster import ClusterSubsystem
from thawd.server.assembly.execution import ExecutionSubsystem
from thawd.server.backup import SENT_COPY, copy_into
from thawd.stores.invocations.record_queries import Filter
from thawd.stores.invocations.record_rows import InvocationRow
from thawd.telemetry.logs.groups import path_of_group
from thawd.telemetry.logs.pages import last_page, next_page
from thawd.window.elsewhere import Elsewhere, RecordElsewhere
from thawd.window.machines_table import page_of

_REPORT_S = 2.0
_SAME_REPORT_S = 0.5
_SAME_FAILURES_S = 5.0
_MINUTES = 15
_MOST_LOGS = 4
_FIND_S = 1.0
_ORDER_S = 60.0
_MOST_ORDER_BYTES = 512 << 10
_LEAST_OF_ID = 8
# The end of the year 9999: Python knows no later time.
_LATEST_MS = 253_402_300_799_999


class _FoundRow(msgspec.Struct):
    id: int
    request_id: str
    function: str
    began_ms: Annotated[int, msgspec.Meta(ge=0, le=_LATEST_MS)]
    error_type: str


class _Found(msgspec.Struct):
    found: list[_FoundRow]


@dataclass(slots=True)
class MachineInputs:
    """What a machine describes itself by.

    Attributes:
        url: URL of the server.
        queue: the queue of events.
        records: the recorded invocations; None: none are recorded.
        status: makes the status document.
        settings: returns the configuration.
    """

    url: str
    queue: OperatorView
    records: Records | None
    status: StatusDocument
    settings: Callable[[], Settings]


class MachinesSubsystem:
    """The machines of a cluster: what this one tells about itself, and what the others have told.

    Args:
        cluster: connections to the other machines.
        execution: runs functions on this machine.
        inputs: what this machine describes itself by.

    Attributes:
        own: name of this machine.
        asker: asks machines.
        overview: all machines, as each describes itself.
        api: serves both over HTTP.
    """

    def __init__(self, cluster: ClusterSubsystem, execution: ExecutionSubsystem, inputs: MachineInputs) -> None:
        self.own = cluster.own
        self._cluster = cluster
        self._execution = execution
        self._dispatcher = cast(ClusterDispatcher, execution.dispatcher)
        self._inputs = inputs
        self._report: tuple[float, bytes] = (0.0, b"")
        self._failures: tuple[float, int, int] = (0.0, 0, 0)
        self._making = asyncio.Lock()
        self._logs_at_once = asyncio.Semaphore(_MOST_LOGS)
        cluster.router.questions = {
            "report": self._tell_report,
            "status": self._tell_status,
            "queue": self._tell_queue,
            "logs": self._tell_log,
            "record": self._tell_record,
            "find": self._tell_found,
            "dead": self._tell_dead_letters,
            "dead_letter": self._tell_dead_letter,
            "removals": self._tell_removals,
            **{order_name(name): _obeying(change) for name, change in changes_of(inputs.queue).items()},
        }
        cluster.router.answered_in_parts = {own_state.QUESTION: self._send_own_state}
        self._copying = asyncio.Lock()
        self._data = inputs.settings().server.data
        shutil.rmtree(self._data / SENT_COPY, ignore_errors=True)  # of a server that was killed while it sent one
        self.asker = Asker(cluster.own, cluster.router.questions, cluster.links_to)
        self.overview = Overview(
            cluster.own,
            known=cluster.known,
            ask=lambda machine: self.asker.ask(machine, "report", {}, timeout_s=_REPORT_S),
            spawn_task=execution.spawn_task,
        )
        self.api = MachinesApi(self.asker, self.overview.machines)

    async def _tell_report(self, _: Mapping[str, str]) -> bytes:
        """Return this machine's report; the same one for all who ask within half a second."""
        async with self._making:
            made_s, report = self._report
            if not report or time.monotonic() - made_s > _SAME_REPORT_S:
                report = msgspec.json.encode(await self._make_report())
                self._report = (time.monotonic(), report)
            return report

    async def _tell_status(self, arguments: Mapping[str, str]) -> bytes:
        return msgspec.json.encode(await self._inputs.status(memory="memory" in arguments))

    async def _tell_queue(self, _: Mapping[str, str]) -> bytes:
        return msgspec.json.encode(await self._inputs.queue.overview())

    async def _tell_dead_letters(self, arguments: Mapping[str, str]) -> bytes:
        """Return a page of dead letters, as ``/_thawd/dead`` does."""
        after, limit = _number(arguments, "after") or 0, _number(arguments, "limit") or MAX_PAGE
        page = await self._inputs.queue.page(arguments.get("function"), after=after, limit=limit)
        return msgspec.json.encode(page)

    async def _tell_dead_letter(self, arguments: Mapping[str, str]) -> bytes:
        """Return the dead letter ``id``, as ``/_thawd/dead/ID`` does."""
        return msgspec.json.encode(await self._inputs.queue.show(_number(arguments, "id") or 0))

    async def _tell_removals(self, _: Mapping[str, str]) -> bytes:
        return msgspec.json.encode(await self._inputs.queue.removals())

    async def change_dead_letters(self, machine: str, change: str, body: bytes) -> bytes:
        """Have a machine change its dead letters; see `QueueApi`.

        Raises:
            InvalidParameterValueException: the body is too large for another machine (400).
            ThawdError: see `Asker.order`.
        """
        if len(body) > _MOST_ORDER_BYTES:
            raise InvalidParameterValueException(
                f"the body must have at most {_MOST_ORDER_BYTES:,} bytes for another machine; choose fewer dead letters"
            )
        return await self.asker.order(machine, change, body.decode(errors="replace"), timeout_s=_ORDER_S)

    async def _tell_record(self, arguments: Mapping[str, str]) -> bytes:
        """Return the document of a recorded invocation, as ``/_thawd/invocations/ID`` does."""
        if self._inputs.records is None:
            raise ResourceNotFoundException(f"The machine {self._cluster.own} records no invocations")
        return msgspec.json.encode(await self._inputs.records.document(arguments.get("request_id", "")))

    async def _tell_found(self, arguments: Mapping[str, str]) -> bytes:
        """Return records of request ids that begin with ``prefix``, or the latest record of ``function``."""
        records, prefix = self._inputs.records, arguments.get("prefix", "")
        if records is None:
            rows: list[InvocationRow] = []
        elif prefix:
            rows = await records.beginning_with(prefix) if len(prefix) >= _LEAST_OF_ID else []
        else:
            rows = (await records.page(Filter(function=arguments.get("function") or None), limit=1)).rows
        found = [_FoundRow(row.id, row.request_id, row.function, row.began_ms, row.error_type) for row in rows]
        return msgspec.json.encode(_Found(found))

    async def machines(self) -> list[SeenMachine]:
        """Return the machines of the cluster."""
        return await self.overview.machines()

    async def find(self, prefix: str) -> Elsewhere:
        """Return what other machines have recorded about request ids that begin with `prefix`."""
        pages = {}
        others = [machine for machine in await self.overview.machines() if not machine.is_own]
        for machine in others:
            pages[machine.name] = page_of(machine.report, machine.address)
        document = await self.api.ask_all(others, "find", {"prefix": prefix}, wait_s=_FIND_S)
        return elsewhere_of(document, pages, prefix)

    async def _tell_log(self, arguments: Mapping[str, str]) -> bytes:
        """Return a page of a log group: ``group``; ``last``, or ``after`` and ``since_ms``."""
        group = arguments.get("group", "")
        if not LOG_GROUP.accepts(group):
            raise InvalidParameterValueException(f"group must be {LOG_GROUP.allowed}, not {group[:80]!r}")
        last = _number(arguments, "last")
        path = path_of_group(self._data / "logs", group)
        self._execution.launcher.flush_logs()
        async with self._logs_at_once:
            try:
                if last is not None:
                    page = await asyncio.to_thread(last_page, path, last)
                else:
                    after, since_ms = arguments.get("after", ""), _number(arguments, "since_ms") or 0
                    page = await asyncio.to_thread(next_page, path, after, since_ms=since_ms)
            except OSError as error:
                raise StoreError(f"the log {group} cannot be read: {error.strerror}") from error
        return await asyncio.to_thread(msgspec.json.encode, page)

    async def _send_own_state(self) -> AsyncGenerator[bytes]:
        """Send a backup of this machine's own state: a copy, which is removed afterwards."""
        folder = self._data / SENT_COPY
        async with self._copying:
            try:
                folder.mkdir(mode=0o700)
                await asyncio.to_thread(copy_into, self._inputs.settings(), folder)
                async with contextlib.aclosing(own_state.parts(folder)) as parts:
                    async for part in parts:
                        yield part
            except OSError as error:
                raise StoreError(f"the machine {self.own} cannot copy its state: {error}") from error
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _make_report(self) -> MachineReport:
        cluster, limits = self._cluster, self._execution.limits
        kinds: Counter[str] = Counter()
        busy = starting = used_mb = 0
        for occupant in self._dispatcher.room.occupied():
            if isinstance(occupant, Pool):
                # Those of the pool itself: the pools of tenants are occupants of their own.
                counts = Pool.counts(occupant)
                kinds.update(str(environment.kind) for environment in occupant.all())
                busy, starting = busy + counts["busy"], starting + counts["starting"]
                used_mb += sum(counts.values()) * occupant.version.function.memory_mb
        queue = (await self._inputs.queue.overview())["functions"].values()
        errors, refused = await self._lately()
        pledged, pledged_mb = self._pledged()
        ages = [entry["oldest_age_s"] for entry in queue if entry["oldest_age_s"] is not None]
        return MachineReport(
            state=cluster.state,
            why=cluster.why_not_ready or "",
            leads=cluster.leads,
            version=__version__,
            url=self._inputs.url,
            cores=limits["admission"].get("cores", 0.0),
            cores_used=limits["admission"].get("load", 0.0),
            memory_mb=limits["memory_mb"],
            memory_used_mb=used_mb,
            environments=dict(kinds),
            busy=busy,
            starting=starting,
            free_environments=max(0, cluster.router.summary().free_environments),
            max_environments=limits["max_environments"],
            pledged=pledged,
            pledged_mb=pledged_mb,
            waiting=sum(pool.waiting for pool in self._pools()),
            queued=sum(entry["queued"] for entry in queue),
            oldest_age_s=max(ages, default=None),
            dead=sum(entry["dead"] for entry in queue),
            errors=errors,
            refused=refused,
            minutes=_MINUTES,
        )

    def _pledged(self) -> tuple[int, int]:
        """Environments that the concurrency of functions needs in the whole cluster, and their memory, MiB."""
        count = memory_mb = 0
        for family in self._dispatcher.families():
            function = family.latest.function
            each = max(function.reserved_concurrency or 0, function.provisioned_concurrency)
            count += each
            memory_mb += each * function.memory_mb
        return count, memory_mb

    def _pools(self) -> list[Pool]:
        entries = [entry for family in self._dispatcher.families() for entry in family.all()]
        return [entry.pool for entry in entries if entry.pool is not None]

    async def _lately(self) -> tuple[int | None, int | None]:
        """Return the errors and the refusals of the last minutes; None: no invocation is recorded."""
        records = self._inputs.records
        if records is None:
            return None, None
        made_s, errors, refused = self._failures
        if time.monotonic() - made_s > _SAME_FAILURES_S or not made_s:
            minute = int(time.time() // 60)
            rows = await records.minutes(None, since=minute - _MINUTES + 1, until=minute + 1)
            errors, refused = await asyncio.to_thread(failures_in, rows)
            self._failures = (time.monotonic(), errors, refused)
        return errors, refused


def elsewhere_of(document: Mapping[str, Any], pages: Mapping[str, str | None], prefix: str) -> Elsewhere:
    """Return what other machines have recorded. One whose answer cannot be read counts as one that has not answered.

    Args:
        document: answers to the question ``find``; see `MachinesApi.ask_all`.
        pages: addresses of the machines' first pages, by name.
        prefix: what the request ids begin with.
    """
    found: list[RecordElsewhere] = []
    answered, away = [], [*document["away"]]
    for name, answer in sorted(document["answers"].items()):
        try:
            rows = msgspec.json.decode(answer, type=_Found).found
        except msgspec.DecodeError:  # it may have another version of thawd
            away.append(name)
            continue
        answered.append(name)
        found += [
            RecordElsewhere(name, pages[name], row.request_id, row.function, row.began_ms, row.error_type)
            for row in rows
            if row.request_id.startswith(prefix)
        ]
    return Elsewhere(found, answered, sorted(away))


def _obeying(change: Change) -> Question:
    async def obey(arguments: Mapping[str, str]) -> bytes:
        return msgspec.json.encode(await change(arguments.get("body", "").encode()))

    return obey


def _number(arguments: Mapping[str, str], name: str) -> int | None:
    text = arguments.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise InvalidParameterValueException(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)
