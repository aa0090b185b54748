"""`thawd.server.refusal_texts`: why an application refuses a request, from the answer that it has given."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from thawd.invocation import Result
from thawd.server.refusal_texts import refusal_text
from thawd.streaming import HTTP_RESPONSE, SEPARATOR

_MISTAKE = {"type": "missing", "loc": ["body", "price"], "msg": "Field required", "input": {"secret": 1}}


def _proxy(body: Any, **more: Any) -> bytes:
    return json.dumps({"statusCode": 422, "body": body, **more}).encode()


@pytest.mark.parametrize(
    "document, text",
    [
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [_MISTAKE]}, "body.price: Field required"),
        ({"detail": [_MISTAKE, _MISTAKE, _MISTAKE]}, "body.price: Field required (and 2 more)"),
        ({"type": "about:blank", "title": "Forbidden", "status": 403}, "Forbidden"),
        ({"title": "Forbidden", "detail": "no seat left"}, "no seat left"),
        ({"error": {"code": 7, "message": "no such key"}}, "no such key"),
        ({"errors": ["too large", "too old"]}, "too large (and 1 more)"),
        ({"errors": [{"message": "too large"}]}, "too large"),
        ("too large", "too large"),
        ({"detail": []}, ""),
        ({"detail": [7]}, ""),
        ({"detail": [{"loc": "x", "msg": 5}]}, ""),
        ({"n": 1}, ""),
        (["detail"], ""),
        (None, ""),
    ],
)
def test_what_an_answer_says_is_its_text(document: Any, text: str) -> None:
    body = json.dumps(document)
    assert refusal_text(Result(_proxy(body))) == text
    assert refusal_text(Result(_proxy(base64.b64encode(body.encode()).decode(), isBase64Encoded=True))) == text
    payload = b'{"statusCode": 422}' + SEPARATOR + body.encode()
    assert refusal_text(Result(payload, content_type=HTTP_RESPONSE)) == text


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"7",
        b"[]",
        b"\xff",
        _proxy(None),
        _proxy("<h1>Not Found</h1>"),
        _proxy("{"),
        _proxy("?", isBase64Encoded=True),
        _proxy('{"detail": ' * 5000),
        _proxy("[" * 50_000),
        _proxy(json.dumps({"detail": "x" * (64 << 10)})),
    ],
)
def test_an_answer_that_says_nothing_has_no_text(payload: bytes) -> None:
    assert refusal_text(Result(payload)) == ""
