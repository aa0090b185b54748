"""HTML as text that is escaped unless it is marked as HTML. No side effects."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset({"br", "col", "hr", "input", "link", "meta", "rect", "line", "path"})
_IN_SVG = frozenset({"rect", "line", "path"})


class Html(str):
    """Text that is HTML already. Every other text is escaped when it becomes part of a page."""

    __slots__ = ()


Content = Html | str | int | float | None | Iterable["Content"]


def render(content: Content) -> Html:
    """Return `content` as HTML: texts and numbers escaped, None as nothing, lists one part after the other."""
    if content is None:
        return Html("")
    if isinstance(content, Html):
        return content
    if isinstance(content, str | int | float):
        return Html(html.escape(str(content), quote=True))
    return Html("".join(map(render, content)))


def el(tag: str, *content: Content, **attributes: str | int | float | bool | None) -> Html:
    """Return an element.

    Args:
        tag: its name.
        content: what is in it.
        attributes: its attributes. ``class_`` and ``for_`` are ``class`` and ``for``, an underscore inside a name is a
            hyphen. None and False leave an attribute out, True gives it no value.
    """
    shown = ""
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        shown += " " + name.rstrip("_").replace("_", "-")
        shown += "" if value is True else f'="{html.escape(str(value), quote=True)}"'
    if tag in _VOID:
        if content and tag in _IN_SVG:
            return Html(f"<{tag}{shown}>{render(content)}</{tag}>")
        return Html(f"<{tag}{shown}/>")
    return Html(f"<{tag}{shown}>{render(content)}</{tag}>")
