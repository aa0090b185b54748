"""What all pages have in common: head, navigation, tables; and figures as text for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

from thawd.window.markup import Content, Html, el, render

ROOT = "/_thawd/window"
"""The path under which all pages but the first are."""
_PAGES = (
    ("/_thawd/", "Now"),
    (f"{ROOT}/failures", "Failures"),
    (f"{ROOT}/invocations", "Invocations"),
    (f"{ROOT}/queue", "Queue"),
    (f"{ROOT}/snapshots", "Snapshots"),
    (f"{ROOT}/try", "Try"),
)
_LONGEST_JSON = 20_000


def page(
    title: str, *content: Content, here: str = "", token: str | None = None, live: bool | str = False, machine: str = ""
) -> bytes:
    """Return a whole page.

    Args:
        title: its title, also its first heading.
        content: what is in its main part.
        here: path of the page in the navigation that it belongs to.
        token: token of the session's forms, for the button that ends the session; None: there is no session.
        live: whether the page is refreshed when something happens; a text is the fingerprint of what it shows of other
            machines (`thawd.window.live`).
        machine: name of this machine in its cluster; empty: it runs alone.
    """
    links = [el("li", el("a", name, href=path, aria_current="page" if path == here else None)) for path, name in _PAGES]
    leave = None
    if token is not None:
        leave = el(
            "form", hidden("token", token), el("button", "Sign out", class_="quiet"),
            method="post", action=f"{ROOT}/logout",
        )  # fmt: skip
    return (
        "<!doctype html>\n"
        + el(
            "html",
            el(
                "head",
                el("meta", charset="utf-8"),
                el("meta", name="viewport", content="width=device-width, initial-scale=1"),
                el("meta", name="color-scheme", content="light dark"),
                el("title", f"{title} · thawd"),
                el("link", rel="icon", href="data:,"),
                el("link", rel="stylesheet", href=f"{ROOT}/style.css"),
                el("script", src=f"{ROOT}/live.js", defer=True) if live else None,
            ),
            el(
                "body",
                el("a", "Skip to the content", href="#content", class_="skip"),
                el(
                    "header",
                    el("span", f"thawd on {machine}" if machine else "thawd", class_="brand"),
                    el("nav", el("ul", *links), aria_label="Pages"),
                    leave,
                ),
                el("main", el("h1", title), *content, id="content", tabindex="-1", data_live=live or None),
            ),
            lang="en",
        )
    ).encode(errors="replace")  # JSON can contain halves of surrogate pairs


def hidden(name: str, value: str | int) -> Html:
    """Return a field of a form that is not shown."""
    return el("input", type="hidden", name=name, value=value)


def table(caption: str, heads: Sequence[Content], rows: Iterable[Sequence[Content]], *, empty: str) -> Html:
    """Return a table, or the text `empty` if there are no rows. The first cell of a row is its heading.

    Args:
        caption: what the table shows.
        heads: the headings of the columns. One that begins with ``#`` is that of a column of numbers.
        rows: cells of each row.
        empty: what to say instead of an empty table.
    """
    body = [list(row) for row in rows]
    if not body:
        return el("p", empty, class_="empty")
    numeric = [isinstance(head, str) and head.startswith("#") for head in heads]
    shown = [
        head[1:] if isinstance(head, str) and is_number else head
        for head, is_number in zip(heads, numeric, strict=True)
    ]
    head = el("tr", *(el("th", text, scope="col", class_=_kind(n)) for text, n in zip(shown, numeric, strict=True)))
    lines = []
    for row in body:
        cells = [el("th", row[0], scope="row", class_=_kind(numeric[0]))]
        cells += [el("td", cell, class_=_kind(n)) for cell, n in zip(row[1:], numeric[1:], strict=True)]
        lines.append(el("tr", *cells))
    return el(
        "div",
        el("table", el("caption", caption), el("thead", head), el("tbody", *lines)),
        class_="scroll", tabindex="0", role="region", aria_label=caption,
    )  # fmt: skip


def _kind(is_number: bool) -> str | None:
    return "number" if is_number else None


def facts(pairs: Iterable[tuple[str, Content]]) -> Html:
    """Return a list of names and values; pairs whose value is None or empty are left out."""
    return el(
        "dl",
        *([el("dt", name), el("dd", value)] for name, value in pairs if value is not None and value != ""),
    )


def button(label: str, action: str, token: str, fields: Mapping[str, str | int], *, danger: bool = False) -> Html:
    """Return a form that consists of a button."""
    return el(
        "form",
        hidden("token", token),
        *(hidden(name, value) for name, value in fields.items()),
        el("button", label, class_="danger" if danger else None),
        method="post",
        action=action,
        class_="inline",
    )


def link(text: Content, path: str, query: Mapping[str, object] | None = None) -> Html:
    """Return a link to a page of the window."""
    pairs = {name: value for name, value in (query or {}).items() if value not in (None, "")}
    return el("a", text, href=f"{ROOT}/{path}" + (f"?{urlencode(pairs)}" if pairs else ""))


def function_link(name: str) -> Html:
    """Return a link to the page of a function."""
    return link(name, f"functions/{quote(name, safe='')}")


def invocation_link(request_id: str) -> Html:
    """Return a link to the page of an invocation; its text is the beginning of the request id."""
    return el(
        "a", request_id[:8], href=f"{ROOT}/invocations/{quote(request_id, safe='')}", title=request_id,
        aria_label=f"invocation {request_id}",
    )  # fmt: skip


def when(at_ms: float) -> Html:
    """Return a time, in UTC, to the millisecond."""
    text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "")
    return el("time", text, datetime=text.replace(" ", "T") + "Z")


def whole_number(text: str) -> int | None:
    """Return the whole number that a parameter of a request is, of at most 18 digits; None: it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def milliseconds(value: float | None) -> str:
    """Return a duration with a unit, or a dash."""
    if value is None:
        return "-"
    if value >= 60_000:
        return f"{value / 60_000:.1f} min"
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def counted(count: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless it is 1."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def code(body: bytes) -> Html:
    """Return JSON with indents, or another text, in a block."""
    text = body.decode("utf-8", "replace")
    shown = indented(text, most=_LONGEST_JSON)
    note = f"Only the first {_LONGEST_JSON:,} characters are shown. Without indents, the text has {len(text):,}."
    return render(
        [
            el("pre", el("code", shown[:_LONGEST_JSON]), tabindex="0", class_="scroll"),
            el("p", note) if len(shown) > _LONGEST_JSON else None,
        ]
    )


def indented(text: str, *, most: int) -> str:
    """Return JSON with indents, or another text unchanged.

    Deeply nested JSON of a few hundred KiB would have hundreds of MiB with indents.

    Args:
        text: the text.
        most: with more characters than this, the JSON is cut off, and still has more than this.
    """
    parts: list[str] = []
    size = 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            parts.append(part)
            size += len(part)
            if size > most:
                break
    except (ValueError, RecursionError):
        return text
    return "".join(parts)
