"""Event source mappings, made through the Lambda API or declared in thawd.toml: what invokes which functions.

The sources are SQS queues, Kinesis streams and DynamoDB streams. A change through the API is stored before its request
is answered. The pollers, which read the sources (`thawd.sources.mapping_pollers`), carry the change out afterwards.
Until they have done so, the state of the mapping is ``Creating``, ``Enabling``, ``Disabling``, ``Updating`` or
``Deleting``, and other changes of it are refused.

Source: AWS Lambda API reference, the operations that the docstrings name; developer guide, "Using Lambda with
Amazon SQS", "… with Kinesis", "… with DynamoDB".
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from thawd.control import paging
from thawd.control.event_source_mapping_checks import STREAM_SETTINGS, check, source_of
from thawd.control.event_source_mapping_records import UNPROCESSED, SourceMapping, declared_mapping
from thawd.control.function_records import Parameters
from thawd.control.names import parse_function
from thawd.control.registry import Registry
from thawd.errors import (
    InvalidParameterValueException,
    ResourceConflictException,
    ResourceInUseException,
    ResourceNotFoundException,
)
from thawd.grammar import queue_names
from thawd.resources import SqsSource

_MOST_LISTED = 100
_SETTINGS = (
    *STREAM_SETTINGS,
    "BatchSize",
    "MaximumBatchingWindowInSeconds",
    "FilterCriteria",
    "FunctionResponseTypes",
    "ScalingConfig",
    "KMSKeyArn",
    "MetricsConfig",
    "LoggingConfig",
)


class Pollers(Protocol):
    """The part of thawd that reads the queues and streams."""

    async def problem(self, mapping: SourceMapping) -> str | None:
        """Return why the source of a new mapping cannot be read, in AWS's words; None: no reason is known."""

    def last_result(self, uuid: str) -> str:
        """Return the result of a mapping's last batch, in the form of ``LastProcessingResult``."""

    def apply(self, mapping: SourceMapping) -> None:
        """Apply a new or changed mapping, and call `Mappings.settled` once it is in effect."""

    def remove(self, mapping: SourceMapping) -> None:
        """Stop reading the source of a mapping, and call `Mappings.settled` once its last batch has ended."""


class _NoPollers:
    """Takes the pollers' place until the server reads sources: every change is settled immediately."""

    def __init__(self, settled: Callable[[str], None]) -> None:
        self._settled = settled

    async def problem(self, mapping: SourceMapping) -> str | None:
        return None

    def last_result(self, uuid: str) -> str:
        return UNPROCESSED

    def apply(self, mapping: SourceMapping) -> None:
        asyncio.get_running_loop().call_soon(self._settled, mapping.uuid)

    def remove(self, mapping: SourceMapping) -> None:
        asyncio.get_running_loop().call_soon(self._settled, mapping.uuid)


