"""Computes the tables of `thawd cost`: bills by memory size and processor, break-even points, keep-warm policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from thawd.cost import keep_warm
from thawd.cost.bills import MONTH_S, MonthlyLoad, Shape, against_provisioned, against_server, bill, per_million
from thawd.cost.keep_warm import Arrival, SimulationResult
from thawd.cost.prices import CostError, Prices
from thawd.cost.records import Measured
from thawd.scheduling.keep_alive import FixedPolicy, HistogramPolicy, Policy
from thawd.scheduling.provisioned import ProvisionedPlan

ON_DEMAND, SNAPSTART, PROVISIONED = "on demand", "SnapStart", "provisioned"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What `thawd cost` is to compute.

    Attributes:
        architectures: processor architectures to compare.
        invocations: number of invocations a month.
        start_share: share of the invocations that wait for a start, 0-1; None: the measured share, or 0 if nothing was
            measured.
        storage_mb: size of ``/tmp``, MB.
        provisioned: number of provisioned environments, whose price is shown in separate rows; 0: no such rows.
        free_tier: whether to subtract the whole monthly free tier of an AWS account.
        server_monthly: monthly price of a server to compare with; None: no comparison.
    """

    architectures: tuple[str, ...] = ("x86_64",)
    invocations: float = 1e6
    start_share: float | None = None
    storage_mb: int = 512
    provisioned: int = 0
    free_tier: bool = False
    server_monthly: float | None = None


class KeepWarmQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What `thawd cost` is to compute about keep-warm policies.

    Attributes:
        arrivals: arrivals of the function, in order.
        keep_alive_s: how long the fixed keep-alive policy keeps idle environments, seconds. The histogram policy uses
            the same time while the recorded arrivals show no pattern.
        start_s: by how much a start delays an invocation that waits for it, seconds; 0 if no start was measured.
        plan: schedule of provisioned concurrency to simulate; None: none.
        provisioned: number of environments that are kept initialised all the time, to simulate; 0: not simulated.
        span: beginning and end of the simulated time; None: from the first arrival to the end of the last invocation.
    """

    arrivals: Sequence[Arrival]
    keep_alive_s: float
    start_s: float
    plan: ProvisionedPlan | None = None
    provisioned: int = 0
    span: tuple[float, float] | None = None


def rows(prices: Prices, sizes: Sequence[Measured], asked: Question) -> list[dict[str, Any]]:
    """Return a row for each memory size, processor, and way to start (on demand, SnapStart, provisioned).

    Raises:
        CostError: Lambda does not offer such a configuration.
    """
    return [
        _row(prices, size, asked, architecture=architecture, kind=kind)
        for size in sizes
        for architecture in asked.architectures
        for kind in _kinds(size, asked)
    ]


def _kinds(size: Measured, asked: Question) -> list[str]:
    found = [ON_DEMAND]
    if size.restored_ms is not None:
        found.append(SNAPSTART)
    if asked.provisioned:
        found.append(PROVISIONED)
    return found


def _row(prices: Prices, size: Measured, asked: Question, *, architecture: str, kind: str) -> dict[str, Any]:
    is_snapstart, is_provisioned = kind == SNAPSTART, kind == PROVISIONED
    shape = Shape(
        memory_mb=size.memory_mb,
        architecture=architecture,
        storage_mb=asked.storage_mb,
        snapstart=is_snapstart,
        provisioned=asked.provisioned if is_provisioned else 0,
    )
    start_share = size.start_share if asked.start_share is None else asked.start_share
    share = 0.0 if is_provisioned or start_share is None else start_share
    times = size.times(snapstart=is_snapstart)
    first_ms = {ON_DEMAND: size.cold_ms, SNAPSTART: size.restored_ms, PROVISIONED: None}[kind]
    load = MonthlyLoad(invocations=asked.invocations, start_share=share, provisioned_share=float(is_provisioned))
    month = bill(prices, shape, times, load, free_tier=asked.free_tier)
    row: dict[str, Any] = {
        "memory_mb": size.memory_mb,
        "architecture": architecture,
        "kind": kind,
        "warm_ms": round(size.warm_ms, 3),
        "first_ms": None if first_ms is None else round(first_ms, 3),
        "start_share": share,
        "per_million": None if is_provisioned else per_million(prices, shape, times, start_share=share),
        "month": {**msgspec.structs.asdict(month), "total": month.total},
    }
    if asked.server_monthly is not None and not is_provisioned:
        row["server_cheaper_from"] = against_server(
            prices, shape, times, asked.server_monthly, start_share=share, free_tier=asked.free_tier
        )
    if kind == ON_DEMAND:
        even = against_provisioned(prices, shape, times, start_share=share, free_tier=asked.free_tier)
        row["provisioned_cheaper_from"] = even.invocations
        row["provisioned_busy_share"] = even.busy_share
    return row


def policies(prices: Prices, size: Measured, asked: Question, warm: KeepWarmQuestion) -> list[dict[str, Any]]:
    """Simulate each policy for keeping environments warm, with the given arrivals, and return a row for each policy.

    A row has Lambda's bill for a month in which invocations arrive at the same rate. Lambda keeps idle environments
    for a fixed time, which users cannot choose, and can keep provisioned environments. It has no histogram policy, so
    the row of that policy has no bill.

    Raises:
        CostError: there are no arrivals.
    """
    if not warm.arrivals:
        raise CostError("there are no arrivals to simulate")
    fixed = f"fixed, {warm.keep_alive_s:g} s"
    ways: list[tuple[str, Policy, ProvisionedPlan | None, str | None]] = [
        (fixed, FixedPolicy(warm.keep_alive_s), None, ON_DEMAND),
        ("histogram", HistogramPolicy(warm.keep_alive_s), None, None),
    ]
    if warm.plan is not None:
        ways.append(("provisioned by schedule", FixedPolicy(warm.keep_alive_s), warm.plan, PROVISIONED))
    if warm.provisioned:
        always = ProvisionedPlan((), otherwise=warm.provisioned)
        ways.append((f"provisioned, {warm.provisioned}", FixedPolicy(warm.keep_alive_s), always, PROVISIONED))
    return [
        _policy_row(prices, size, asked, warm, name=name, policy=policy, plan=plan, billed=billed)
        for name, policy, plan, billed in ways
    ]


def _policy_row(  # noqa: PLR0913 - a row of a table
    prices: Prices,
    size: Measured,
    asked: Question,
    warm: KeepWarmQuestion,
    *,
    name: str,
    policy: Policy,
    plan: ProvisionedPlan | None,
    billed: str | None,
) -> dict[str, Any]:
    counter = _PlannedCount(plan)
    outcome = keep_warm.simulate(
        warm.arrivals,
        policy,
        surplus_s=warm.keep_alive_s,
        start_s=warm.start_s,
        provisioned=counter.at,
        span=warm.span,
    )
    begin_s = warm.arrivals[0].at_s if warm.span is None else min(warm.span[0], warm.arrivals[0].at_s)
    provisioned_s = 0.0 if plan is None else provisioned_seconds(plan, begin_s, begin_s + outcome.spent_s)
    idle_s = outcome.idle_s + max(0.0, provisioned_s - _busy_provisioned_s(warm, outcome))
    row: dict[str, Any] = {
        "way": name,
        **msgspec.structs.asdict(outcome),
        "start_share": outcome.start_share,
        "idle_s": idle_s,
        "idle_gb_hours_a_day": idle_s * size.memory_mb / 1024 / 3600 * 86_400 / max(outcome.spent_s, 86_400.0),
        "lambda_month": None,
    }
    if billed is not None and outcome.invocations > 1:  # from one invocation no monthly rate can be computed
        row["lambda_month"] = _lambda_month(prices, size, asked, outcome, provisioned_s)
    return row


def _lambda_month(
    prices: Prices, size: Measured, asked: Question, outcome: SimulationResult, provisioned_s: float
) -> float:
    """Return the bill of a month in which invocations arrive at the simulated rate, on the first of `architectures`."""
    months = max(outcome.spent_s, 1.0) / MONTH_S
    shape = Shape(
        memory_mb=size.memory_mb,
        architecture=asked.architectures[0],
        storage_mb=asked.storage_mb,
        provisioned=1 if provisioned_s else 0,
        # The times of all provisioned environments are added up, and billed as if one environment had run for so long.
        provisioned_s=provisioned_s / months,
    )
    load = MonthlyLoad(
        invocations=outcome.invocations / months,
        start_share=outcome.start_share,
        provisioned_share=outcome.provisioned_share,
    )
    return bill(prices, shape, size.times(snapstart=False), load, free_tier=asked.free_tier).total


class _PlannedCount:
    """Returns how many environments a plan keeps initialised, at times that must be ascending.

    For speed, the plan is evaluated only when its next change is due.
    """

    def __init__(self, plan: ProvisionedPlan | None) -> None:
        self._plan = plan
        self._count = 0
        self._until_s: float | None = float("-inf") if plan is not None else None

    def at(self, now_s: float) -> int:
        """Return the number of environments to keep initialised at `now_s`; 0 without a plan."""
        if self._plan is not None and self._until_s is not None and now_s >= self._until_s:
            self._count = self._plan.count(now_s)
            self._until_s = self._plan.next_change(now_s)
        return self._count


def provisioned_seconds(plan: ProvisionedPlan, begin_s: float, end_s: float) -> float:
    """Return for how long a plan keeps environments initialised between two times, seconds.

    The times of all environments are added up: two environments for an hour are 7,200 s.
    """
    total_s, at_s = 0.0, begin_s
    while at_s < end_s:
        change_s = plan.next_change(at_s)
        until_s = end_s if change_s is None else min(end_s, change_s)
        total_s += plan.count(at_s) * (until_s - at_s)
        at_s = until_s
    return total_s


def _busy_provisioned_s(warm: KeepWarmQuestion, outcome: SimulationResult) -> float:
    """Return about how long provisioned environments were busy: all durations together, times their share."""
    return sum(arrival.duration_s for arrival in warm.arrivals) * outcome.provisioned_share
