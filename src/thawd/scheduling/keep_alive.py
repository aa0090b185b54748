"""Keep-alive policies: how long a function's idle environments are kept, and when one is prewarmed.

There are two policies: a fixed time, and the hybrid histogram policy, which learns from the function's idle times.
`Keeper` applies one of them to a function. Both the pool and the simulation of `thawd cost` use `Keeper`, so they
follow the same rules. Nothing in this module starts or ends an environment or reads a clock: the time is a parameter.

Source: Shahrad et al., "Serverless in the Wild: Characterizing and Optimizing the Serverless Workload at a Large Cloud
Provider", USENIX ATC 2020, section 4.2. thawd differs in two points. First, if there are too few idle times, or too
many that exceed the histogram's range, thawd uses the fixed time; the paper uses the whole range of the histogram in
the first case and an ARIMA forecast in the second. Second, the paper considers one copy of an application, but a
function can have several environments. If the histogram gives a prewarm time, all of them end when the function becomes
idle. If it gives none, the keep-alive window applies to one environment, and the others are kept for the fixed time.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol

FIXED, HISTOGRAM = "fixed", "histogram"
POLICIES = (FIXED, HISTOGRAM)
"""Names of the policies, as in ``functions.NAME.keep_alive``."""
# The event loop's timers count whole milliseconds, and can fire slightly too early. This much is allowed for that.
_EARLY_S = 0.01


@dataclass(frozen=True, slots=True)
class Windows:
    """The times during which one environment is kept after a function has become idle.

    Attributes:
        prewarm_s: seconds until an environment is prewarmed; 0: none is prewarmed, because one is kept from the
            beginning.
        keep_alive_s: seconds for which that environment is kept from then on.
    """

    prewarm_s: float
    keep_alive_s: float


class Policy(Protocol):
    """Decides how long an environment is kept, from the idle times so far."""

    def observe(self, idle_s: float) -> None:
        """Record that the function was idle for `idle_s` seconds before it was invoked."""

    def windows(self) -> Windows:
        """Return the windows for an idle time that begins now."""


class FixedPolicy:
    """Always keeps an environment for a fixed time, as Lambda does."""

    __slots__ = ("_windows",)

    def __init__(self, keep_alive_s: float) -> None:
        self._windows = Windows(0.0, keep_alive_s)

    def observe(self, idle_s: float) -> None:
        """Do nothing: the fixed time does not depend on idle times."""

    def windows(self) -> Windows:
        """Return the windows, which are always the same."""
        return self._windows


@dataclass(frozen=True, slots=True)
class HistogramParameters:
    """Parameters of the histogram. The values are those of the paper's evaluation, except the last two.

    Attributes:
        bin_s: width of a bin, seconds.
        bins: number of bins; idle times beyond the last bin are out of bounds.
        head: quantile of idle times before which no environment is needed; rounded down to the beginning of its bin.
        tail: quantile of idle times after which an environment is no longer needed; rounded up to the end of its bin.
        margin: for safety, the head's time is made shorter, and the tail's time longer, each by this share of itself.
        least_variation: the histogram is used if the coefficient of variation of its bins' counts is at least this.
        least_observations: the histogram is used if it has at least this many idle times. Chosen by thawd.
        most_out_of_bounds: the histogram is used if at most this share of idle times is out of bounds. Chosen by thawd.
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
    """The hybrid histogram policy: keeps no environment while no request is expected, and prewarms one in time for it.

    Args:
        fallback_s: how long environments are kept while the histogram is not used, seconds.
        parameters: parameters of the histogram; None: the defaults.
    """

    def __init__(self, fallback_s: float, parameters: HistogramParameters | None = None) -> None:
        self._parameters = parameters or HistogramParameters()
        self._fallback = Windows(0.0, fallback_s)
        self._counts = [0] * self._parameters.bins
        self._out_of_bounds = 0
        self._total = 0  # idle times within bounds
        self._squares = 0

    def observe(self, idle_s: float) -> None:
        """Add an idle time to the histogram, or count it as out of bounds."""
        place = int(idle_s / self._parameters.bin_s)
        if place >= self._parameters.bins:
            self._out_of_bounds += 1
            return
        self._squares += 2 * self._counts[place] + 1
        self._counts[place] += 1
        self._total += 1

    def windows(self) -> Windows:
        """Return the windows from the histogram, or the fixed time if the histogram is not used."""
        if not self.is_representative():
            return self._fallback
        parameters = self._parameters
        head_s = self._bin_of(parameters.head) * parameters.bin_s * (1 - parameters.margin)
        tail_s = (self._bin_of(parameters.tail) + 1) * parameters.bin_s * (1 + parameters.margin)
        return Windows(head_s, tail_s - head_s)

    def is_representative(self) -> bool:
        """Return whether the histogram is used: it has enough idle times, few out of bounds, and clear peaks."""
        parameters = self._parameters
        observed = self._total + self._out_of_bounds
        if observed < parameters.least_observations or not self._total:
            return False
        if self._out_of_bounds > parameters.most_out_of_bounds * observed:
            return False
        return self.variation() >= parameters.least_variation

    def variation(self) -> float:
        """Return the coefficient of variation of the bins' counts: their standard deviation divided by their mean."""
        mean = self._total / self._parameters.bins
        variance = self._squares / self._parameters.bins - mean**2
        return math.sqrt(max(0.0, variance)) / mean if mean else 0.0

    def _bin_of(self, quantile: float) -> int:
        """Return the index of the bin that contains the `quantile` of the idle times within bounds."""
        wanted = quantile * self._total
        reached = 0
        for place, count in enumerate(self._counts):
            reached += count
            if count and reached >= wanted:
                return place
        return self._parameters.bins - 1


