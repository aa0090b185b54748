"""Builds a server's event sources (queues, streams, schedules, remote buckets) and provisioned concurrency's schedules.

The module also lists the sources, pauses and resumes them, and applies a new configuration. A paused source stays
paused after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thawd.config import Settings
from thawd.control.event_source_mapping_records import SourceMapping
from thawd.control.event_source_mappings import Mappings
from thawd.control.registry import Registry
from thawd.destinations.delivery import Destinations
from thawd.errors import ResourceConflictException, ResourceNotFoundException, StoreError
from thawd.grammar.schedule_expressions import utc_text
from thawd.resources import LATEST, Schedule
from thawd.scheduling.dispatcher import Dispatcher
from thawd.scheduling.provisioned import ProvisionedPlan
from thawd.sources.aws_calls import Endpoint
from thawd.sources.buckets.remote_sources import RemoteSources
from thawd.sources.mapping_pollers import MappingPollers, PollingContext
from thawd.sources.provisioned_schedules import ProvisionedSchedules
from thawd.sources.schedules import Schedules
from thawd.stores.schedules import ScheduleStore
from thawd.stores.stream_positions import StreamPositions
from thawd.telemetry.console import complain
from thawd.telemetry.metrics import Metrics

_STORE_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class SourceStores:
    """Stores of the progress of schedules and streams: in the state file, or in the cluster's database."""

    schedules: ScheduleStore
    positions: StreamPositions


