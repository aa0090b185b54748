"""`thawd.gateway.routes.streamed_head`: where a streamed answer's status and headers end, however its bytes are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.gateway.routes.payload_formats import MalformedResponseError
from thawd.gateway.routes.streamed_head import Prelude, whole
from thawd.streaming import HTTP_RESPONSE

HEAD = json.dumps({"statusCode": 201, "headers": {"X-A": "1"}, "cookies": ["a=1"]}).encode()
NUL = b"\0" * 8


@given(st.binary(max_size=40), st.lists(st.integers(1, 30), max_size=20))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_prelude_is_found_however_the_answer_is_cut(body: bytes, cuts: list[int]) -> None:
    data = HEAD + NUL + body
    pieces = []
    for size in [*cuts, len(data)]:
        pieces.append(data[:size])
        data = data[size:]
    prelude, got = Prelude(), None
    for piece in pieces:
        if got is None:
            got = prelude.feed(piece)
        else:
            got += piece
    assert (got, prelude.status) == (body, 201)
    assert prelude.headers == [(b"x-a", b"1"), (b"set-cookie", b"a=1"), (b"content-type", b"application/octet-stream")]


def test_what_a_prelude_does_not_say_has_a_default() -> None:
    prelude = Prelude()
    assert prelude.feed(b"{}" + NUL) == b""
    assert (prelude.status, prelude.headers) == (200, [(b"content-type", b"application/octet-stream")])


@pytest.mark.parametrize(
    "head", [b"", b"no json", b"[]", b'{"statusCode": 1000}', b'{"headers": {"a": "b\\r\\nc"}}', b'{"cookies": 7}']
)
def test_a_malformed_prelude_is_refused(head: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        Prelude().feed(head + NUL)


def test_a_prelude_without_end_is_given_up() -> None:
    prelude = Prelude()
    with pytest.raises(MalformedResponseError):
        for _ in range(1000):
            assert prelude.feed(b"x" * 1000) is None


def test_a_whole_answer_is_split_or_taken_as_it_is() -> None:
    got = whole(HTTP_RESPONSE, HEAD + NUL + b"body")
    assert (got.status, got.body) == (201, b"body")
    assert whole(HTTP_RESPONSE, b'{"statusCode": 204}' + NUL + b"body").body == b""
    got = whole("text/csv", HEAD + NUL)
    assert (got.status, got.headers, got.body) == (200, [(b"content-type", b"text/csv")], HEAD + NUL)
    with pytest.raises(MalformedResponseError):
        whole(HTTP_RESPONSE, HEAD)
