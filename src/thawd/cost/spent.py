"""Computes what invocations that have happened would have cost on AWS Lambda."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from thawd.cost.bills import MonthlyLoad, Shape, Times, bill, per_million
from thawd.cost.prices import CostError, Prices
from thawd.cost.records import Measured
from thawd.cost.report import ON_DEMAND, PROVISIONED, SNAPSTART


class Period(msgspec.Struct, frozen=True):
    """A time in which invocations were counted, at most a month.

    Attributes:
        invocations: how many there were.
        length_s: how long it is, seconds.
    """

    invocations: int
    length_s: float


class Amount(msgspec.Struct, frozen=True):
    """A price, in the currency of the price file.

    Attributes:
        price: the price, computed from the average of the measured durations.
        error: half of the width of the 95 % interval of the price, as far as it comes from that average; None: unknown.
    """

    price: float
    error: float | None


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """What invocations would have cost if environments had started in one way.

    Attributes:
        starts: ``on demand``, ``SnapStart`` or ``provisioned``.
        is_least: whether the amounts are lower bounds: invocations have waited for an init that was not measured.
        million: price of a million invocations; None: it depends on their number.
        periods: price of each period.
    """

    starts: str
    is_least: bool
    million: Amount | None
    periods: tuple[Amount, ...]


def spent(prices: Prices, size: Measured, function: Shape, periods: Sequence[Period]) -> list[Spending]:
    """Compute what invocations would have cost: on demand; with SnapStart, if a restore was measured; provisioned.

    The free tier is not subtracted. The share of invocations that wait for a start is the measured one.

    Args:
        prices: prices of Lambda.
        size: measured durations.
        function: memory, processor, ``/tmp`` and number of provisioned environments of the function; 0: without those.
        periods: times and numbers of invocations.
    """
    bare = msgspec.structs.replace(function, provisioned=0)
    shapes = [(ON_DEMAND, bare)]
    if size.restored_ms is not None:
        try:
            shapes.append((SNAPSTART, msgspec.structs.replace(bare, snapstart=True)))
        except CostError:
            pass  # Lambda does not offer SnapStart for this function
    if function.provisioned:
        shapes.append((PROVISIONED, function))
    return [_spending(prices, size, shape, periods, starts=starts) for starts, shape in shapes]


def _spending(prices: Prices, size: Measured, shape: Shape, periods: Sequence[Period], *, starts: str) -> Spending:
    share = 0.0 if starts == PROVISIONED else size.start_share or 0.0

    def amount(times: Times, period: Period) -> float:
        lasting = msgspec.structs.replace(shape, kept_s=period.length_s, provisioned_s=period.length_s)
        load = MonthlyLoad(
            invocations=period.invocations, start_share=share, provisioned_share=float(starts == PROVISIONED)
        )
        return bill(prices, lasting, times, load).total

    def million(times: Times) -> float:
        return per_million(prices, shape, times, start_share=share)

    times = size.times(snapstart=starts == SNAPSTART)
    later = None
    if size.warm_error_ms is not None:
        more_ms = size.warm_error_ms
        later = Times(warm_ms=times.warm_ms + more_ms, first_ms=times.first_ms + more_ms)

    def with_error(price: float, most: float | None) -> Amount:
        return Amount(price, None if most is None else most - price)

    return Spending(
        starts=starts,
        is_least=starts == ON_DEMAND and share > 0 and size.cold_ms is None,
        million=None
        if starts == PROVISIONED
        else with_error(million(times), None if later is None else million(later)),
        periods=tuple(
            with_error(amount(times, each), None if later is None else amount(later, each)) for each in periods
        ),
    )