def policy_of(name: str, fixed_s: float) -> Policy:
    """Return a policy of the kind `name`; one that learns is new.

    Args:
        name: one of `POLICIES`.
        fixed_s: the fixed time, seconds. The histogram policy falls back to it.
    """
    return HistogramPolicy(fixed_s) if name == HISTOGRAM else _fixed(fixed_s)


@functools.lru_cache
def _fixed(keep_alive_s: float) -> FixedPolicy:
    """Return the policy with this fixed time. It learns nothing, so functions can share it."""
    return FixedPolicy(keep_alive_s)


class Keeper:
    """Applies a policy to one function: records when the function is idle, and decides how long environments are kept.

    Args:
        policy: the policy, which applies to one environment.
        surplus_s: how long the function's other environments are kept after their last use, seconds.

    Attributes:
        is_fixed: whether the policy always keeps environments for the same time.
    """

    __slots__ = ("_idle_since_s", "_windows", "is_fixed", "policy", "surplus_s")

    def __init__(self, policy: Policy, *, surplus_s: float) -> None:
        self.policy = policy
        self.surplus_s = surplus_s
        self.is_fixed = type(policy) is FixedPolicy
        self._windows = policy.windows()
        self._idle_since_s: float | None = None

    def describe(self) -> dict[str, float]:
        """Return the windows of the policy for the status document, seconds."""
        windows = self.policy.windows()
        return {"prewarm_s": round(windows.prewarm_s, 3), "keep_alive_s": round(windows.keep_alive_s, 3)}

    def asked(self, now_s: float) -> None:
        """Record that a request needs an environment, so the function is no longer idle."""
        if self._idle_since_s is not None:
            self.policy.observe(now_s - self._idle_since_s)
            self._idle_since_s = None

    def at_rest(self, now_s: float) -> None:
        """Record that no request runs or waits, so the function is idle from now on."""
        if self._idle_since_s is None:
            self._idle_since_s = now_s
            self._windows = self.policy.windows()

    def kept_until_s(self, idle_since_s: float, *, chosen: bool) -> float:
        """Return until when an environment is kept.

        Args:
            idle_since_s: when the environment was last used, or started.
            chosen: whether the next request would get this environment. Only that environment is kept for the policy's
                keep-alive window.
        """
        since_s, windows = self._idle_since_s, self._windows
        if since_s is None:
            return idle_since_s + self.surplus_s
        if windows.prewarm_s and idle_since_s < since_s + windows.prewarm_s - _EARLY_S:
            return since_s  # no request is expected before the prewarm time, so the environment is to end now
        if chosen:
            return since_s + windows.prewarm_s + windows.keep_alive_s
        return idle_since_s + self.surplus_s

    def prewarm_at_s(self) -> float | None:
        """Return when to prewarm an environment; None: an environment is kept anyway, or the function is not idle."""
        if self._idle_since_s is None or not self._windows.prewarm_s:
            return None
        return self._idle_since_s + self._windows.prewarm_s

    def prewarm_until_s(self) -> float | None:
        """Return until when a prewarmed environment is kept; None: `prewarm_at_s` is None."""
        at_s = self.prewarm_at_s()
        return None if at_s is None else at_s + self._windows.keep_alive_s
