"""The page on which a person sends an event to a function and sees the answer."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from thawd.recording.records import Records
from thawd.window.layout import ROOT, code, counted, hidden, indented, whole_number
from thawd.window.markup import Content, Html, el
from thawd.window.sources import Sources

_MOST_FUNCTIONS = 1000
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MOST_ROWS = 100
_MOST_INDENTED = 20_000


async def content(
    sources: Sources, query: Mapping[str, str], *, token: str, event: str | None = None, problem: str | None = None
) -> list[Content]:
    """Return the content of the page.

    Args:
        sources: what the page is made from.
        query: ``function``: the function that is chosen; ``request``: the invocation whose event is filled in;
            ``dead``: the dead letter whose event is filled in.
        token: token of the session's forms.
        event: the event in the form; None: an example, or that of ``request`` or ``dead``.
        problem: what is wrong with what was sent; None: nothing was sent.
    """
    names = sorted(sources.dispatcher.names())[:_MOST_FUNCTIONS]
    chosen, note = query.get("function", ""), None
    request = query.get("request")
    letter = whole_number(query.get("dead", ""))
    if event is None and letter is not None:
        chosen, event, note = await _dead(sources, letter)
    elif event is None and request and sources.records is not None:
        chosen, event, note = await _recorded(sources.records, request)
    options = [el("option", name, value=name, selected=name == chosen) for name in names]
    return [
        el("p", problem, class_="bad", role="alert") if problem else None,
        el("p", note, class_="note") if note else None,
        el(
            "form",
            hidden("token", token),
            el("label", "Function ", el("select", *options, name="function", required=True)),
            el("label", "Event, JSON", el("textarea", event if event is not None else "{}", name="event", rows="12",
                                          spellcheck="false")),
            el("p", el("button", "Send"), " The answer comes when the function has ended."),
            method="post", action=f"{ROOT}/try", class_="tall",
        ),
        el("h2", "Or send a file, as the body of an HTTP request"),
        el(
            "form",
            hidden("token", token),
            el("label", "Function ", el("select", *options, name="function", required=True)),
            el("label", "Path ", el("input", name="path", value=query.get("path", "/"))),
            el("label", "File ", el("input", type="file", name="file", required=True)),
            el("p", el("button", "Send the file")),
            method="post", action=f"{ROOT}/try", enctype="multipart/form-data", class_="tall",
        ),
    ]  # fmt: skip


async def _recorded(records: Records, request_id: str) -> tuple[str, str, str | None]:
    whole = await records.whole(request_id)
    row, body = whole.attempts[-1], whole.bodies[-1]
    stored = b"" if body is None else body.event
    why = whole.why_not_replayable
    return row.function, _indented(stored), f"Complete the event before you send it: {why}." if why else None


async def _dead(sources: Sources, number: int) -> tuple[str, str, str]:
    letter = await sources.queue.show(number)
    stored = bytes(letter["payload"])
    payload, _ = await asyncio.to_thread(sources.redactor.body, stored)
    stays = f"Dead letter {number} stays as it is: remove it when its event is dealt with."
    # Short values are redacted, too, but not returned.
    is_redacted = payload != stored
    why = "Complete the event before you send it: values are redacted here (server.redact). " if is_redacted else ""
    return letter["function"], _indented(payload), why + stays


def _indented(event: bytes) -> str:
    """Return an event for a field that a person edits: with indents, unless they would make it much longer."""
    text = event.decode("utf-8", "replace")
    most = _MOST_INDENTED + 4 * len(text)
    made = indented(text, most=most)
    return made if len(made) <= most else text


def shown(answer: bytes, content_type: str | None) -> Content:
    """Return an answer as a person wants to see it: an image as an image, rows as a table, JSON with indents."""
    if content_type in _IMAGES:
        return _image(content_type, base64.b64encode(answer).decode())
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        return code(answer)
    if isinstance(document, dict) and "statusCode" in document and isinstance(document.get("body"), str):
        return [el("p", f"HTTP status {document['statusCode']}"), _http_body(document)]
    return _rows(document) or code(answer)


def _http_body(document: dict[str, Any]) -> Content:
    headers = document.get("headers")
    pairs = headers.items() if isinstance(headers, dict) else ()
    kinds = {str(name).lower(): str(value) for name, value in pairs}
    kind = kinds.get("content-type", "").partition(";")[0].strip().lower()
    body: str = document["body"]
    text = body.encode(errors="replace")  # JSON can contain halves of surrogate pairs
    if document.get("isBase64Encoded"):
        try:
            data = base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            return code(text)
        return _image(kind, body) if kind in _IMAGES else code(data)
    return code(text)


def _image(kind: str, encoded: str) -> Html:
    return el("img", src=f"data:{kind};base64,{encoded}", alt="The image that the function has answered")


def _rows(document: Any) -> Html | None:
    """Return a list of flat objects as a table; None: it is none."""
    if not isinstance(document, list) or not document or not all(isinstance(each, dict) for each in document):
        return None
    names = list(dict.fromkeys(name for each in document for name in each))[:20]
    if any(isinstance(each.get(name), dict | list) for each in document for name in names):
        return None
    head = el("tr", *(el("th", name, scope="col") for name in names))
    rows = [el("tr", *(el("td", _cell(each.get(name))) for name in names)) for each in document[:_MOST_ROWS]]
    caption = el("caption", counted(len(document), "row"))
    return el("div", el("table", caption, el("thead", head), el("tbody", *rows)), class_="scroll", tabindex="0",
              role="region", aria_label="Answer")  # fmt: skip


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
