"""Computes monthly bills of a function on AWS Lambda, and from how many invocations on an alternative costs less.

A month has 730 hours and a GB has 1,024 MB, as in AWS's own calculator. Text in quotation marks is AWS's.

Source, unless another is named: AWS Lambda pricing page.
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
    """Configuration of a function on Lambda.

    Attributes:
        memory_mb: memory size, MB, 128-10,240.
        architecture: ``x86_64`` or ``arm64``.
        storage_mb: size of ``/tmp``, MB, 512-10,240.
        snapstart: whether environments are restored from a snapshot (which costs extra for Python).
        provisioned: number of environments kept initialised.
        provisioned_s: how long they are kept initialised in the month, seconds.
        kept_s: with SnapStart: how long the version has a snapshot in the month, seconds.
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
            raise CostError("Lambda does not allow SnapStart together with provisioned concurrency; choose one of them")
        if self.snapstart and self.storage_mb > 512:
            raise CostError(
                f"Lambda allows SnapStart only with at most 512 MB of /tmp, not {self.storage_mb}; choose a smaller "
                "--storage"
            )

    @property
    def memory_gb(self) -> float:
        """Memory, GB."""
        return self.memory_mb / _MB_PER_GB


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Average billed duration of an invocation, in milliseconds.

    Attributes:
        warm_ms: billed duration in a warm environment.
        first_ms: billed duration if an environment is started for the invocation, including init or the billed part
            of a restore.
    """

    warm_ms: float
    first_ms: float

    def mean_ms(self, start_share: float) -> float:
        """Average over all invocations, if this share of them starts an environment."""
        return (1 - start_share) * self.warm_ms + start_share * self.first_ms


class MonthlyLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A month's invocations.

    Attributes:
        invocations: number of invocations.
        start_share: share of invocations that start an environment, 0-1.
        provisioned_share: share of invocations that provisioned environments serve, 0-1; no environment is started
            for these.
    """

    invocations: float
    start_share: float = 0.0
    provisioned_share: float = 0.0


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a month's bill, in the currency of the price file."""

    requests: float = 0.0
    duration: float = 0.0
    provisioned: float = 0.0
    provisioned_duration: float = 0.0
    snapstart_cache: float = 0.0
    snapstart_restore: float = 0.0
    storage: float = 0.0

    @property
    def total(self) -> float:
        """Sum of all items."""
        return float(sum(msgspec.structs.astuple(self)))


def billed_ms(duration_ms: float, init_ms: float = 0.0) -> int:
    """Billed duration of an invocation.

    "Duration is calculated from the time your code begins executing until it returns or otherwise terminates, rounded
    up to the nearest 1 ms". The init phase is billed too. Source: also AWS Compute Blog, "AWS Lambda standardizes
    billing for INIT Phase" (since 2025-08).
    """
    return math.ceil(duration_ms + init_ms)


def billed_restored_ms(duration_ms: float, restore_ms: float) -> int:
    """Billed duration of an invocation in a restored environment.

    Source: Lambda developer guide, "Monitoring for Lambda SnapStart". Of a restore, Lambda bills only the time that the
    runtime and the after-restore hooks take (``Billed Restore Duration``).
    """
    return math.ceil(duration_ms) + math.ceil(restore_ms)


def bill(prices: Prices, shape: Shape, times: Times, load: MonthlyLoad, *, free_tier: bool = False) -> Bill:
    """Compute the month's bill.

    Args:
        prices: prices of Lambda.
        shape: configuration of the function.
        times: billed durations.
        load: invocations of the month.
        free_tier: whether to subtract the account's whole monthly free tier.
    """
    compute = prices.compute(shape.architecture)
    in_provisioned = load.invocations * load.provisioned_share if shape.provisioned else 0.0
    on_demand = load.invocations - in_provisioned
    seconds = on_demand * times.mean_ms(min(1.0, _of(load.invocations * load.start_share, on_demand))) / 1000
    provisioned_seconds = in_provisioned * times.warm_ms / 1000
    # "The Lambda free tier does not apply to functions enabling Provisioned Concurrency". In the page's examples, it
    # does apply to on-demand invocations in the part of the month without provisioned concurrency.
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
    """Price of keeping environments initialised: of their memory, "from when you enable it", in steps of 5 minutes."""
    step_s = prices.provisioned_step_s
    billed_s = math.ceil(shape.provisioned_s / step_s) * step_s
    return shape.provisioned * shape.memory_gb * billed_s * prices.compute(shape.architecture).provisioned_gb_s


