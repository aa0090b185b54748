"""Publishes the functions that thawd.toml declares, and keeps the records of these functions that the API shows.

The functions can have versions, aliases and tags like any other function. Settings that thawd.toml declares can be
changed only in that file.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from thawd.control.deployments import Deployments
from thawd.control.function_records import (
    SNAP_START_OFF,
    SNAP_START_ON,
    Family,
    StateReason,
    VersionRecord,
    new_revision,
    now_text,
)
from thawd.control.publication_line import PublicationLine
from thawd.control.registry import Registry
from thawd.environments.version import Version
from thawd.errors import unexpected
from thawd.publishing.publisher import Candidate, Ending, Outcome, Publisher, steps_text
from thawd.resources import ACCOUNT_ID, LATEST, Function
from thawd.telemetry.console import is_terminal

# A first publication that takes at least this long, seconds, gets a line that says which steps took how long.
_WORTH_TELLING_S = 1.0
_CREATING = StateReason("Pending", "The function is being created.", "Creating")
_UPDATING = StateReason("InProgress", "The function is being updated.", "Creating")
_SHOWN = {"Role": f"arn:aws:iam::{ACCOUNT_ID}:role/thawd"}  # one dictionary for the records of all functions


class DeclaredFunctions:
    """Publishes the functions of thawd.toml, and keeps their records up to date.

    Args:
        registry: all functions.
        deployments: passes functions and versions to the dispatcher.
        publisher: publishes versions.
        complain: reports a problem to the operator.
        say: reports progress to the operator.

    Attributes:
        changed: names of the changed files because of which functions are published, for messages; empty: unknown.
        reported: number of publications so far that changed what serves, or failed.
    """

    def __init__(
        self,
        registry: Registry,
        deployments: Deployments,
        publisher: Publisher,
        *,
        complain: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._registry = registry
        self._deployments = deployments
        self._publisher = publisher
        self._complain = complain
        self._say = say
        self._functions: Mapping[str, Function] = {}
        self._line = PublicationLine(self._publish_one)
        self._retries = False
        self.changed = ""
        self.reported = 0

    def declare(self, functions: Mapping[str, Function]) -> None:
        """Make `functions` the functions that thawd.toml declares.

        A function that is no longer declared loses its ``$LATEST``, but its published versions are kept. If a function
        of the same name was made through the API, that one serves instead.
        """
        self._functions = functions
        for name, family in list(self._registry.families.items()):
            if family.declared and name not in functions:
                family.versions.pop(LATEST, None)
                if name in self._registry.shadowed:
                    self._registry.families[name] = self._registry.shadowed.pop(name)
                elif not family.versions:
                    del self._registry.families[name]
        self._deployments.configure(functions)
        unknown = [
            family
            for family in self._registry.families.values()
            if not family.declared and family.name not in functions and not self._deployments.knows(family)
        ]
        for name, function in functions.items():
            if name not in self._registry.families:
                self._registry.families[name] = Family(name, declared=True)
            family = self._registry.families[name]
            if not family.declared:
                self._complain(
                    f"thawd: the function {name} is declared in thawd.toml, and a function of that name was also made "
                    "through the API; the one in thawd.toml serves. To delete the other, remove the declaration from "
                    "thawd.toml and call DeleteFunction"
                )
                self._registry.shadowed[name] = family
                family = self._registry.families[name] = Family(name, declared=True, shadows=True)
            old = family.versions.get(LATEST)
            if old is None or old.state.state != "Active":
                if old is None or old.function != function:
                    family.versions[LATEST] = _record(function, version=None, state=_CREATING)
            elif old.function != function:
                # As on Lambda: the new settings are shown immediately, and the version that still serves is Active.
                family.versions[LATEST] = msgspec.structs.replace(old, function=function, update=_UPDATING)
            unknown.append(family)
        self._deployments.declare(*unknown)

    def begin(self, *, retry: bool = False) -> None:
        """Begin to publish the declared functions that have changed, as many at a time as there are cores.

        Functions that do not serve yet, or whose declaration has changed, come first. If a request arrives for a
        function that waits to be published, this function does not wait for its turn. If a declaration changes while
        its function waits, the newest declaration is used. If a function cannot be published, that is reported and
        does not affect the others.

        Args:
            retry: whether to publish again unchanged functions whose init or priming event failed last time.
        """
        self._retries = retry or (self._retries and not self._line.is_empty)
        settled = {name: self._is_settled(name) for name in self._functions}
        self._line.put(sorted(self._functions, key=settled.__getitem__))

    async def published(self) -> None:
        """Wait until all declared functions are published, or could not be published."""
        await self._line.drained()

    @property
    def is_publishing(self) -> bool:
        """Whether declared functions are being published, or wait to be published."""
        return not self._line.is_empty

    @property
    def is_stopped(self) -> bool:
        """Whether no more publications begin, because the server stops."""
        return self._line.is_stopped

    def stop(self) -> None:
        """Begin no more publications, and cancel the tasks that wait for running ones."""
        self._line.stop()

    async def ended(self, patience_s: float) -> None:
        """After `stop`: wait until all publications have ended, at most `patience_s` seconds."""
        await self._line.ended(patience_s)

    def request(self, name: str) -> None:
        """Publish the function `name` without waiting for its turn, because a request needs it."""
        self._line.request(name)

    def _is_settled(self, name: str) -> bool:
        record = self._registry.families[name].versions[LATEST]
        return record.state.state == "Active" and record.update.state != "InProgress"

    async def _publish_one(self, name: str) -> None:
        function = self._functions.get(name)
        if function is None:
            return  # the function is no longer declared
        candidate = Candidate(function, source=function, keeps_old=True, retries=self._retries, begin=self._begin)
        outcome = await self._publisher.publish(candidate)
        try:
            self._report(function, outcome)
        except Exception as error:  # only this function's record is affected; the others continue
            self._complain(
                f"thawd: the result of publishing {name} could not be recorded, so the API may show the state before "
                f"that: {unexpected(error)}"
            )

    def _begin(self, version: Version) -> bool:
        """Record that a version is being published. Return False if its function is no longer declared."""
        record = self._record(version.function)
        if record is None:
            return False
        if record.state.state == "Active":  # another version serves in the meantime
            record.update = _UPDATING
        else:
            self._replace_record(version, state=_CREATING)
        return True

    def _report(self, function: Function, outcome: Outcome) -> None:
        """Record and report the outcome of publishing a function."""
        name, version = function.name, outcome.version
        self.reported += outcome.ending is not Ending.UNCHANGED
        if outcome.ending is Ending.FAILED:
            self._complain(f"thawd: {name} cannot be published: {outcome.reason}")
            self._record_failure(function, outcome.reason, code="InternalError")
        elif outcome.ending is Ending.INIT_FAILED:
            still = "\n  the version before this change still serves" if outcome.replaces else ""
            self._complain(
                f"thawd: {name}: init failed: {outcome.reason}{outcome.trace}{still}\n  see: thawd logs {name}"
            )
            if outcome.replaces:
                self._record_failure(function, outcome.reason, code="FunctionError")
        elif outcome.ending is Ending.SERVES and outcome.replaces:
            because = f": {self.changed} changed" if self.changed else ""
            self._say(f"{name}: republished{because}; {steps_text(outcome.steps)}")
        elif outcome.ending is Ending.RESTORED:
            self._say(f"{name}: the change that could not be published was undone; the version that serves is current")
        elif outcome.ending is Ending.SERVES and is_terminal() and sum(outcome.steps.values()) >= _WORTH_TELLING_S:
            self._say(f"{name}: published; {steps_text(outcome.steps)}")
        # As on Lambda, a function whose first init failed is Active: it can be invoked, and callers get the init error.
        first_failed = outcome.ending is Ending.INIT_FAILED and not outcome.replaces
        if version is not None and (outcome.ending in (Ending.SERVES, Ending.RESTORED) or first_failed):
            self._replace_record(version, state=StateReason("Active"))

    def _record_failure(self, function: Function, reason: str, *, code: str) -> None:
        """Record why a declared function could not be published; if another version serves, that one stays Active.

        Args:
            function: as declared.
            reason: why the function could not be published.
            code: ``StateReasonCode`` or ``LastUpdateStatusReasonCode``.
        """
        record = self._record(function)
        if record is not None and record.state.state == "Active":
            record.update = StateReason("Failed", reason, code)
        elif record is not None:
            record.state = StateReason("Failed", reason, code)

    def _replace_record(self, version: Version, *, state: StateReason) -> None:
        """Make `version` the recorded ``$LATEST`` of its function, unless the function is no longer declared."""
        if self._record(version.function) is not None:
            record = _record(version.function, version=version, state=state)
            self._registry.families[version.function.name].versions[LATEST] = record

    def _record(self, function: Function) -> VersionRecord | None:
        """The record of a declared function; None when it is no longer declared."""
        family = self._registry.families.get(function.name)
        return family.versions.get(LATEST) if family is not None and family.declared else None


def _record(function: Function, *, version: Version | None, state: StateReason) -> VersionRecord:
    if function.image is not None:
        return _image_record(function, function.image, version=version, state=state)
    python = version.python_version if version is not None else (function.python or "3.11")
    package = version.task_root.name if version is not None else ""
    size = 0 if version is None else _size_bytes(version.task_root)
    digest = bytes.fromhex(package) if package else b""
    return VersionRecord(
        function=function,
        runtime=function.runtime or f"python{'.'.join(python.split('.')[:2])}",
        code_sha256=base64.b64encode(digest).decode(),
        code_size=size,
        package=package,
        from_zip=False,
        shown=_SHOWN,
        snap_start=SNAP_START_ON if function.snapshot else SNAP_START_OFF,
        last_modified=now_text(),
        revision=new_revision(),
        state=state,
    )


def _image_record(function: Function, reference: str, *, version: Version | None, state: StateReason) -> VersionRecord:
    """The record of a function with a container image. Once the version is built, its image is fixed by its digest."""
    digest = "" if version is None else version.image_digest
    sha256 = digest.partition(":")[2]
    return VersionRecord(
        function=msgspec.structs.replace(function, image=digest) if digest else function,
        runtime="",
        code_sha256=sha256,
        code_size=0,
        package=sha256,
        from_zip=False,
        shown=_SHOWN,
        snap_start=SNAP_START_ON if function.snapshot else SNAP_START_OFF,
        image_uri=reference,
        last_modified=now_text(),
        revision=new_revision(),
        state=state,
    )


def _size_bytes(folder: Path) -> int:
    """Sum of the sizes of the files in a package. Files that cannot be read, or are deleted meanwhile, are left out."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += (Path(place) / name).stat().st_size
    return size
