"""What a version's environments are started from (an image, a template or nothing), and why they start no faster.

An environment is thawed from an image, forked from a template, or else started cold; the first is the fastest.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from thawd.environments import debugging
from thawd.environments.starts.frozen_images import Frozen
from thawd.environments.starts.template import Template
from thawd.environments.version import Version
from thawd.invocation import StartKind
from thawd.telemetry.metrics import Fallback

# A template is short-lived if it must be replaced less than a minute after it was started. After this many short-lived
# templates in a row, no template is started for a minute.
_TEMPLATE_DEATHS = 3
_TEMPLATE_CALM_S = 60.0


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a faster kind of start is not possible.

    Attributes:
        text: the reason as text for people, with a remedy if there is one.
        kind: the counter for starts that are slower for this reason; None: they are not counted, because
            nothing has failed: the reason is the configuration, the machine, or what kind of function it is.
    """

    text: str
    kind: Fallback | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why one kind of start is not possible.

    Attributes:
        start: ``thaw`` or ``fork``.
        reason: the reason as text for people, with a remedy if there is one.
    """

    start: StartKind
    reason: str

    @property
    def text(self) -> str:
        """The reason with the kind of start, for example ``not thawed: snapshot = false``."""
        return f"not {_DONE[self.start]}: {self.reason}"


_DONE = {StartKind.THAW: "thawed", StartKind.FORK: "forked"}


def first_counted(*reasons: Reason | None) -> Reason | None:
    """Return the first of these reasons that has a counter; None when none has."""
    return next((reason for reason in reasons if reason is not None and reason.kind is not None), None)


# Functions share these, because there may be thousands of functions.
_SWITCHED_OFF = Reason("snapshot = false")
_DEBUGGED = Reason(debugging.WHY_COLD)
_HAS_A_ROOT = Reason("each environment of a container image has a root of its own")
_RUNS_A_PROGRAM = Reason("the function runs a program over the Runtime API; thawd copies only its own Python runtime")


class Origin:
    """The image or template from which a version's environments are started, and the reasons for slower starts.

    Attributes:
        version: the version.
        why_no_image: why there is no image and none will be made; None while there is one or one may still be made.
        why_no_fork: why no environment is forked; None while environments may be forked.
        frozen: the image that environments are thawed from; None while there is none.
        freezing: the task that finds or makes the image; None when none runs.
        template: forks environments; None when there is none. If there is an image, the template is a copy thawed from
            it, and forks environments only while several of them start at the same time.
        starting: the task that starts the template; None when none runs.
        spare_refused: why the version can have no spare; None as long as it can.
        renewing: whether the image is being replaced, because it can no longer be thawed on this machine.
        renewals: how often the image was replaced.
        thawing: number of thaws in progress.
        environments: number of live environments.
        retired: whether the version is retired: new environments are then started cold.
        superseded: whether the version is retired because it no longer exists, not because the server stops.
        calm_until_s: no template is started before this time, ``time.monotonic()`` seconds.
        reported: the obstacles that were reported to the operator already, as texts; each is reported once.
    """

    __slots__ = (
        "_deaths",
        "_started_s",
        "calm_until_s",
        "environments",
        "freezing",
        "frozen",
        "renewals",
        "renewing",
        "reported",
        "retired",
        "spare_refused",
        "starting",
        "superseded",
        "template",
        "thawing",
        "version",
        "why_no_fork",
        "why_no_image",
    )

    def __init__(self, version: Version, *, why_no_image: Reason | None = None) -> None:
        self.version = version
        cold = None if version.function.snapshot else _SWITCHED_OFF
        if version.program is not None:
            why = version.program.why
            cold = Reason(f"{why}; thawd copies only its own Python runtime") if why else _RUNS_A_PROGRAM
        if version.debugged:
            cold = _DEBUGGED
        self.why_no_image: Reason | None = cold or why_no_image
        self.why_no_fork: Reason | None = cold
        if version.root is not None and cold is None:
            self.why_no_fork = _HAS_A_ROOT
        self.frozen: Frozen | None = None
        self.freezing: asyncio.Task[None] | None = None
        self.template: Template | None = None
        self.starting: asyncio.Task[Template] | None = None
        self.spare_refused: str | None = None
        self.renewing = False
        self.renewals = 0
        self.thawing = 0
        self.environments = 0
        self.retired = False
        self.superseded = False
        self.calm_until_s = 0.0
        self.reported: tuple[str, ...] = ()
        self._deaths = 0
        self._started_s = 0.0

    def retire(self) -> None:
        """Start all further environments cold."""
        self.retired = True
        self.why_no_image = self.why_no_fork = Reason("the version is retired")

    @property
    def start(self) -> StartKind:
        """The fastest kind of start that is possible now."""
        if self.frozen is not None:
            return StartKind.THAW
        return StartKind.COLD if self.why_no_fork is not None else StartKind.FORK

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """Why each faster kind of start is not possible; empty when environments are thawed.

        The obstacle to a thaw comes before the obstacle to a fork, because thawd tries to freeze before it forks.
        """
        reasons = {StartKind.THAW: self.why_no_image, StartKind.FORK: self.why_no_fork}
        faster = {StartKind.THAW: 0, StartKind.FORK: 1, StartKind.COLD: 2}[self.start]
        return tuple(Obstacle(kind, why.text) for kind, why in list(reasons.items())[:faster] if why is not None)

    @property
    def init_ms(self) -> float | None:
        """How long init took before the freeze or in the template, milliseconds; None without image and template."""
        if self.frozen is not None:
            return self.frozen.init_ms
        return None if self.template is None else self.template.init_ms

    def live_template(self) -> Template | None:
        """Return the template, if it can fork now."""
        return None if self.template is None or self.template.ended.is_set() else self.template

    def template_started(self, start: asyncio.Task[Template]) -> None:
        """The start of a template has finished: keep the template, unless the version is retired."""
        self.starting = None
        if start.cancelled() or start.exception() is not None:
            return
        self.template = start.result()
        if self.retired:
            self.template.kill()

    def may_start_template(self) -> bool:
        """Return whether a template may be started now: not for a while if several in a row were short-lived.

        Call this only before a start, because each call counts the template that has ended.
        """
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
        """All obstacles in one text; None when there is none. If all have the same reason, the text is this reason."""
        obstacles = self.obstacles
        reasons = {obstacle.reason for obstacle in obstacles}
        if len(reasons) == 1:
            return reasons.pop()
        return "; ".join(obstacle.text for obstacle in obstacles) or None

    def describe(self) -> dict[str, Any]:
        """Return the image's entry in the status document. The fields with capitals are those of SnapStart."""
        wanted = self.why_no_image is None or self.why_no_image.kind is not None
        return {
            "ApplyOn": "PublishedVersions" if wanted else "None",
            "OptimizationStatus": "Off" if self.frozen is None else "On",
            "refused": None if self.why_no_image is None else self.why_no_image.text,
            **({} if self.frozen is None else self.frozen.describe()),
        }
