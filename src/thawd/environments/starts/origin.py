"""Where the environments of a version come from, and why not from somewhere faster."""

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

# A template that dies so often, each time within a minute, is left alone for as long: environments start cold.
_TEMPLATE_DEATHS = 3
_TEMPLATE_CALM_S = 60.0


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the fastest start is not taken.

    Attributes:
        text: for people, with the way out.
        kind: under what to count the starts that are slower for it; None: it is what was asked for.
    """

    text: str
    kind: Fallback | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why environments do not start in one way.

    Attributes:
        start: the way, ``thaw`` or ``fork``.
        reason: for people, with the way out.
    """

    start: StartKind
    reason: str

    @property
    def text(self) -> str:
        """For people, with the way, for example ``not thawed: snapshot = false``."""
        return f"not {_DONE[self.start]}: {self.reason}"


_DONE = {StartKind.THAW: "thawed", StartKind.FORK: "forked"}


def first_counted(*reasons: Reason | None) -> Reason | None:
    """The first of these for which starts are counted, None when there is none."""
    return next((reason for reason in reasons if reason is not None and reason.kind is not None), None)


class Origin:
    """Where a version's environments come from: its image, its template, or why there is neither.

    Attributes:
        unfrozen: why there is no image and none is to be made; None while there is one, or it is not known yet.
        unforked: why no environment is forked; None while they may be.
        frozen: the image that environments are thawed from.
        freezing: under way while the image is looked for or made.
        template: forks environments; a thawed copy where there is an image, for bursts.
        starting: under way while the template starts.
        renewing: whether an image is made anew, because the last one does not fit this machine any more.
        renewals: how often that was so.
        thawing: thaws under way.
        environments: those alive.
        calm_until_s: no template is started before, ``time.monotonic()`` seconds.
        superseded: whether it is retired because the version exists no more, not because the server stops.
        told: reasons that were reported already.
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
        """Environments come from nowhere fast any more."""
        self.retired = True
        self.unfrozen = self.unforked = Reason("the version is retired")

    @property
    def start(self) -> StartKind:
        """How environments start now."""
        if self.frozen is not None:
            return StartKind.THAW
        return StartKind.COLD if self.unforked is not None else StartKind.FORK

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """Why environments do not start in each faster way, the first cause first; empty when they are thawed.

        A freeze is tried before a fork: what forbids the freeze is named first, also where a fork is forbidden, too.
        """
        ways = {StartKind.THAW: self.unfrozen, StartKind.FORK: self.unforked}
        faster = {StartKind.THAW: 0, StartKind.FORK: 1, StartKind.COLD: 2}[self.start]
        return tuple(Obstacle(kind, why.text) for kind, why in list(ways.items())[:faster] if why is not None)

    @property
    def init_ms(self) -> float | None:
        """How long init took before the freeze or in the template, milliseconds; None when there is neither."""
        if self.frozen is not None:
            return self.frozen.init_ms
        return None if self.template is None else self.template.init_ms

    def live_template(self) -> Template | None:
        """The template if it can fork now."""
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
        """Whether to start a template, again after the last one has ended."""
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
        """All obstacles in one text; where all have one reason, that; None when there is none."""
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
