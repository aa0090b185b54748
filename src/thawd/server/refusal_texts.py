"""Why an application refuses a request (400 to 499), in one line: from the JSON of its answer.

Known are FastAPI's and thawd's list of mistakes (``detail``), problem documents (RFC 9457), and the names that
frameworks and handlers use for a text: ``detail``, ``message``, ``error``, ``title``, ``errors``.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from thawd.invocation import Result
from thawd.streaming import HTTP_RESPONSE, SEPARATOR

_NAMES = ("detail", "message", "Message", "error", "title", "errors")
_MOST_BYTES = 64 << 10


class _Answer(msgspec.Struct):
    body: str = ""
    isBase64Encoded: bool = False  # noqa: N815 - Lambda's name


def refusal_text(result: Result) -> str:
    """Return why an answer refuses its request; empty if its body is not JSON that says so."""
    if len(result.payload) > _MOST_BYTES:
        return ""
    try:
        return _text_in(msgspec.json.decode(_body_of(result)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, binascii.Error):
        return ""


def _body_of(result: Result) -> bytes:
    if result.content_type == HTTP_RESPONSE:
        return result.payload.partition(SEPARATOR)[2]
    answer = msgspec.json.decode(result.payload, type=_Answer)
    return base64.b64decode(answer.body) if answer.isBase64Encoded else answer.body.encode()


def _text_in(document: Any) -> str:
    if isinstance(document, str):
        return document
    if not isinstance(document, dict):
        return ""
    for name in _NAMES:
        value = document.get(name)
        if isinstance(value, list) and value:
            first = _mistake(value[0])
            return f"{first} (and {len(value) - 1} more)" if first and len(value) > 1 else first
        if isinstance(value, dict):
            value = _text_in(value)
        if isinstance(value, str) and value:
            return value
    return ""


def _mistake(entry: Any) -> str:
    """Return one of several mistakes: where it is, and what it is, without the value itself."""
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        return ""
    text = entry.get("msg") or _text_in(entry)
    where = entry.get("loc")
    if not isinstance(text, str) or not text:
        return ""
    return f"{'.'.join(map(str, where))}: {text}" if isinstance(where, list) and where else text