class Mappings:
    """The operations on event source mappings.

    Attributes:
        pollers: carries out changes.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._declared: dict[str, SourceMapping] = {}
        self._states: dict[str, str] = {}
        self._deleted: dict[str, SourceMapping] = {}
        self._changing = asyncio.Lock()
        self.pollers: Pollers = _NoPollers(self.settled)

    def all(self) -> list[SourceMapping]:
        """Every mapping, those declared in thawd.toml first."""
        stored = [one for one in self._registry.mappings.values() if one.uuid not in self._declared]
        return [*self._declared.values(), *stored]

    def state(self, mapping: SourceMapping) -> str:
        """The mapping's state, worded as in the API."""
        return self._states.get(mapping.uuid) or ("Enabled" if mapping.enabled else "Disabled")

    def settled(self, uuid: str) -> None:
        """Record that the last change of a mapping has been carried out."""
        self._states.pop(uuid, None)
        self._deleted.pop(uuid, None)

    def declare(self, sources: Mapping[str, Iterable[SqsSource]], *, complain: Callable[[str], None]) -> None:
        """Replace the mappings of thawd.toml, and tell the pollers which mappings are new, changed or removed."""
        before, self._declared = self._declared, {}
        for function, listed in sources.items():
            for source in listed:
                queue = queue_names.parse(source.sqs)
                assert queue is not None, "thawd.config has checked it"
                mapping = declared_mapping(function, source, arn=queue.arn, modified=time.time())
                twin = self._twin(mapping)
                if twin is not None and not twin.declared:
                    complain(
                        f"thawd: the event source mapping {mapping.name} is declared in thawd.toml and was also made "
                        f"through the API ({twin.uuid}); the one made through the API is used. Delete that one to use "
                        "the one in thawd.toml"
                    )
                    continue
                mapping.enabled = mapping.enabled and mapping.name not in self._registry.paused
                old = before.get(mapping.uuid)
                if old is not None and msgspec.structs.replace(mapping, modified=old.modified) == old:
                    mapping = old
                self._declared[mapping.uuid] = mapping
                if mapping is not old:
                    self.pollers.apply(mapping)
        for gone in before.keys() - self._declared.keys():
            self.pollers.remove(before[gone])

    async def create(self, parameters: Parameters) -> dict[str, Any]:
        """CreateEventSourceMapping."""
        source = source_of(parameters)
        name, qualifier = self._function(parameters["FunctionName"])
        mapping = SourceMapping(
            uuid=str(uuid.uuid4()),
            source=source,
            function=name,
            qualifier=qualifier,
            given={field: parameters[field] for field in _SETTINGS if field in parameters},
            enabled=parameters.get("Enabled", True),
            modified=time.time(),
            tags=dict(parameters.get("Tags", {})),
        )
        check(mapping, parameters)
        self._check_single(mapping)
        problem = await self.pollers.problem(mapping)
        if problem is not None:
            raise InvalidParameterValueException(problem)
        async with self._changing:
            self._check_single(mapping)
            await self._registry.save_mapping(mapping)
            return self._carry_out(mapping, "Creating")

    def get(self, parameters: Parameters) -> dict[str, Any]:
        """GetEventSourceMapping."""
        mapping = self._deleted.get(parameters["UUID"]) or self._find(parameters["UUID"])
        return self._document(mapping)

    async def update(self, parameters: Parameters) -> dict[str, Any]:
        """UpdateEventSourceMapping."""
        async with self._changing:
            old = self._idle(parameters["UUID"], "update")
            if old.declared:
                if set(parameters) - {"UUID", "Enabled"}:
                    raise ResourceConflictException(
                        f"The event source mapping {old.name} is declared in thawd.toml; change it there. The API can "
                        "change only Enabled"
                    )
                await self._pause(old, paused=not parameters.get("Enabled", old.enabled))
                return self._document(old)
            mapping = msgspec.structs.replace(
                old,
                given={**old.given, **{field: parameters[field] for field in _SETTINGS if field in parameters}},
                enabled=parameters.get("Enabled", old.enabled),
                modified=time.time(),
            )
            if "FunctionName" in parameters:
                mapping.function, mapping.qualifier = self._function(parameters["FunctionName"])
            check(mapping, parameters)
            self._check_single(mapping)
            await self._registry.save_mapping(mapping)
            return self._carry_out(mapping, _transition(old, mapping))

    async def delete(self, parameters: Parameters) -> dict[str, Any]:
        """DeleteEventSourceMapping. Batches in flight are completed."""
        async with self._changing:
            mapping = self._idle(parameters["UUID"], "delete")
            if mapping.declared:
                raise ResourceConflictException(
                    f"The event source mapping {mapping.name} is declared in thawd.toml; remove it there"
                )
            await self._registry.forget_mapping(mapping)
            self._deleted[mapping.uuid] = mapping
            self._states[mapping.uuid] = "Deleting"
            self.pollers.remove(mapping)
            return self._document(mapping, state="Deleting")

    def list(self, parameters: Parameters) -> dict[str, Any]:
        """ListEventSourceMappings."""
        found = sorted([*self.all(), *self._deleted.values()], key=lambda mapping: mapping.uuid)
        if "FunctionName" in parameters:
            wanted = parse_function(parameters["FunctionName"])
            found = [mapping for mapping in found if (mapping.function, mapping.qualifier) == wanted]
        if "EventSourceArn" in parameters:
            found = [mapping for mapping in found if mapping.source == parameters["EventSourceArn"]]
        chosen, marker = paging.page([(mapping.uuid, mapping) for mapping in found], parameters, most=_MOST_LISTED)
        document = {"EventSourceMappings": [self._document(mapping) for mapping in chosen]}
        return paging.with_marker(document, marker)

    async def enable(self, uuid: str, *, enabled: bool) -> None:
        """Pause or resume a mapping; returns once the change is stored.

        Raises:
            ResourceNotFoundException: there is no such mapping (404).
            ResourceInUseException: the mapping is being changed (400).
            ResourceConflictException: thawd.toml disables the mapping (409).
        """
        if self._find(uuid).enabled is not enabled:
            await self.update({"UUID": uuid, "Enabled": enabled})

    async def _pause(self, mapping: SourceMapping, *, paused: bool) -> None:
        if paused is not mapping.enabled:
            return
        if not paused and mapping.name not in self._registry.paused:
            raise ResourceConflictException(
                f"The event source mapping {mapping.name} has enabled = false in thawd.toml; change it there"
            )
        await self._registry.pause(mapping.name, paused=paused)
        mapping = msgspec.structs.replace(mapping, enabled=not paused, modified=time.time())
        self._declared[mapping.uuid] = mapping
        self._carry_out(mapping, "Disabling" if paused else "Enabling")

    def _carry_out(self, mapping: SourceMapping, state: str) -> dict[str, Any]:
        self._states[mapping.uuid] = state
        self.pollers.apply(mapping)
        return self._document(mapping, state=state)

    def _document(self, mapping: SourceMapping, *, state: str | None = None) -> dict[str, Any]:
        mapping = self._declared.get(mapping.uuid, mapping)
        last_result = self.pollers.last_result(mapping.uuid)
        return mapping.document(state=state or self.state(mapping), last_result=last_result)

    def _find(self, uuid: str) -> SourceMapping:
        mapping = self._declared.get(uuid) or self._registry.mappings.get(uuid)
        if mapping is None:
            raise ResourceNotFoundException("The resource you requested does not exist.")
        return mapping

    def _idle(self, uuid: str, what: str) -> SourceMapping:
        """Return the mapping if no change of it is in progress.

        Raises:
            ResourceNotFoundException: there is no such mapping (404).
            ResourceInUseException: the mapping is being changed (400).
        """
        if uuid in self._states:
            raise ResourceInUseException(f"Cannot {what} the event source mapping because it is in use.")
        return self._find(uuid)

    def _function(self, reference: str) -> tuple[str, str | None]:
        name, qualifier = parse_function(reference)
        try:
            record = self._registry.record(name, qualifier)
        except ResourceNotFoundException as error:
            raise InvalidParameterValueException("Function does not exist") from error
        if record.function.tenants:
            raise InvalidParameterValueException(
                f"The function {name} is enabled with tenancy configuration, and the events of an event source name no "
                "tenant."
            )
        return name, qualifier

    def _twin(self, mapping: SourceMapping) -> SourceMapping | None:
        """Return another mapping of the same source to the same function and qualifier; None: there is none."""
        key = mapping.source, mapping.function, mapping.qualifier
        for other in self.all():
            if other.uuid != mapping.uuid and (other.source, other.function, other.qualifier) == key:
                return other
        return None

    def _check_single(self, mapping: SourceMapping) -> None:
        twin = self._twin(mapping)
        if twin is not None:
            pair = f'arn (" {mapping.source} ") and function (" {mapping.function} ")'
            said = (
                f"The event source {pair} provided mapping already exists."
                if mapping.is_stream
                else f"An event source mapping with SQS {pair} already exists."
            )
            raise ResourceConflictException(
                f"{said} Please update or delete the existing mapping with UUID {twin.uuid}"
            )


def _transition(old: SourceMapping, new: SourceMapping) -> str:
    if old.enabled is new.enabled:
        return "Updating"
    return "Enabling" if new.enabled else "Disabling"
