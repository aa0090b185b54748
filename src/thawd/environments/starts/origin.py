"""What the environments of a version are started from: image, template or nothing, and why nothing faster."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from thawd.environments.starts.snapshots import Frozen
from thawd.environments.starts.template import Template
from thawd.environments.version import Version
from thawd.invocation import StartKind
from thawd.telemetry.metrics import Fallback

# After a template has died this often, each time within a minute, no template is started for a minute.
_TEMPLATE_DEATHS = 3
_TEMPLATE_CALM_S = 60.0


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a faster start is not possible.

    Attributes:
        text: for people, with the way out.
        kind: the counter of starts that are slower for this reason; None: the user asked for it, nothing is counted.
    """

    text: str
    kind: Fallback | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why environments are not started by one kind of start.

    Attributes:
        start: ``thaw`` or ``fork``.
        reason: for people, with the way out.
    """

    start: StartKind
    reason: str

    @property
    def text(self) -> str:
        """For people, with the kind of start, for example ``not thawed: snapshot = false``."""
        return f"not {_DONE[self.start]}: {self.reason}"


_DONE = {StartKind.THAW: "thawed", StartKind.FORK: "forked"}


def first_counted(*reasons: Reason | None) -> Reason | None:
    """The first of these reasons for which starts are counted; None when there is none."""
    return next((reason for reason in reasons if reason is not None and reason.kind is not None), None)


class Origin:
    """What a version's environments are started from.

    Attributes:
        version: the version.
        unfrozen: why there is no image and none will be made; None while there is one, or it is not known yet.
        unforked: why no environment is forked; None while environments may be forked.
        frozen: the image that environments are thawed from; None while there is none.
        freezing: the task that finds or makes the image; None when none runs.
        template: forks environments; where there is an image, a thawed copy of it, for bursts.
        starting: the task that starts the template; None when none runs.
        renewing: whether the image is being replaced, because it does not fit this machine any more.
        renewals: how often the image was replaced.
        thawing: number of thaws that run.
        environments: number of live environments.
        retired: whether nothing fast is started for the version any more.
        superseded: whether it is retired because the version exists no more, not because the server stops.
        calm_until_s: no template is started before this time, ``time.monotonic()`` seconds.
        reported: reasons that were reported.
    """

    def __init__(self, version: Version, *, unfrozen: Reason | None = None) -> None:
        self.version = version
        cold = None if version.function.snapshot else Reason("snapshot = false")
        if version.program is not None:
            cold = Reason("it runs a program of its own over the Runtime API, of which thawd makes no copies")
        self.unfrozen: Reason | None = cold or unfrozen
        self.unforked: Reason | None = cold
        self.frozen: Frozen | None = None
        self.freezing: asyncio.Task[None] | None = None
        self.template: Template | None = None
        self.starting: asyncio.Task[Template] | None = None
        self.renewing = False
        self.renewals = 0
        self.thawing = 0
        self.environments = 0
        self.retired = False
        self.superseded = False
        self.calm_until_s = 0.0
        self.reported: set[str] = set()
        self._deaths = 0
        self._started_s = 0.0

    def retire(self) -> None:
        """From now on environments are started cold."""
        self.retired = True
        self.unfrozen = self.unforked = Reason("the version is retired")

    @property
    def start(self) -> StartKind:
        """The fastest kind of start that is possible now."""
        if self.frozen is not None:
            return StartKind.THAW
        return StartKind.COLD if self.unforked is not None else StartKind.FORK

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """Why each faster kind of start is not possible, the first cause first; empty when environments are thawed.

        A freeze is tried before a fork, so the reason against the freeze is named first.
        """
        reasons = {StartKind.THAW: self.unfrozen, StartKind.FORK: self.unforked}
        faster = {StartKind.THAW: 0, StartKind.FORK: 1, StartKind.COLD: 2}[self.start]
        return tuple(Obstacle(kind, why.text) for kind, why in list(reasons.items())[:faster] if why is not None)

    @property
    def init_ms(self) -> float | None:
        """How long init took before the freeze or in the template, milliseconds; None when there is neither."""
        if self.frozen is not None:
            return self.frozen.init_ms
        return None if self.template is None else self.template.init_ms

    def live_template(self) -> Template | None:
        """The template, if it can fork now."""
        return None if self.template is None or self.template.ended.is_set() else self.template

    def template_started(self, start: asyncio.Task[Template]) -> None:
        """The start of a template is over: keep the template, unless the version is retired."""
        self.starting = None
        if start.cancelled() or start.exception() is not None:
            return
        self.template = start.result()
        if self.retired:
            self.template.kill()

    def may_start_template(self) -> bool:
        """Whether a template may be started; a template that has died too often is not replaced for a while."""
        now_s = time.monotonic()
        if self.template is not None:
            self._deaths = self._deaths + 1 if now_s - self._started_s < _TEMPLATE_CALM_S else 1
            self.template = None
            if self._deaths >= _TEMPLATE_DEATHS:
                self._deaths = 0
                self.calm_until_s = now_s + _TEMPLATE_CALM_S
        self._started_s = now_s
        return now_s >= self.calm_until_s

    @property
    def why(self) -> str | None:
        """All obstacles in one text; only the reason where all have the same one; None when there is no obstacle."""
        obstacles = self.obstacles
        reasons = {obstacle.reason for obstacle in obstacles}
        if len(reasons) == 1:
            return reasons.pop()
        return "; ".join(obstacle.text for obstacle in obstacles) or None

    def describe(self) -> dict[str, Any]:
        """For ``/_thawd/status``; `ApplyOn` and `OptimizationStatus` are those of Lambda's SnapStart."""
        wanted = self.unfrozen is None or self.unfrozen.kind is not None
        return {
            "ApplyOn": "PublishedVersions" if wanted else "None",
            "OptimizationStatus": "Off" if self.frozen is None else "On",
            "refused": None if self.unfrozen is None else self.unfrozen.text,
            **({} if self.frozen is None else self.frozen.describe()),
        }
