"""The section about cost on the page of a function."""

from __future__ import annotations

import math

from thawd.window.layout import counted, milliseconds, table, when
from thawd.window.markup import Content, el
from thawd.window.sources import CostEstimate, CountedPeriod


def content(estimate: CostEstimate, name: str, *, is_in_cluster: bool = False) -> list[Content]:
    """Return the section.

    Args:
        estimate: what is shown.
        name: the function's name.
        is_in_cluster: whether other machines run the function, too. Their invocations are not in the estimate.
    """
    more = ["With ", el("code", f"thawd cost {name}"), ", other figures can be tried."]
    if estimate.refusal:
        text = f"{estimate.refusal[0].upper()}{estimate.refusal[1:]}."
        return [el("p", text, class_="note"), el("p", *more, class_="note")]
    heads = ["starts", "#a million", *(f"#{period.name}" for period in estimate.periods)]
    rows = [
        [row.starts, *(_amount(amount, is_least=row.is_least) for amount in (row.million, *row.periods))]
        for row in estimate.rows
    ]
    error = "" if estimate.warm_error_ms is None else f" ±{milliseconds(estimate.warm_error_ms)}"
    is_least = any(row.is_least for row in estimate.rows)
    return [
        table(f"What its invocations would cost, {estimate.currency}", heads, rows, empty=""),
        el("p", *_counts(estimate.periods, " on this machine" if is_in_cluster else ""), class_="note"),
        el(
            "p",
            f"Durations are the average of the last {counted(estimate.measured, 'invocation')} in its log with "
            f"{estimate.memory_mb:,} MB: {milliseconds(estimate.warm_ms)}{error} warm, billed by the millisecond; "
            f"{estimate.start_share:.1%} waited for a start. The sign ± is the 95 % interval of that average. On "
            "Lambda's processors, durations differ from those of this machine. ",
            "“At least”: invocations waited for a start, and no init was measured that Lambda would bill. "
            if is_least
            else None,
            f"Prices are those of {estimate.region} of {estimate.date}; the free tier is not subtracted. ",
            *more,
            class_="note",
        ),
    ]


def _counts(periods: tuple[CountedPeriod, ...], where: str) -> list[Content]:
    parts: list[Content] = []
    for period in periods:
        named = period.name[0].upper() + period.name[1:]
        parts += [f"{named}: {counted(period.invocations, 'invocation')}{where}, counted since ", when(period.since_ms)]
        if not period.is_whole:
            parts.append(" only: older counts are not kept (server.record_days)")
        parts.append(". ")
    return parts


def _amount(amount: tuple[float, float | None] | None, *, is_least: bool) -> str:
    if amount is None:
        return "-"
    price, error = amount
    digits = 2 if price <= 0 else max(2, 1 - math.floor(math.log10(price)))
    text = f"{price:,.{digits}f}"
    if error is not None and round(error, digits) > 0:
        text += f" ±{error:,.{digits}f}"
    return f"at least {text}" if is_least and price > 0 else text
