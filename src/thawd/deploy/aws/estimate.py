"""Estimates what a deployment's functions cost, from measurements in their local logs."""

from __future__ import annotations

import msgspec

from thawd.config import Settings
from thawd.cost import report
from thawd.cost.prices import Prices
from thawd.cost.records import measure, read_records
from thawd.resources import Function
from thawd.telemetry.console import complain
from thawd.telemetry.logs.groups import path_of_group
from thawd.telemetry.logs.reader import LogReader

_MOST_LINES = 100_000


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of a function's cost for a month.

    Attributes:
        function: name of the function.
        month: the cost of a month; None: the logs contain no invocation.
        measured: number of invocations in the logs.
        kind: how environments start, in the words of `thawd cost`.
    """

    function: str
    month: float | None
    measured: int = 0
    kind: str = ""


def estimate(settings: Settings, prices: Prices, *, invocations: float) -> list[Estimate]:
    """Return an estimate for each function, at a number of invocations a month.

    Raises:
        CostError: Lambda does not offer a function's configuration.
    """
    return [_estimate(settings, function, prices, invocations) for function in settings.functions.values()]


def _estimate(settings: Settings, function: Function, prices: Prices, invocations: float) -> Estimate:
    with LogReader(path_of_group(settings.server.data / "logs", function.log_group_name), report=complain) as log:
        lines = [line.decode(errors="replace") for line in log.start(_MOST_LINES)]
    records = [record for record in read_records(lines) if record.memory_mb == function.memory_mb]
    sizes = measure(records) if records else []
    if not sizes:
        return Estimate(function=function.name, month=None)
    asked = report.Question(
        architectures=(settings.deployment.architecture,),
        invocations=invocations,
        storage_mb=function.ephemeral_storage_mb,
        provisioned=function.provisioned_concurrency,
    )
    rows = {row["kind"]: row for row in report.rows(prices, sizes[:1], asked)}
    wanted = report.PROVISIONED if function.provisioned_concurrency else report.SNAPSTART
    row = rows.get(wanted) or rows[report.ON_DEMAND]
    return Estimate(function=function.name, month=row["month"]["total"], measured=sizes[0].count, kind=row["kind"])
