"""Computes monthly bills of a function on AWS Lambda, and above how many invocations an alternative is cheaper.

A month has 730 hours and a GB has 1,024 MB, as in AWS's own calculator. Text in quotation marks is quoted from AWS.

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
        snapstart: whether environments are restored from a snapshot. For Python, Lambda charges for this.
        provisioned: number of provisioned environments.
        provisioned_s: how long these environments are kept initialised in the month, seconds.
        kept_s: with SnapStart: how long Lambda keeps the snapshot in the month, seconds.
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
        """Return the average over all invocations if the share `start_share` of them waits for a start, 0-1."""
        return (1 - start_share) * self.warm_ms + start_share * self.first_ms


class MonthlyLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A month's invocations.

    Attributes:
        invocations: number of invocations.
        start_share: share of the invocations for which an environment is started, 0-1.
        provisioned_share: share of the invocations that provisioned environments serve, 0-1. These need no start.
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
    """Return the billed duration of an invocation, milliseconds.

    "Duration is calculated from the time your code begins executing until it returns or otherwise terminates, rounded
    up to the nearest 1 ms". The init phase is billed too. Source: AWS Lambda pricing page; AWS Compute Blog, "AWS
    Lambda standardizes billing for INIT Phase" (since 2025-08).
    """
    return math.ceil(duration_ms + init_ms)


def billed_restored_ms(duration_ms: float, restore_ms: float) -> int:
    """Return the billed duration of an invocation that waited for a restore, milliseconds.

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
        free_tier: whether to subtract the whole monthly free tier of an AWS account.
    """
    compute = prices.compute(shape.architecture)
    in_provisioned = load.invocations * load.provisioned_share if shape.provisioned else 0.0
    on_demand = load.invocations - in_provisioned
    seconds = on_demand * times.mean_ms(min(1.0, _share(load.invocations * load.start_share, on_demand))) / 1000
    provisioned_seconds = in_provisioned * times.warm_ms / 1000
    # "The Lambda free tier does not apply to functions enabling Provisioned Concurrency". But in the pricing page's
    # examples of provisioned concurrency during a part of the month, it does apply to the invocations on demand.
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


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _provisioned(prices: Prices, shape: Shape) -> float:
    """Return the price of keeping environments initialised, whether or not they are used.

    Lambda bills their memory for the time in which provisioned concurrency is enabled, rounded up to 5 minutes.
    """
    step_s = prices.provisioned_step_s
    billed_s = math.ceil(shape.provisioned_s / step_s) * step_s
    return shape.provisioned * shape.memory_gb * billed_s * prices.compute(shape.architecture).provisioned_gb_s


def _cache(prices: Prices, shape: Shape) -> float:
    """Return the price of keeping the snapshot, for at least 3 hours. It depends on the memory size."""
    return max(shape.kept_s, prices.snapstart_cache_least_s) * shape.memory_gb * prices.snapstart_cache_gb_s


def _storage_gb(prices: Prices, shape: Shape) -> float:
    """Return the billed size of ``/tmp``, GB. "You pay only for any additional storage" above 512 MB."""
    return max(0.0, shape.storage_mb - prices.storage_free_mb) / _MB_PER_GB


def per_million(prices: Prices, shape: Shape, times: Times, *, start_share: float = 0.0) -> float:
    """Return the price of a million invocations on demand, without free tier and without the snapshot's storage."""
    load = MonthlyLoad(invocations=1e6, start_share=start_share)
    bare = bill(prices, msgspec.structs.replace(shape, provisioned=0), times, load)
    return bare.total - bare.snapstart_cache


def break_even(cost: Callable[[float], float], other: Callable[[float], float]) -> float | None:
    """Return the number of invocations a month above which an alternative is cheaper than the present choice.

    None: the alternative is never cheaper, or is cheaper even without invocations.

    Args:
        cost: returns the monthly cost of the present choice, given the number of invocations.
        other: returns the monthly cost of the alternative. There must be no more than one number of invocations at
            which both cost the same.
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
    """Return above how many invocations a month a server that costs `monthly` a month is cheaper than Lambda.

    None: the server is never cheaper, or is cheaper even without invocations.
    """

    def cost(invocations: float) -> float:
        load = MonthlyLoad(invocations=invocations, start_share=start_share)
        return bill(prices, shape, times, load, free_tier=free_tier).total

    return break_even(cost, lambda _invocations: monthly)


class ProvisionedBreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """When one provisioned environment is cheaper than environments on demand.

    Attributes:
        invocations: number of invocations a month above which it is cheaper; None: it is never cheaper, or only above a
            number that one environment cannot run in a month.
        busy_share: share of the month in which the environment is busy with `invocations` invocations, 0-1; None if
            `invocations` is None.
    """

    invocations: float | None
    busy_share: float | None


def against_provisioned(
    prices: Prices, shape: Shape, times: Times, *, start_share: float = 0.0, free_tier: bool = False
) -> ProvisionedBreakEven:
    """Compute above how many invocations a month one provisioned environment is cheaper than environments on demand.

    A provisioned environment has a fixed price for each second, but a second of duration in it costs less than on
    demand. If all invocations are warm, and the free tier is not subtracted, the environment is cheaper if it is busy
    for more than a certain share of the time: its fixed price a second, divided by the difference
    between the prices of a second of duration on demand and in it. This is 60 % at the prices of 2026-09.
    """
    provisioned = msgspec.structs.replace(shape, snapstart=False, provisioned=1, provisioned_s=MONTH_S)

    def on_demand(invocations: float) -> float:
        load = MonthlyLoad(invocations=invocations, start_share=start_share)
        return bill(prices, msgspec.structs.replace(shape, provisioned=0), times, load, free_tier=free_tier).total

    def kept(invocations: float) -> float:
        return bill(prices, provisioned, times, MonthlyLoad(invocations=invocations, provisioned_share=1.0)).total

    found = break_even(on_demand, kept)
    busy = None if found is None else found * times.warm_ms / 1000 / MONTH_S
    if found is None or busy is None or busy > 1:  # above 1, one environment cannot run all these invocations
        return ProvisionedBreakEven(invocations=None, busy_share=None)
    return ProvisionedBreakEven(invocations=found, busy_share=busy)
