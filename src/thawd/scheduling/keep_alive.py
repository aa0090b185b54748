"""How long a function's environments are kept while nobody asks, and when one is started ahead. Pure: `now` is given.

Two policies: a fixed time, and the hybrid histogram policy, which learns from the times that the function was idle.
`Keeper` applies one of them to a function; the pool asks it, and so does the simulation of `thawd cost`, so that what
was simulated is what happens.

Source: Shahrad et al., "Serverless in the Wild: Characterizing and Optimizing the Serverless Workload at a Large Cloud
Provider", USENIX ATC 2020, section 4.2. What differs: with too few or too long idle times the fixed time is taken (the
paper takes the histogram's range, and a forecast by ARIMA), and as the paper looks at one image of an application, the
windows are of one environment: what a burst leaves besides it goes by the fixed time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

FIXED, HISTOGRAM = "fixed", "histogram"
POLICIES = (FIXED, HISTOGRAM)
"""Names of the policies, as in ``functions.NAME.keep_alive``."""
# A timer may be a moment early by another clock.
_EARLY_S = 0.01


@dataclass(frozen=True, slots=True)
class Windows:
    """What to do when a function becomes idle.

    Attributes:
        prewarm_s: after so many seconds an environment is to be there again; 0: it is kept from the beginning.
        keep_alive_s: it is kept for so many seconds from then on.
    """

    prewarm_s: float
    keep_alive_s: float


class Policy(Protocol):
    """Decides by what was."""

    def observe(self, idle_s: float) -> None:
        """The function was idle for so many seconds, until it was invoked."""

    def windows(self) -> Windows:
        """What to do in the idle time that begins now."""


class FixedPolicy:
    """Keeps an environment for the same time always, as Lambda does."""

    def __init__(self, keep_alive_s: float) -> None:
        self._windows = Windows(0.0, keep_alive_s)

    def observe(self, idle_s: float) -> None:
        """See `Policy.observe`."""

    def windows(self) -> Windows:
        """See `Policy.windows`."""
        return self._windows


@dataclass(frozen=True, slots=True)
class HistogramParameters:
    """Those of the paper's evaluation, but for the two that it leaves open.

    Attributes:
        bin_s: width of a bin, seconds.
        bins: how many there are; what is idle for longer is out of bounds.
        head: the quantile of idle times before which no environment is needed; rounded down to its bin's begin.
        tail: that after which none is needed any more; rounded up to its bin's end.
        margin: by so much of themselves head and tail are made earlier and later.
        least_variation: the counts of the bins have at least this coefficient of variation, or say nothing.
        least_observations: with fewer idle times than this nothing is known yet. Ours.
        most_out_of_bounds: with a larger share of idle times out of bounds the histogram is too short. Ours.
    """

    bin_s: float = 60.0
    bins: int = 240
    head: float = 0.05
    tail: float = 0.99
    margin: float = 0.1
    least_variation: float = 2.0
    least_observations: int = 10
    most_out_of_bounds: float = 0.5


class HistogramPolicy:
    """The hybrid histogram policy: unloads for the time in which nobody ever asks, and is back before they do.

    Args:
        fallback_s: kept for so long while the histogram does not tell.
        parameters: of the histogram.
    """

    def __init__(self, fallback_s: float, parameters: HistogramParameters | None = None) -> None:
        self._parameters = parameters or HistogramParameters()
        self._fallback = Windows(0.0, fallback_s)
        self._counts = [0] * self._parameters.bins
        self._out_of_bounds = 0
        self._total = 0  # within bounds
        self._squares = 0

    def observe(self, idle_s: float) -> None:
        """See `Policy.observe`."""
        place = int(idle_s / self._parameters.bin_s)
        if place >= self._parameters.bins:
            self._out_of_bounds += 1
            return
        self._squares += 2 * self._counts[place] + 1
        self._counts[place] += 1
        self._total += 1

    def windows(self) -> Windows:
        """See `Policy.windows`."""
        if not self.tells():
            return self._fallback
        parameters = self._parameters
        head_s = self._bin_of(parameters.head) * parameters.bin_s * (1 - parameters.margin)
        tail_s = (self._bin_of(parameters.tail) + 1) * parameters.bin_s * (1 + parameters.margin)
        return Windows(head_s, tail_s - head_s)

    def tells(self) -> bool:
        """Whether the histogram says anything: enough times, few out of bounds, and not the same of all lengths."""
        parameters = self._parameters
        observed = self._total + self._out_of_bounds
        if observed < parameters.least_observations or not self._total:
            return False
        if self._out_of_bounds > parameters.most_out_of_bounds * observed:
            return False
        return self.variation() >= parameters.least_variation

    def variation(self) -> float:
        """Coefficient of variation of the bins' counts: their standard deviation by their mean."""
        mean = self._total / self._parameters.bins
        variance = self._squares / self._parameters.bins - mean**2
        return math.sqrt(max(0.0, variance)) / mean if mean else 0.0

    def _bin_of(self, quantile: float) -> int:
        """The bin in which this share of the idle times within bounds is reached."""
        wanted = quantile * self._total
        reached = 0
        for place, count in enumerate(self._counts):
            reached += count
            if count and reached >= wanted:
                return place
        return self._parameters.bins - 1


def policy_of(name: str, fixed_s: float) -> Policy:
    """The policy of that name.

    Args:
        name: one of `POLICIES`.
        fixed_s: the fixed time, which the histogram falls back on.
    """
    return HistogramPolicy(fixed_s) if name == HISTOGRAM else FixedPolicy(fixed_s)


class Keeper:
    """Applies a policy to one function: follows when it is idle, says until when environments are kept.

    Args:
        policy: decides.
        surplus_s: an environment that the policy is not about is kept for so long after its last use, seconds.
    """

    def __init__(self, policy: Policy, *, surplus_s: float) -> None:
        self.policy = policy
        self.surplus_s = surplus_s
        self._windows = policy.windows()
        self._idle_since_s: float | None = None

    def asked(self, now_s: float) -> None:
        """Somebody asks for an environment: the function is idle no more."""
        if self._idle_since_s is not None:
            self.policy.observe(now_s - self._idle_since_s)
            self._idle_since_s = None

    def at_rest(self, now_s: float) -> None:
        """Nothing runs and nobody waits: the function is idle from now on."""
        if self._idle_since_s is None:
            self._idle_since_s = now_s
            self._windows = self.policy.windows()

    def kept_until_s(self, idle_since_s: float, *, chosen: bool) -> float:
        """Until when an environment is kept.

        Args:
            idle_since_s: when it was used last, or had been started.
            chosen: whether it is the one that would be used next.
        """
        since_s, windows = self._idle_since_s, self._windows
        if since_s is None:
            return idle_since_s + self.surplus_s
        if windows.prewarm_s and idle_since_s < since_s + windows.prewarm_s - _EARLY_S:
            return since_s  # nobody asks so soon
        if chosen:
            return since_s + windows.prewarm_s + windows.keep_alive_s
        return idle_since_s + self.surplus_s

    def prewarm_at_s(self) -> float | None:
        """When one is to be there again; None: it is kept, or the function is not idle."""
        if self._idle_since_s is None or not self._windows.prewarm_s:
            return None
        return self._idle_since_s + self._windows.prewarm_s

    def prewarm_until_s(self) -> float | None:
        """Until when what was started ahead is kept; None with `prewarm_at_s`."""
        at_s = self.prewarm_at_s()
        return None if at_s is None else at_s + self._windows.keep_alive_s
