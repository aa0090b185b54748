"""The page of the queue and of dead letters: look, queue again, remove, undo a removal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from thawd.invocation import in_a_line
from thawd.recording.redaction import Redactor
from thawd.stores.events.removals import KEPT_S
from thawd.window import machines_table
from thawd.window.layout import (
    ROOT,
    button,
    code,
    counted,
    facts,
    function_link,
    hidden,
    invocation_link,
    link,
    milliseconds,
    size,
    table,
    whole_number,
)
from thawd.window.markup import Content, Html, el
from thawd.window.sources import Sources

_ROWS = 50
_SHOWN_REMOVALS = 20
_NO_UNDO = " To queue again cannot be undone: the events run immediately."


async def content(sources: Sources, query: Mapping[str, str], *, token: str) -> list[Content]:
    """Return the content of the page.

    Args:
        sources: what the page is made from.
        query: ``function``: only the dead letters of this function; ``after``: cursor.
        token: token of the session's forms.
    """
    functions = (await sources.queue.overview())["functions"]
    rows = [
        [
            function_link(name), each["queued"], each["running"], each["delivering"], each["dead"],
            "-" if each["oldest_age_s"] is None else milliseconds(each["oldest_age_s"] * 1000),
            f"{each['accepted_per_s']:.3g}", f"{each['done_per_s']:.3g}", each["retried"],
        ]
        for name, each in functions.items()
    ]  # fmt: skip
    function = query.get("function") or None
    machines = None if sources.cluster is None else await sources.cluster.machines()
    page = await sources.queue.page(function, after=whole_number(query.get("after", "")) or 0, limit=_ROWS)
    letters = page["dead_letters"]
    heads = ["#id", "function", "event", "became a dead letter", "why", "#attempts", "error"]
    errors: dict[str, str] = {}
    if sources.records is not None:
        errors = await sources.records.last_errors([letter["request_id"] for letter in letters])
    lines = [_line(letter, errors) for letter in letters]
    return [
        table("Queued events by function",
              ["function", "#queued", "#runs", "#delivering", "#dead", "#oldest waits", "#in/s", "#done/s", "#retried"],
              rows, empty="No asynchronous event was queued yet."),
        el("h2", "Dead letters", f" of {function}" if function else ""),
        None if machines is None else machines_table.dead_elsewhere(machines),
        table("Dead letters, the oldest first", heads, lines, empty="No dead letters."),
        el("p", link("More", "queue", {"function": function, "after": page["next"]})) if page["next"] else None,
        _all(function, token) if letters else None,
        *_removals((await sources.queue.removals())["removals"], token),
    ]  # fmt: skip


def _removals(removals: Sequence[Mapping[str, Any]], token: str) -> list[Content]:
    if not removals:
        return []
    lines = [
        el(
            "div",
            undo(each, token),
            f" {counted(each['count'], 'dead letter')}, removed at {each['removed_at']}; ",
            f"gone for good at {each['until']}.",
            class_="line",
        )
        for each in removals[:_SHOWN_REMOVALS]
    ]
    more = len(removals) - _SHOWN_REMOVALS
    note = f"And {counted(more, 'earlier removal')}, which thawd dead undo can undo." if more > 0 else None
    return [el("h2", "Removed dead letters"), *lines, el("p", note, class_="note") if note else None]


def undo(removal: Mapping[str, Any], token: str) -> Html:
    """Return the button that undoes a removal."""
    letters = counted(removal["count"], "dead letter")
    return button(f"Undo: restore {letters}", f"{ROOT}/dead/undo", token, {"removal": removal["id"]})


def _line(letter: Mapping[str, Any], errors: Mapping[str, str]) -> list[Content]:
    # The message may contain values that are to be redacted. Which ones is known where the attempts are recorded.
    error = errors.get(letter["request_id"]) or in_a_line(letter["error"]).partition(":")[0]
    return [
        link(letter["id"], f"dead/{letter['id']}"),
        function_link(letter["function"]),
        invocation_link(letter["request_id"]),
        letter["buried_at"],
        letter["condition"],
        letter["attempts"],
        error[:160],
    ]


def _all(function: str | None, token: str) -> Html:
    fields: dict[str, str | int] = {"function": function} if function else {"all": 1}
    whose = f"all of {function}" if function else "all"
    return el(
        "div",
        button(f"Queue {whose} again", f"{ROOT}/dead/redrive", token, fields),
        " ",
        button(f"Remove {whose} …", f"{ROOT}/dead/ask", token, fields, danger=True),
        el("span", _NO_UNDO, class_="note"),
        class_="line",
    )


async def letter_content(sources: Sources, number: int, *, token: str) -> list[Content]:
    """Return the content of the page of one dead letter.

    Raises:
        ResourceNotFoundException: there is no such dead letter (404).
    """
    letter = await sources.queue.show(number)
    return await asyncio.to_thread(_letter, letter, sources.redactor, token)


def _letter(letter: Mapping[str, Any], redactor: Redactor, token: str) -> list[Content]:
    stored = bytes(letter["payload"])
    payload, values = redactor.body(stored)
    error, _ = redactor.body(letter["error"].encode(), values=values)
    fields: dict[str, str | int] = {"id": letter["id"]}
    return [
        el("p", redactor.text(in_a_line(letter["error"]), values=values), class_="bad"),
        facts(
            [
                ("Function", function_link(letter["function"])),
                ("Attempts", [letter["attempts"], " (", link("see them", _path_of(letter)), ")"]),
                ("Why", letter["condition"]),
                ("Accepted", letter["accepted_at"]),
                ("Became a dead letter", letter["buried_at"]),
                ("Source", letter["source"]),
                ("Size", size(letter["payload_bytes"])),
            ]
        ),
        el("p", "If you queue it again, only its outcome is delivered; the function does not run."
           if letter["outcome_kept"] else
           "Unless the cause has gone since, the unchanged event will probably fail again.", _NO_UNDO, class_="note"),
        button("Queue it again", f"{ROOT}/dead/redrive", token, fields),
        " ",
        link("Change it first", "try", {"dead": letter["id"]}),
        " ",
        button("Remove it …", f"{ROOT}/dead/ask", token, fields, danger=True),
        el("h2", "Event"),
        el("p", "Values are redacted here (server.redact). The stored event is unchanged.", class_="note")
        if payload != stored else None,
        code(payload),
        el("h2", "Error"),
        code(error),
    ]  # fmt: skip


def _path_of(letter: Mapping[str, Any]) -> str:
    return f"invocations/{quote(letter['request_id'], safe='')}"


def question(form: Mapping[str, str], token: str, *, can_undo: bool) -> list[Content]:
    """Return the question before dead letters are removed.

    Args:
        form: which dead letters: ``id``, ``function`` or ``all``.
        token: token of the session's forms.
        can_undo: whether the removal can be undone for some minutes.
    """
    then = (
        f"For {KEPT_S / 60:.0f} minutes, this can be undone on the page of the queue. Then the events are gone for "
        "good."
        if can_undo
        else "They are too many or too large to be kept, so this cannot be undone: the events are gone for good."
    )
    fields = {name: form[name] for name in ("id", "function", "all") if form.get(name)}
    what = (
        f"dead letter {fields['id']}"
        if "id" in fields
        else f"all dead letters of {fields.get('function', 'all functions')}"
    )
    return [
        el("p", f"Remove {what}? {then}", class_="bad"),
        el(
            "form",
            hidden("token", token),
            *(hidden(name, value) for name, value in fields.items()),
            el("button", "Remove", class_="danger"),
            method="post", action=f"{ROOT}/dead/remove", class_="inline",
        ),
        " ",
        link("Keep", "queue"),
    ]  # fmt: skip


def told(text: str, *more: Content) -> Html:
    """Return what a button has done."""
    return el("div", el("p", text, class_="good", role="status"), *more)
