"""Lists of invocations: failures first, by kind, then each one; and all invocations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from thawd.recording.records import Records, filter_from
from thawd.stores.invocations.record_queries import MOST_BEGINNING, MOST_COUNTED, MOST_SCANNED, ErrorCount, Page
from thawd.stores.invocations.record_rows import InvocationRow
from thawd.window.layout import ROOT, function_link, invocation_link, link, milliseconds, table, when, whole_number
from thawd.window.markup import Content, Html, el

_SPANS = (("3600", "the last hour"), ("86400", "the last day"), ("604800", "the last week"), ("", "any time"))
_STARTS = (("", "any start"), ("warm", "warm"), ("thaw", "thaw"), ("fork", "fork"), ("cold", "cold"))
_ROWS = 50


async def content(records: Records, query: Mapping[str, str], *, only_failures: bool) -> list[Content]:
    """Return the content of the page.

    Args:
        records: the recorded invocations.
        query: ``function``, ``error``, ``text``, ``span`` (seconds until now), ``start``, ``before`` (cursor), and
            ``request`` (a request id).
        only_failures: whether to list failures only, with a summary of their kinds.

    Raises:
        InvalidParameterValueException: a parameter has an impossible value (400).
    """
    asked = {name: value for name, value in query.items() if value}
    span = asked.get("span", "")
    span_s = whole_number(span)
    since_s = None if span_s is None else max(0.0, time.time() - span_s)
    wanted = filter_from(
        {
            **{name: asked[name] for name in ("function", "error", "text", "start") if name in asked},
            **({"failed": "1"} if only_failures else {}),
            **({"since": str(since_s)} if since_s is not None else {}),
        }
    )
    before = asked.get("before", "")
    page = await records.page(wanted, before=whole_number(before), limit=_ROWS)
    here = "failures" if only_failures else "invocations"
    parts: list[Content] = [_filters(asked, here)]
    if only_failures and not before and "error" not in asked:
        found = await records.errors(asked.get("function"), since_ms=int((since_s or 0) * 1000))
        parts += [el("h2", "Kinds of failures"), groups(found, span=span)] if found else []
    return [*parts, el("h2", "One by one, newest first"), rows_of(page.rows), _older(page, asked, here)]


def several(rows: Sequence[InvocationRow], text: str) -> list[Content]:
    """Return the content of the page that lists several invocations whose request ids begin with `text`."""
    return [
        el(
            "p",
            "Several request ids begin with ",
            el("code", text),
            f"; at most {MOST_BEGINNING} are listed.",
            role="status",
        ),
        rows_of(rows) if rows else None,
    ]


def groups(found: Sequence[ErrorCount], *, span: str = "") -> Html:
    """Return a table of the kinds of failures, each with a link to its failures and to the last one.

    Args:
        found: the kinds.
        span: the time that they are of, seconds until now; empty: any.
    """
    return table(
        f"Kinds of failures, the most frequent first; of at most {MOST_COUNTED:,} failures",
        ["error", "function", "#times", "last", "message of the last"],
        [
            [
                link(
                    each.error_type,
                    "failures",
                    {"function": each.function, "error": each.error_type, "span": span},
                ),
                function_link(each.function),
                each.times,
                link(when(each.last_id / 1000), f"records/{each.last_id}"),
                each.error[:200],
            ]
            for each in found
        ],
        empty="No failures.",
    )


def rows_of(rows: Sequence[InvocationRow], *, caption: str = "Invocations, newest first") -> Html:
    """Return a table of invocations."""
    return table(
        caption,
        ["invocation", "result", "function", "ended (UTC)", "from", "start", "#status", "#took"],
        [
            [
                invocation_link(row.request_id),
                [el("b", row.error_type), " ", row.error[:160]] if row.failed else _stands_for(row),
                function_link(row.function),
                when(row.id / 1000),
                row.source,
                row.start_kind or "-",
                el("span", row.status, class_="bad") if row.failed else row.status,
                milliseconds(row.total_ms),
            ]
            for row in rows
        ],
        empty="No recorded invocation matches.",
    )


def _stands_for(row: InvocationRow) -> str:
    return "succeeded" if row.stands_for == 1 else f"succeeded, stands for {row.stands_for:,}"


def _filters(asked: Mapping[str, str], here: str) -> Html:
    def field(label: str, name: str) -> Html:
        return el("label", label, " ", el("input", name=name, value=asked.get(name, ""), type="search"))

    def choice(label: str, name: str, options: Sequence[tuple[str, str]]) -> Html:
        chosen = asked.get(name, "")
        listed = [el("option", text, value=value, selected=value == chosen) for value, text in options]
        return el("label", label, " ", el("select", *listed, name=name))

    return el(
        "form",
        field("Function", "function"),
        field("Error type", "error"),
        field("Text of error or source", "text"),
        choice("Time", "span", _SPANS[::-1]),
        choice("Start", "start", _STARTS),
        field("Request id, or its first 8 characters", "request"),
        el("button", "Show"),
        method="get", action=f"{ROOT}/{here}", role="search", class_="filters",
    )  # fmt: skip


def _older(page: Page, asked: Mapping[str, str], here: str) -> Content:
    if page.next is None:
        return None
    note = f"The search stopped after {MOST_SCANNED:,} records. " if page.is_cut else ""
    return el("p", note, link("Older", here, {**asked, "before": page.next}))
