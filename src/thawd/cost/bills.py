"""What a function costs a month on AWS Lambda, and when something else costs less. Pure: numbers in, numbers out.

A month has 730 hours and a GB 1,024 MB, as in AWS's own calculator. Each formula names the sentence of AWS that it is.

Source, unless said otherwise: AWS Lambda pricing page.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from thawd.cost.prices import CostError, Prices

# Source: AWS Pricing Calculator: "730 hours in a month".
MONTH_S = 730 * 3600.0
_MB_PER_GB = 1024
_MOST_INVOCATIONS = 10**15


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A function as it would be configured.

    Attributes:
        memory_mb: 128-10,240.
        architecture: ``x86_64`` or ``arm64``.
        storage_mb: size of ``/tmp``, 512-10,240.
        snapstart: whether environments are restored from a snapshot (Python: charged for).
        provisioned: environments kept initialised.
        provisioned_s: how long of the month they are, seconds.
        kept_s: with SnapStart: how long of the month the version with its snapshot is there, seconds.
    """

    memory_mb: int
    architecture: str = "x86_64"
    storage_mb: int = 512
    snapstart: bool = False
    provisioned: int = 0
    provisioned_s: float = MONTH_S
    kept_s: float = MONTH_S

    def __post_init__(self) -> None:
        # Source: Lambda developer guide, "Lambda SnapStart", "Supported features and limitations".
        if self.snapstart and self.provisioned:
            raise CostError("SnapStart and provisioned concurrency exclude each other on Lambda; take one of them")
        if self.snapstart and self.storage_mb > 512:
            raise CostError(f"SnapStart takes at most 512 MB of /tmp on Lambda, not {self.storage_mb}")

    @property
    def memory_gb(self) -> float:
        """Memory, GB."""
        return self.memory_mb / _MB_PER_GB


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """What Lambda bills of an invocation, on average, in milliseconds.

    Attributes:
        warm_ms: in an environment that was there.
        first_ms: in one that was started for it: its duration with init, or with the billed part of a restore.
    """

    warm_ms: float
    first_ms: float

    def mean_ms(self, start_share: float) -> float:
        """Over all invocations, when this share of them has an environment started."""
        return (1 - start_share) * self.warm_ms + start_share * self.first_ms


class MonthlyLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A month's invocations.

    Attributes:
        invocations: how many.
        start_share: part of them for which an environment is started, 0-1.
        provisioned_share: part of them that provisioned environments serve, 0-1; never with a start.
    """

    invocations: float
    start_share: float = 0.0
    provisioned_share: float = 0.0


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """A month's bill, item by item, in the prices' currency."""

    requests: float = 0.0
    duration: float = 0.0
    provisioned: float = 0.0
    provisioned_duration: float = 0.0
    snapstart_cache: float = 0.0
    snapstart_restore: float = 0.0
    storage: float = 0.0

    @property
    def total(self) -> float:
        """All items."""
        return float(sum(msgspec.structs.astuple(self)))


def billed_ms(duration_ms: float, init_ms: float = 0.0) -> int:
    """What is billed of an invocation.

    "Duration is calculated from the time your code begins executing until it returns or otherwise terminates, rounded
    up to the nearest 1 ms"; the init phase counts with it. Source: also AWS Compute Blog, "AWS Lambda standardizes
    billing for INIT Phase" (since 2025-08).
    """
    return math.ceil(duration_ms + init_ms)


def billed_restored_ms(duration_ms: float, restore_ms: float) -> int:
    """What is billed of an invocation in a restored environment.

    Source: Lambda developer guide, "Monitoring for Lambda SnapStart": of a restore, the time is billed that the runtime
    and the after-restore hooks take (``Billed Restore Duration``).
    """
    return math.ceil(duration_ms) + math.ceil(restore_ms)


def bill(prices: Prices, shape: Shape, times: Times, load: MonthlyLoad, *, free_tier: bool = False) -> Bill:
    """The month's bill.

    Args:
        prices: what things cost.
        shape: how the function is configured.
        times: what is billed of its invocations.
        load: its invocations.
        free_tier: whether the account's monthly free tier is all for this function.
    """
    compute = prices.compute(shape.architecture)
    in_provisioned = load.invocations * load.provisioned_share if shape.provisioned else 0.0
    on_demand = load.invocations - in_provisioned
    seconds = on_demand * times.mean_ms(min(1.0, _of(load.invocations * load.start_share, on_demand))) / 1000
    provisioned_seconds = in_provisioned * times.warm_ms / 1000
    # "The Lambda free tier does not apply to functions enabling Provisioned Concurrency"; in the page's examples it
    # does to what runs on demand in the rest of the month.
    free = free_tier and not (shape.provisioned and shape.provisioned_s >= MONTH_S)
    requests = in_provisioned + max(0.0, on_demand - (prices.free_requests if free else 0))
    gb_s = seconds * shape.memory_gb - (prices.free_gb_s if free else 0)
    starts = load.invocations * load.start_share
    return Bill(
        requests=requests * prices.million_requests / 1e6,
        duration=compute.duration(max(0.0, gb_s)),
        provisioned=_provisioned(prices, shape),
        provisioned_duration=provisioned_seconds * shape.memory_gb * compute.provisioned_duration_gb_s,
        snapstart_cache=_cache(prices, shape) if shape.snapstart else 0.0,
        snapstart_restore=starts * shape.memory_gb * prices.snapstart_restore_gb if shape.snapstart else 0.0,
        storage=_storage_gb(prices, shape) * (seconds + provisioned_seconds) * prices.storage_gb_s,
    )


def _of(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _provisioned(prices: Prices, shape: Shape) -> float:
    """The amount of concurrency, of memory, and of time "from when you enable it, rounded up to five minutes"."""
    step_s = prices.provisioned_step_s
    billed_s = math.ceil(shape.provisioned_s / step_s) * step_s
    return shape.provisioned * shape.memory_gb * billed_s * prices.compute(shape.architecture).provisioned_gb_s


def _cache(prices: Prices, shape: Shape) -> float:
    """ "The price depends on the amount of memory": for as long as the version is active, three hours at least."""
    return max(shape.kept_s, prices.snapstart_cache_least_s) * shape.memory_gb * prices.snapstart_cache_gb_s


def _storage_gb(prices: Prices, shape: Shape) -> float:
    """ "You pay only for any additional storage" above 512 MB, for the time that the function runs."""
    return max(0.0, shape.storage_mb - prices.storage_free_mb) / _MB_PER_GB


def per_million(prices: Prices, shape: Shape, times: Times, *, start_share: float = 0.0) -> float:
    """What a million invocations add to a bill: without free tier and what is fixed, at the first step of prices."""
    load = MonthlyLoad(invocations=1e6, start_share=start_share)
    bare = bill(prices, msgspec.structs.replace(shape, provisioned=0), times, load)
    return bare.total - bare.snapstart_cache


def break_even(cost: Callable[[float], float], other: Callable[[float], float]) -> float | None:
    """From how many invocations a month on `other` costs less than `cost`; None: never, or from the first.

    Args:
        cost: of so many invocations a month.
        other: the same of what it is compared with; the difference of the two may cross zero once.
    """
    if cost(0) > other(0):
        return None
    low, high = 0.0, 1.0
    while cost(high) <= other(high):
        low, high = high, high * 2
        if high > _MOST_INVOCATIONS:
            return None
    while high - low > max(1e-6, 1e-12 * high):
        middle = (low + high) / 2
        if cost(middle) <= other(middle):
            low = middle
        else:
            high = middle
    return high


def against_server(
    prices: Prices, shape: Shape, times: Times, monthly: float, *, start_share: float = 0.0, free_tier: bool = False
) -> float | None:
    """From how many invocations a month on a server that is always on, at a monthly price, costs less; None: never."""

    def cost(invocations: float) -> float:
        load = MonthlyLoad(invocations=invocations, start_share=start_share)
        return bill(prices, shape, times, load, free_tier=free_tier).total

    return break_even(cost, lambda _invocations: monthly)


class ProvisionedBreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """When one environment that is kept initialised costs less than starting them on demand.

    Attributes:
        invocations: a month, from which on it does; None: it never does.
        busy_share: part of the time that it is then at work, 0-1; None: with `invocations`.
    """

    invocations: float | None
    busy_share: float | None


def against_provisioned(
    prices: Prices, shape: Shape, times: Times, *, start_share: float = 0.0, free_tier: bool = False
) -> ProvisionedBreakEven:
    """The break-even of one provisioned environment with an environment on demand, over a month.

    Duration costs less in it, and it costs the more whatever it does: with warm invocations alone, it is cheaper once
    it is busy for provisioned / (duration - provisioned duration) of the time, 60 % at the prices of 2026-09.
    """
    provisioned = msgspec.structs.replace(shape, snapstart=False, provisioned=1, provisioned_s=MONTH_S)

    def on_demand(invocations: float) -> float:
        load = MonthlyLoad(invocations=invocations, start_share=start_share)
        return bill(prices, msgspec.structs.replace(shape, provisioned=0), times, load, free_tier=free_tier).total

    def kept(invocations: float) -> float:
        return bill(prices, provisioned, times, MonthlyLoad(invocations=invocations, provisioned_share=1.0)).total

    found = break_even(on_demand, kept)
    busy = None if found is None else found * times.warm_ms / 1000 / MONTH_S
    if found is None or busy is None or busy > 1:  # more than one environment can do
        return ProvisionedBreakEven(invocations=None, busy_share=None)
    return ProvisionedBreakEven(invocations=found, busy_share=busy)
