"""Passes functions and versions from the control plane to the publisher and the dispatcher.

When a server starts, versions made through the API are only declared. Each is published when it is first invoked, or
earlier if it is to have provisioned environments, so a server with a thousand versions starts as fast as one with none.
The module `functions` publishes a new ``$LATEST``, and a new version that needs a snapshot, immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from thawd.control.destinations import dead_letter_of, destinations_of
from thawd.control.function_records import SNAP_START_ON, Alias, Family, VersionRecord
from thawd.environments.starts.fastest_start import Spawner
from thawd.environments.version import Version
from thawd.errors import (
    EnvironmentBuildError,
    ImageError,
    InvalidParameterValueException,
    ResourceNotFoundException,
)
from thawd.publishing.publisher import Candidate, Ending, Publisher
from thawd.resources import LATEST, Function
from thawd.scheduling.dispatcher import Dispatcher
from thawd.scheduling.function_entries import VersionEntry
from thawd.scheduling.room import Room

INIT_FAILURE = "FUNCTION_ERROR_INIT_FAILURE"
"""AWS's ``StatusReason`` of provisioned concurrency for a function whose init phase fails."""


class DeployError(Exception):
    """A version cannot serve; the message says why.

    Attributes:
        code: ``StateReasonCode`` of the Lambda API.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Provisioned:
    """Provisioned environments of one version.

    Attributes:
        allocated: number of provisioned environments that are ready.
        failure: why no more of them are ready; None: nothing has failed.
    """

    allocated: int
    failure: str | None


class Deployments:
    """The functions that the dispatcher knows: those of thawd.toml and those made through the API.

    Args:
        dispatcher: runs functions.
        publisher: publishes versions.
        room: limits the number of environments on this machine.
        spawner: starts environments, and knows whether a version has a snapshot.
        spawn_task: runs a coroutine in the background.
        complain: reports a problem to the operator.

    Attributes:
        thaws_all: whether versions are frozen that do not ask for SnapStart; set before functions are published.
        on_names: called with the names of all functions when the set of functions changes.
        on_outcome: called with a version, and None or the error, after an invocation caused the version to be
            published. Also called, with None, when a version's init succeeds after it had failed at publication.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        publisher: Publisher,
        room: Room,
        spawner: Spawner,
        *,
        spawn_task: Callable[[Coroutine[None, None, None]], object],
        complain: Callable[[str], None],
    ) -> None:
        self.thaws_all = False
        self._dispatcher = dispatcher
        self._publisher = publisher
        self._room = room
        self._spawner = spawner
        self._spawn_task = spawn_task
        self.complain = complain
        self._configured: dict[str, Function] = {}
        self._families: dict[str, Family] = {}
        self.on_names: Callable[[list[str]], None] = lambda names: None
        self.on_outcome: Callable[[VersionRecord, DeployError | None], object] = lambda record, error: None
        dispatcher.on_active = self._recovered

    def configure(self, functions: Mapping[str, Function]) -> None:
        """Replace the functions of thawd.toml."""
        self._configured = dict(functions)
        self._declare()

    def declare(self, *families: Family) -> None:
        """Make functions known to the dispatcher, with their versions, aliases and provisioned concurrency."""
        self._families.update((family.name, family) for family in families)
        self._declare()
        for family in families:
            self._declare_qualifiers(family)

    def _declare_qualifiers(self, family: Family) -> None:
        latest = self._dispatcher.entry(family.name)
        if not family.declared and latest.pool is None:
            latest.publish = self._publish_callback(family.name, LATEST)
        for number, record in family.versions.items():
            if number != LATEST:
                self.declare_version(record)
        self.aliases_changed(family)
        for qualifier, count in family.provisioned.items():
            self.provision(family, qualifier, count)

    def knows(self, family: Family) -> bool:
        """Whether `declare` was called for this function."""
        return self._families.get(family.name) is family

    def remove(self, family: Family) -> None:
        """Remove a function with all its versions from the publisher and the dispatcher."""
        self._families.pop(family.name, None)
        for number in family.versions:
            self._publisher.forget(family.name, number)
        self._declare()

    def settings_changed(self, family: Family) -> None:
        """Apply a function's changed reserved concurrency or settings for asynchronous invocations."""
        self._declare()
        self._pass_event_configs(family)

    def declare_version(self, record: VersionRecord) -> None:
        """Make a published version known to the dispatcher."""
        publish = self._publish_callback(record.function.name, record.version)
        self._dispatcher.declare_version(record.function, record.version, publish=publish)

    def remove_version(self, name: str, number: str) -> None:
        """Remove a published version from the publisher and the dispatcher."""
        self._publisher.forget(name, number)
        self._dispatcher.remove_version(name, number)

    def aliases_changed(self, family: Family) -> None:
        """Apply a function's changed aliases: new ones, deleted ones, and those that point to other versions."""
        self._dispatcher.set_aliases(family.name, {name: alias.shares() for name, alias in family.aliases.items()})
        self._pass_event_configs(family)

    def _declare(self) -> None:
        functions = {
            name: _effective(family, family.versions[LATEST])
            for name, family in self._families.items()
            if not family.declared and name not in self._configured
        }
        functions |= self._configured
        self._dispatcher.declare(functions)
        self.on_names(list(functions))

    def _pass_event_configs(self, family: Family) -> None:
        changes = {qualifier: _asynchronous(each) for qualifier, each in family.event_configs.items()}
        entry = self._dispatcher.family(family.name)
        if changes or entry.asynchronous:
            entry.asynchronous = changes

    def _publish_callback(self, name: str, number: str) -> Callable[[], None]:
        """Return a callback that publishes a version from its current record.

        The dispatcher calls it when the version is invoked and does not serve yet.
        """

        def publish() -> None:
            family = self._families.get(name)
            record = None if family is None else family.versions.get(number)
            if record is not None and not self._publisher.is_publishing(name, number):
                self._spawn_task(self._publish_and_report(record))

        return publish

    async def _publish_and_report(self, record: VersionRecord) -> None:
        try:
            await self.publish(record)
        except DeployError as error:
            self.complain(f"thawd: {record.function.name}:{record.version}: {error}")
            self.on_outcome(record, error)
        else:
            self.on_outcome(record, None)

    def _recovered(self, name: str, number: str) -> None:
        """Report that a version's init, which failed when the version was published, has now succeeded."""
        family = self._families.get(name)
        record = None if family is None else family.versions.get(number)
        if record is not None:
            self.on_outcome(record, None)

    async def check_runtime(self, record: VersionRecord) -> None:
        """Check that this machine can run the function.

        Raises:
            InvalidParameterValueException: the function's interpreter is not available (400).
        """
        try:
            await self._publisher.check_runtime(record.function)
        except EnvironmentBuildError as error:
            raise InvalidParameterValueException(
                f"The runtime {record.runtime} is not available on this machine: {error.message} Or start thawd with "
                f"--runtime {record.runtime}=INTERPRETER."
            ) from error

    async def resolve_image(self, uri: str) -> str:
        """The digest of the container image `uri`, which is then in the store of images.

        Raises:
            InvalidParameterValueException: there is no such image (400).
        """
        try:
            return await self._publisher.resolve_image(uri)
        except ImageError as error:
            raise InvalidParameterValueException(
                f"Source image {uri} is not valid. Provide a valid source image. {error.message}"
            ) from error

    async def publish(self, record: VersionRecord) -> None:
        """Publish the version; until it serves, an older publication with the same number continues to serve.

        Raises:
            DeployError: the version cannot serve.
        """
        function, number = record.function, record.version

        def is_current(_: Version) -> bool:
            family = self._families.get(function.name)
            return family is not None and family.versions.get(number) is record

        outcome = await self._publisher.publish(
            Candidate(
                msgspec.structs.replace(function, snapshot=True) if self.thaws_all else function,
                source=record,
                number=number,
                packages=() if function.image else (record.package, *(layer.package for layer in record.layers)),
                begin=is_current,
            )
        )
        if outcome.ending is Ending.FAILED:
            raise DeployError(outcome.reason, "InternalError")
        # As on Lambda, a function whose init fails still serves: its callers get the init error. But publishing a
        # numbered version that is to start from a snapshot fails, because no snapshot can be made of it.
        if outcome.ending is Ending.INIT_FAILED and function.snapshot and number != LATEST:
            raise DeployError(outcome.reason, "FunctionError")

    def entry(self, record: VersionRecord) -> VersionEntry | None:
        """The dispatcher's entry for the version; None: the version was deleted."""
        try:
            return self._dispatcher.entry(record.function.name, record.version)
        except ResourceNotFoundException:
            return None

    def optimised(self, record: VersionRecord) -> bool:
        """Whether environments of the version are thawed from its snapshot, as it asked for."""
        if record.snap_start != SNAP_START_ON:
            return False
        entry = self.entry(record)
        if entry is None or entry.pool is None:
            return False
        return self._spawner.origin(entry.pool.version).frozen is not None

    def provision(self, family: Family, qualifier: str, count: int | None) -> None:
        """Keep `count` environments of the version that `qualifier` names initialised; None: as many as declared."""
        for number in self._numbers(family, qualifier):
            self._dispatcher.provision(family.name, number, count)

    def provisioned(self, family: Family, qualifier: str) -> Provisioned:
        """How many provisioned environments of a qualifier are ready, and why no more are ready."""
        allocated, failure = 0, None
        for number in self._numbers(family, qualifier):
            entry = self._dispatcher.entry(family.name, number)
            if entry.pool is not None:
                allocated += entry.pool.provisioned_ready()
                failures = entry.pool.provisioned_failures
                failure = failure or (INIT_FAILURE if failures.backs_off() and failures.is_init else failures.reason)
            elif entry.state == "Failed":
                failure = entry.reason
        return Provisioned(allocated, failure)

    def _numbers(self, family: Family, qualifier: str) -> list[str]:
        alias: Alias | None = family.aliases.get(qualifier)
        return [qualifier] if alias is None else [alias.version]

    def most_at_once(self) -> int:
        """The highest number of environments of all functions together that this machine runs at a time."""
        return self._room.max_environments


def _effective(family: Family, record: VersionRecord) -> Function:
    """The `Function` of a version, with the settings that the function has for all its versions."""
    configuration = family.event_configs.get(record.version, {})
    return msgspec.structs.replace(
        record.function,
        reserved_concurrency=record.function.reserved_concurrency if family.declared else family.reserved,
        dead_letter=dead_letter_of(record.shown),
        **_asynchronous(configuration),
    )


def _asynchronous(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Function` that an event invoke configuration of the API sets, with their values."""
    made: dict[str, Any] = {}
    if configuration.get("MaximumRetryAttempts") is not None:
        made["maximum_retry_attempts"] = configuration["MaximumRetryAttempts"]
    if configuration.get("MaximumEventAgeInSeconds") is not None:
        made["maximum_event_age_s"] = configuration["MaximumEventAgeInSeconds"]
    fields = {"OnSuccess": "on_success", "OnFailure": "on_failure"}
    return made | {fields[outcome]: destination for outcome, destination in destinations_of(configuration).items()}
