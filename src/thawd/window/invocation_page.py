"""The page of one invocation: stages, log lines, event, answer, and what belongs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from thawd.errors import RESERVED_CONCURRENCY_REACHED, ResourceNotFoundException
from thawd.recording.records import Whole
from thawd.stores.invocations.record_rows import CUT, REDACTED, WHOLE, BodyRow, InvocationRow
from thawd.window import handler_calls, waterfall
from thawd.window.failures import rows_of
from thawd.window.layout import ROOT, button, code, facts, function_link, link, milliseconds, size, table, when
from thawd.window.log_lines import lines_of
from thawd.window.markup import Content, Html, el
from thawd.window.sources import Sources

_RESERVED = "reserved_concurrency in thawd.toml; PutFunctionConcurrency for a function that was made through the API"
_STATES = {REDACTED: "Values were redacted (server.redact).", CUT: "It is larger than 64 KiB and not stored."}


async def content(sources: Sources, whole: Whole, *, token: str, attempt: int | None) -> list[Content]:
    """Return the content of the page.

    Args:
        sources: what the page is made from.
        whole: what is recorded.
        token: token of the session's forms.
        attempt: id of the attempt to show; None: the last.
    """
    shown = next((n for n, row in enumerate(whole.attempts) if row.id == attempt), len(whole.attempts) - 1)
    row, body = whole.attempts[shown], whole.bodies[shown]
    parts: list[Content] = [_outcome(row), _limit(sources, row, is_event=bool(whole.steps)), _facts(row)]
    if len(whole.attempts) > 1 or whole.steps:
        parts += [el("h2", "Attempts"), _attempts(whole, row)]
    parts += [el("h2", "Where the time went"), *await _times(sources, row)]
    parts += [el("h2", "Log"), await _log(sources, row, body)]
    parts += [el("h2", "Event"), _body(body, row.event_bytes, is_event=True), _replay(whole, row, token)]
    parts += [el("h2", "Answer"), _body(body, row.answer_bytes, is_event=False)]
    if whole.related:
        parts += [
            el("h2", "Of the same trace" if sources.cluster is None else "Of the same trace, on this machine"),
            rows_of(whole.related, caption="Invocations of the same trace, oldest first"),
        ]
    return parts


def _outcome(row: InvocationRow) -> Html:
    if not row.failed:
        return el("p", "Succeeded", f" with status {row.status}" if row.status != 200 else "", class_="good")
    return el("p", el("b", row.error_type), ": " if row.error else "", row.error, class_="bad", role="status")


def _limit(sources: Sources, row: InvocationRow, *, is_event: bool) -> Content:
    """Return which limit has refused an invocation, with the way out; None: reserved concurrency has not."""
    if row.start_kind or row.status != 429 or RESERVED_CONCURRENCY_REACHED not in row.error:
        return None
    try:
        family = sources.dispatcher.family(row.function)
    except ResourceNotFoundException:
        return None
    reserved, here = family.latest.function.reserved_concurrency, family.reserved
    if reserved is None:
        return el("p", f"Refused: {row.function} had a reserved concurrency then; it has none now.", class_="note")
    share = f" ({here} of it on this machine)" if here != reserved else ""
    text = f"Refused: the reserved concurrency of {row.function} is {reserved}{share}"
    if reserved == 0:
        return el("p", f"{text}, so that no invocation of it runs. Raise or remove it ({_RESERVED}).")
    waits = "" if is_event else ", or invoke the function asynchronously, so that events wait for their turn"
    return el("p", f"{text}, and it was in use. Raise it ({_RESERVED}){waits}.")


def _facts(row: InvocationRow) -> Html:
    similar = link("similar failures", "failures", {"function": row.function, "error": row.error_type})
    return facts(
        [
            ("Function", function_link(row.function)),
            ("Version", row.version or "none ran"),
            ("Alias or version asked for", row.qualifier),
            ("From", row.source),
            ("Began", [when(row.began_ms), " UTC"]),
            ("Took", milliseconds(row.total_ms)),
            ("Start", row.start_kind or "no environment ran it"),
            ("Status", row.status),
            ("Stands for", f"{row.stands_for:,} invocations" if row.stands_for > 1 else None),
            ("Request id", el("code", row.request_id)),
            ("Trace", el("code", row.trace) if row.trace else None),
            ("See also", similar if row.failed else None),
        ]
    )


def _attempts(whole: Whole, current: InvocationRow) -> list[Content]:
    rows = [
        [
            el("b", str(number)) if row is current else link(str(number), f"records/{row.id}"),
            when(row.began_ms),
            row.start_kind or "-",
            milliseconds(row.total_ms),
            f"{row.error_type} {row.error[:120]}" if row.failed else "succeeded",
        ]
        for number, row in enumerate(whole.attempts, 1)
    ]
    steps = [[when(step.at_ms), step.kind, step.detail] for step in whole.steps]
    return [
        table("Attempts, oldest first", ["attempt", "began (UTC)", "start", "#took", "result"], rows, empty=""),
        table("After the attempts", ["at (UTC)", "what", "detail"], steps, empty="") if steps else None,
    ]


async def _times(sources: Sources, row: InvocationRow) -> list[Content]:
    """Return the waterfall; if the invocation was traced, with what its handler called."""
    calls = None if sources.records is None else await sources.records.calls(row.id)
    if calls is None:
        return [waterfall.draw(row)]
    found = handler_calls.nested(calls, handler_ms=waterfall.handler_began_ms(row))
    cut = f"The drawing has the first {waterfall.MOST_DRAWN} calls." if len(found) > waterfall.MOST_DRAWN else ""
    note = el("p", cut, class_="note") if cut else None
    return [waterfall.draw(row, found), note, *handler_calls.content(calls, found)]


async def _log(sources: Sources, row: InvocationRow, body: BodyRow | None) -> Html:
    values: frozenset[str] | None = frozenset()
    if body is None or body.event_state != WHOLE:
        values = None if sources.records is None else sources.records.redacted_in(row.id)
    if values is None:
        return el(
            "p",
            "The log is not shown here, because it may contain values that were redacted in the event, and thawd no "
            f"longer knows which (they are in no file). See `thawd logs {row.function}`.",
            class_="note",
        )
    try:
        sources.flush_logs()
        group = sources.dispatcher.entry(row.function).function.log_group_name
        lines = await asyncio.to_thread(lines_of, row, sources.logs, group)
    except (ResourceNotFoundException, OSError) as error:
        return el("p", f"The log cannot be read: {error}", class_="empty")
    if lines is None:
        why = "No environment ran it, so there is no log." if not row.log_stream else "The log no longer has its lines."
        return el("p", why, class_="empty")
    shown = [
        [
            el("span", f"{at_ms - row.began_ms:+6d} ms  ", class_="faint"),
            sources.redactor.text(line, values=values),
            "\n",
        ]
        for at_ms, line in lines
    ]
    return el("pre", *shown, class_="scroll log", tabindex="0")


def _body(body: BodyRow | None, count: int, *, is_event: bool) -> list[Content]:
    if body is None:
        return [el("p", "It is not recorded.", class_="empty")]
    state = body.event_state if is_event else body.answer_state
    stored = body.event if is_event else body.answer
    note = el("p", f"{size(count)}. {_STATES.get(state, '')}", class_="note")
    return [note, code(stored) if stored else None]


def _replay(whole: Whole, row: InvocationRow, token: str) -> Content:
    why_not = whole.why_not_replayable
    if why_not is not None:
        return el("p", f"It cannot be replayed: {why_not}.", class_="note")
    fields: dict[str, str | int] = {"request": row.request_id}
    return [
        button("Replay", f"{ROOT}/replay", token, fields),
        link("Change it first", "try", {"request": row.request_id}),
    ]


def title(rows: Sequence[InvocationRow]) -> str:
    """Return the title of the page."""
    row = rows[-1]
    return f"{row.function}: {row.error_type if row.failed else 'succeeded'}"