class SourceSubsystem:
    """The sources of one server.

    Args:
        mappings: event source mappings.
        registry: stores which sources are paused.
        dispatcher: runs functions.
        progress: store how far schedules and streams have come.
        settings: returns the current configuration.
        wake: called with the functions that have new events in the queue.
        aws: endpoint URL of AWS's services; None: the endpoint in the AWS configuration of this process.
        buckets: remote buckets.
        destinations: take records of discarded batches.
    """

    def __init__(  # noqa: PLR0913 - the parts that this one connects
        self,
        mappings: Mappings,
        registry: Registry,
        dispatcher: Dispatcher,
        progress: SourceStores,
        *,
        settings: Callable[[], Settings],
        wake: Callable[[set[str]], None],
        aws: str | None,
        buckets: RemoteSources,
        destinations: Destinations,
    ) -> None:
        self._mappings = mappings
        self._registry = registry
        self._settings = settings
        self._buckets = buckets
        endpoint = None if aws is None else Endpoint(aws)
        context = PollingContext(
            dispatcher, endpoint, complain, progress.positions, destinations=destinations, role=registry.role
        )
        self._pollers = MappingPollers(context, settled=mappings.settled)
        self._schedules = Schedules(progress.schedules, wake=wake, report=complain)
        self._provisioned = ProvisionedSchedules(lambda name, count: dispatcher.provision(name, LATEST, count))
        self._provisioned.declare(_plans(settings()))  # before the first publish, which provisions environments
        self._runs = False
        self._changing = asyncio.Lock()

    async def run(self) -> None:
        """Run all sources until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            started = asyncio.Event()
            tasks.create_task(self._pollers.run(started))
            tasks.create_task(self._buckets.run(paused=frozenset(self._registry.paused)))
            await started.wait()
            self._mappings.pollers = self._pollers
            for mapping in self._mappings.all():
                self._pollers.apply(mapping)
            self._runs = True
            while not await self.declare():  # noqa: ASYNC110 - no event says that the state file works again
                await asyncio.sleep(_STORE_RETRY_S)
            tasks.create_task(self._schedules.run())
            tasks.create_task(self._provisioned.run())

    async def declare(self) -> bool:
        """Apply the current configuration to the sources. Returns False if its schedules could not be stored."""
        if not self._runs:
            return True  # `run` will apply the configuration
        async with self._changing:
            settings = self._settings()
            self._provisioned.declare(_plans(settings))
            self._mappings.declare(settings.sources, complain=complain)
            try:
                await self._schedules.declare(settings.schedules, paused=frozenset(self._registry.paused))
            except StoreError as error:
                complain(f"thawd: the schedules cannot be stored, so they do not run yet: {error.message}")
                return False
            return True

    def stop(self) -> None:
        """Start no more batches; batches in flight are completed."""
        self._pollers.stop()

    async def settled(self, patience_s: float) -> None:
        """Wait until handled messages have been deleted from their queues, at most `patience_s` seconds."""
        await self._pollers.settled(patience_s)

    async def document(self) -> dict[str, Any]:
        """All sources with their state, their last result, and what waits or is due next."""
        await self._pollers.look()
        schedules = self._settings().schedules.values()
        return {
            "sources": [
                *(self._of_mapping(mapping) for mapping in self._mappings.all()),
                *(self._of_schedule(schedule) for schedule in schedules),
                *self._buckets.status(),
            ]
        }

    async def pause(self, name: str) -> dict[str, Any]:
        """Pause a source until it is resumed, even across restarts. Invocations in flight are completed.

        Raises:
            ResourceNotFoundException: there is no such source (404).
            ResourceConflictException: several sources have this name (409).
            ResourceInUseException: the source is being changed (400).
        """
        return await self._set(name, enabled=False)

    async def resume(self, name: str) -> dict[str, Any]:
        """Resume a paused source.

        Raises:
            ResourceNotFoundException: there is no such source (404).
            ResourceConflictException: thawd.toml disables the source, or several sources have this name (409).
        """
        return await self._set(name, enabled=True)

    async def _set(self, name: str, *, enabled: bool) -> dict[str, Any]:
        if name in self._buckets.names:
            async with self._changing:
                await self._registry.pause(name, paused=not enabled)
                return self._buckets.enable(name, enabled=enabled)
        settings = self._settings()
        schedule = settings.schedules.get(name)
        if schedule is not None:
            if enabled and not schedule.enabled:
                raise ResourceConflictException(
                    f"{name} cannot be resumed: it has enabled = false in thawd.toml; change it there"
                )
            async with self._changing:
                await self._registry.pause(name, paused=not enabled)
                await self._schedules.declare(settings.schedules, paused=frozenset(self._registry.paused))
            return self._of_schedule(schedule)
        mapping = self._mapping(name)
        await self._mappings.enable(mapping.uuid, enabled=enabled)
        return self._of_mapping(self._mapping(mapping.uuid))

    def _mapping(self, name: str) -> SourceMapping:
        found = [one for one in self._mappings.all() if name in (one.name, one.uuid)]
        if len(found) > 1:
            uuids = ", ".join(one.uuid for one in found)
            raise ResourceConflictException(f"{name} is the name of several sources; use one of their UUIDs: {uuids}")
        if not found:
            known = [*(one.name for one in self._mappings.all()), *self._settings().schedules, *self._buckets.names]
            raise ResourceNotFoundException(f"There is no source {name}; there are: {', '.join(known) or 'none'}")
        return found[0]

    def _of_mapping(self, mapping: SourceMapping) -> dict[str, Any]:
        progress = self._pollers.progress(mapping.uuid)
        return {
            "name": mapping.name,
            "kind": mapping.service,
            "function": mapping.function,
            "state": self._mappings.state(mapping),
            "last_result": progress.last_result,
            "uuid": mapping.uuid,
            "source": mapping.source,
            "waiting": progress.waiting,
            "in_flight": progress.in_flight,
            "oldest_s": round(progress.oldest_s, 3),
            "received": progress.received,
            "filtered": progress.filtered,
            "failed": progress.failed,
        }

    def _of_schedule(self, schedule: Schedule) -> dict[str, Any]:
        state = self._schedules.state(schedule.name)
        is_enabled = schedule.enabled and schedule.name not in self._registry.paused
        next_run = self._schedules.next_run(schedule.name) if state is not None else None
        last_run = None if state is None else state.last_run
        return {
            "name": schedule.name,
            "kind": "schedule",
            "function": schedule.function,
            "state": "Enabled" if is_enabled else "Disabled",
            "last_result": "No run yet" if last_run is None else f"Run of {utc_text(last_run)}",
            "schedule": schedule.schedule,
            "timezone": schedule.timezone,
            "next_run": None if next_run is None else utc_text(next_run),
            "last_run": None if last_run is None else utc_text(last_run),
            "last_late_s": 0.0 if state is None else round(state.last_late_s, 3),
            "runs": 0 if state is None else state.runs,
        }

    def stream_ages(self) -> list[tuple[str, str, int, float]]:
        """For each mapping of a stream: its UUID, its function, how many records it has read, and the last one's age.

        The age is in seconds, at the time when the record was read.
        """
        mappings = [mapping for mapping in self._mappings.all() if mapping.is_stream]
        known = [(mapping, self._pollers.progress(mapping.uuid)) for mapping in mappings]
        return [(mapping.uuid, mapping.function, read.received, read.oldest_s) for mapping, read in known]

    def measure(self, metrics: Metrics) -> None:
        """Set the metrics of all sources."""
        metrics.sources.clear()
        for mapping in self._mappings.all():
            progress = self._pollers.progress(mapping.uuid)
            figures: dict[str, float] = {
                "source_events": progress.received,
                "source_filtered": progress.filtered,
                "source_failed": progress.failed,
                "source_enabled": mapping.enabled,
                "source_age_seconds": progress.oldest_s,
            }
            if progress.waiting is not None:
                figures["source_waiting"] = progress.waiting
            metrics.sources[mapping.name, mapping.function] = figures
        for schedule in self._settings().schedules.values():
            shown = self._of_schedule(schedule)
            metrics.sources[schedule.name, schedule.function] = {
                "source_events": shown["runs"],
                "source_enabled": shown["state"] == "Enabled",
                "source_age_seconds": shown["last_late_s"],
            }
        self._buckets.measure(metrics)


def _plans(settings: Settings) -> dict[str, ProvisionedPlan]:
    """For each function with schedules of provisioned concurrency: how many environments it has at which times."""
    return {
        name: ProvisionedPlan(entries, otherwise=settings.functions[name].provisioned_concurrency)
        for name, entries in settings.provisioned_schedules.items()
        if entries
    }
