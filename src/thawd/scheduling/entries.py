"""What the dispatcher knows of a function: its versions, what serves them, what its aliases stand for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from thawd.resources import LATEST, Function
from thawd.scheduling.keep_alive import Policy, policy_of
from thawd.scheduling.pool import Pool
from thawd.telemetry.metrics import FunctionMetrics

BEING_PUBLISHED = "The function is being published."


class VersionEntry:
    """What the dispatcher knows of one version.

    Attributes:
        function: as declared, or as published.
        number: of the version; ``$LATEST`` for the one that can change.
        state: Lambda's: ``Pending``, ``Active`` or ``Failed``.
        reason: why it is not active, or why its last publication failed; None when all is well.
        pool: environments of what serves; None before the first publication succeeded.
        decided: set once the first publication has succeeded or failed.
        provisioned: environments to be kept initialised; None: as many as its function says.
        wanted: publishes the version; called when it is invoked and nothing serves. None: it is published unasked.

    The keep-alive policy lives as long as the entry: what it has learnt outlasts a publication.
    """

    def __init__(self, function: Function, number: str = LATEST, *, wanted: Callable[[], None] | None = None) -> None:
        self.function = function
        self.number = number
        self.state = "Pending"
        self.reason: str | None = BEING_PUBLISHED
        self.pool: Pool | None = None
        self.decided = asyncio.Event()
        self.provisioned: int | None = None
        self.wanted = wanted
        self._policy: tuple[tuple[str, float], Policy] | None = None

    def policy(self, function: Function) -> Policy:
        """The keep-alive policy that `function` names; a new one only when it names another than before."""
        named = (function.keep_alive, function.idle_timeout_s)
        if self._policy is None or self._policy[0] != named:
            self._policy = (named, policy_of(*named))
        return self._policy[1]


class FunctionEntry:
    """A function: its versions, its aliases, and the counts over all versions.

    Attributes:
        latest: the version ``$LATEST``.
        published: the others, by number.
        aliases: by name, the versions that invocations of the alias go to, and their shares, which sum to 1.
        asynchronous: by qualifier, fields of the function that have other values for asynchronous invocations.
        in_flight: invocations that wait or run.
        metrics: of all versions together.
    """

    def __init__(self, function: Function, metrics: FunctionMetrics) -> None:
        self.latest = VersionEntry(function)
        self.published: dict[str, VersionEntry] = {}
        self.aliases: dict[str, Mapping[str, float]] = {}
        self.asynchronous: Mapping[str, Mapping[str, Any]] = {}
        self.in_flight = 0
        self.metrics = metrics

    def find(self, qualifier: str | None) -> VersionEntry | None:
        """The version that an invocation of `qualifier` goes to; None when there is none."""
        if qualifier is None or qualifier == LATEST:
            return self.latest
        shares = self.aliases.get(qualifier)
        if shares is None:
            return self.published.get(qualifier)
        number = next(iter(shares))
        if len(shares) > 1:
            (number,) = random.choices(list(shares), list(shares.values()))
        return self.latest if number == LATEST else self.published.get(number)

    def all(self) -> list[VersionEntry]:
        """All versions, ``$LATEST`` first."""
        return [self.latest, *self.published.values()]