def _cache(prices: Prices, shape: Shape) -> float:
    """Price of keeping the snapshot while the version is active, at least 3 hours. It depends on the memory size."""
    return max(shape.kept_s, prices.snapstart_cache_least_s) * shape.memory_gb * prices.snapstart_cache_gb_s


def _storage_gb(prices: Prices, shape: Shape) -> float:
    """Billed size of ``/tmp``, GB. "You pay only for any additional storage" above 512 MB, while the function runs."""
    return max(0.0, shape.storage_mb - prices.storage_free_mb) / _MB_PER_GB


def per_million(prices: Prices, shape: Shape, times: Times, *, start_share: float = 0.0) -> float:
    """Price of a million invocations on demand, without the free tier and without keeping a snapshot."""
    load = MonthlyLoad(invocations=1e6, start_share=start_share)
    bare = bill(prices, msgspec.structs.replace(shape, provisioned=0), times, load)
    return bare.total - bare.snapstart_cache


def break_even(cost: Callable[[float], float], other: Callable[[float], float]) -> float | None:
    """Number of invocations a month from which on `other` costs less than `cost`; None: never, or already at zero.

    Args:
        cost: returns the monthly cost, given the number of invocations.
        other: returns the monthly cost of the alternative. The two costs may be equal at only one number.
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
    """Number of invocations a month from which on a server at a fixed monthly price costs less.

    None: the server never costs less, or costs less even without invocations.
    """

    def cost(invocations: float) -> float:
        load = MonthlyLoad(invocations=invocations, start_share=start_share)
        return bill(prices, shape, times, load, free_tier=free_tier).total

    return break_even(cost, lambda _invocations: monthly)


class ProvisionedBreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """From how many invocations on one provisioned environment costs less than environments on demand.

    Attributes:
        invocations: number of invocations a month from which on it costs less; None: never, or it cannot run so many.
        busy_share: share of the time in which it runs that many invocations, 0-1; None if `invocations` is None.
    """

    invocations: float | None
    busy_share: float | None


def against_provisioned(
    prices: Prices, shape: Shape, times: Times, *, start_share: float = 0.0, free_tier: bool = False
) -> ProvisionedBreakEven:
    """Compute from how many invocations a month on one provisioned environment costs less than environments on demand.

    A provisioned environment has a fixed price, and duration costs less in it. If all invocations are warm, it is
    cheaper if the share of time in which it is busy exceeds provisioned / (duration - provisioned duration), where the
    names stand for their prices. This is 60 % at the prices of 2026-09.
    """
    provisioned = msgspec.structs.replace(shape, snapstart=False, provisioned=1, provisioned_s=MONTH_S)

    def on_demand(invocations: float) -> float:
        load = MonthlyLoad(invocations=invocations, start_share=start_share)
        return bill(prices, msgspec.structs.replace(shape, provisioned=0), times, load, free_tier=free_tier).total

    def kept(invocations: float) -> float:
        return bill(prices, provisioned, times, MonthlyLoad(invocations=invocations, provisioned_share=1.0)).total

    found = break_even(on_demand, kept)
    busy = None if found is None else found * times.warm_ms / 1000 / MONTH_S
    if found is None or busy is None or busy > 1:  # more work than one environment can do
        return ProvisionedBreakEven(invocations=None, busy_share=None)
    return ProvisionedBreakEven(invocations=found, busy_share=busy)
