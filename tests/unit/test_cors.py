"""`thawd.gateway.cors`: headers for browsers, by API Gateway's rules for HTTP APIs.

Source: API Gateway developer guide, "Configure CORS for HTTP APIs in API Gateway".
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thawd.gateway.cors import adding, allows, answer_headers, is_preflight, preflight_headers
from thawd.resources import Cors

SHOP = "https://shop.example"


def scope(method: str = "OPTIONS", **headers: str) -> dict[str, Any]:
    named = {"origin": SHOP, "access_control_request_method": "POST", **headers}
    return {"method": method, "headers": [(n.replace("_", "-").encode(), v.encode()) for n, v in named.items() if v]}


@pytest.mark.parametrize(
    ("allowed", "origin", "expected"),
    [
        ((), SHOP, False),
        (("*",), SHOP, True),
        ((SHOP,), SHOP, True),
        ((SHOP,), "HTTPS://Shop.Example", True),
        ((SHOP,), "https://shop.example.evil", False),
        ((SHOP,), "https://shop.example:8443", False),
        ((SHOP,), "http://shop.example", False),
        (("https://*",), SHOP, True),
        (("https://*",), "http://shop.example", False),
        (("http://*",), SHOP, False),
        ((SHOP,), "null", False),
        (("*",), "null", True),
    ],
)
def test_an_origin_is_allowed_by_name_by_scheme_or_all(allowed: tuple[str, ...], origin: str, expected: bool) -> None:
    assert allows(Cors(allow_origins=allowed), origin) is expected


def test_a_preflight_request_is_one_with_origin_and_the_method_asked_for() -> None:
    assert is_preflight(scope())
    assert not is_preflight(scope("GET"))
    assert not is_preflight(scope(origin=""))
    assert not is_preflight(scope(access_control_request_method=""))


def test_a_preflight_request_is_told_all_that_is_allowed() -> None:
    cors = Cors(allow_origins=(SHOP,), allow_methods=("GET", "POST"), allow_headers=("x-a", "x-b"), max_age_s=300)
    assert preflight_headers(cors, scope()) == [
        (b"access-control-allow-origin", SHOP.encode()),
        (b"vary", b"Origin"),
        (b"access-control-allow-methods", b"GET,POST"),
        (b"access-control-allow-headers", b"x-a,x-b"),
        (b"access-control-max-age", b"300"),
    ]


def test_an_origin_that_is_not_allowed_is_told_nothing() -> None:
    cors = Cors(allow_origins=(SHOP,), allow_methods=("*",))
    assert preflight_headers(cors, scope(origin="https://evil.example")) == []


def test_all_means_what_was_asked_for_where_credentials_are_allowed() -> None:
    """Fetch standard: in answers to a request with credentials, "*" is an ordinary name."""
    cors = Cors(allow_origins=("https://*",), allow_methods=("*",), allow_headers=("*",), allow_credentials=True)
    got = dict(preflight_headers(cors, scope(access_control_request_headers="authorization,x-a")))
    assert got[b"access-control-allow-origin"] == SHOP.encode()
    assert got[b"access-control-allow-methods"] == b"POST"
    assert got[b"access-control-allow-headers"] == b"authorization,x-a"
    assert got[b"access-control-allow-credentials"] == b"true"
    plain = dict(preflight_headers(Cors(allow_origins=("*",), allow_methods=("*",), allow_headers=("*",)), scope()))
    assert plain == {
        b"access-control-allow-origin": b"*",
        b"access-control-allow-methods": b"*",
        b"access-control-allow-headers": b"*",
    }


def test_what_a_handler_says_of_cors_is_replaced() -> None:
    cors = Cors(allow_origins=(SHOP,), expose_headers=("x-id", "etag"))
    said = [(b"Access-Control-Allow-Origin", b"*"), (b"x-id", b"7"), (b"vary", b"Accept")]
    assert answer_headers(cors, SHOP, said) == [
        (b"x-id", b"7"),
        (b"vary", b"Accept"),
        (b"access-control-allow-origin", SHOP.encode()),
        (b"vary", b"Origin"),
        (b"access-control-expose-headers", b"x-id,etag"),
    ]
    assert answer_headers(cors, "https://evil.example", said) == [(b"x-id", b"7"), (b"vary", b"Accept")]


@pytest.mark.parametrize("said", [b"Origin", b"Accept, origin"])
def test_an_answer_says_once_that_it_varies_with_the_origin(said: bytes) -> None:
    headers = answer_headers(Cors(allow_origins=(SHOP,)), SHOP, [(b"Vary", said)])
    assert headers == [(b"Vary", said), (b"access-control-allow-origin", SHOP.encode())]


def test_only_the_head_of_an_answer_gets_headers_and_only_where_there_is_an_origin() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def answer(through: Any) -> None:
        await through({"type": "http.response.start", "status": 200, "headers": []})
        await through({"type": "http.response.body", "body": b"x"})

    cors = Cors(allow_origins=("*",))
    asyncio.run(answer(adding(send, cors, scope("GET"))))
    assert sent[0]["headers"] == [(b"access-control-allow-origin", b"*")]
    assert sent[1] == {"type": "http.response.body", "body": b"x"}
    assert adding(send, cors, scope("GET", origin="")) is send
    assert adding(send, None, scope("GET")) is send


def test_names_beyond_latin_1_in_the_configuration_spoil_no_answer() -> None:
    cors = Cors(allow_origins=("*",), allow_methods=("GET",), allow_headers=("x-€",), expose_headers=("x-€",))
    assert (b"access-control-allow-headers", b"x-?") in preflight_headers(cors, scope())
    assert (b"access-control-expose-headers", b"x-?") in answer_headers(cors, SHOP, [])
