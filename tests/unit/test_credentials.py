"""`without_credentials`: events contain the function's own credentials, but not those of thawd."""

from __future__ import annotations

import pytest

from thawd.gateway.routes.remove_credentials import without_credentials

KEY = "long-enough"


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        (b"x-api-key", b"long-enough", None),
        (b"authorization", b"Bearer long-enough", None),
        (b"authorization", b"bearer long-enough", None),
        (b"authorization", b"long-enough", None),
        (b"x-other", b"long-enough", None),
        (b"cookie", b"a=1; key=long-enough; b=2", b"a=1; b=2"),
        (b"cookie", b'key="long-enough"', None),
        (b"authorization", b"Bearer of-a-user", b"Bearer of-a-user"),
        (b"authorization", b"Bearer long-enough-and-more", b"Bearer long-enough-and-more"),
        (b"x-api-key", b"of-a-user", b"of-a-user"),
        (b"referer", b"http://localhost/long-enough", b"http://localhost/long-enough"),
    ],
)
def test_the_key_is_taken_out_of_headers_and_nothing_else_is(name: bytes, value: bytes, kept: bytes | None) -> None:
    given = [(b"host", b"localhost"), (name, value)]
    headers, _ = without_credentials(given, "", key=KEY)
    assert headers == [(b"host", b"localhost"), *([] if kept is None else [(name, kept)])]
    assert without_credentials(given, "", key=None) == (given, "")


def test_the_key_is_taken_out_of_the_query_which_is_else_as_it_was_sent() -> None:
    query = "a=%41&key=long%2Denough&b&c=long-enough-too&=&a=1+2"
    assert without_credentials([], query, key=KEY) == ([], "a=%41&b&c=long-enough-too&=&a=1+2")


def test_a_signature_is_taken_out_where_it_was_checked() -> None:
    given = [
        (b"authorization", b"AWS4-HMAC-SHA256 Credential=x"),
        (b"x-amz-date", b"d"),
        (b"x-amz-security-token", b"t"),
    ]
    query = "a=1&X-Amz-Signature=abc&X-Amz-Date=d&X-Amz-Security-Token=t"
    assert without_credentials(given, query, key=None) == (given, query)
    cleaned = ([(b"x-amz-date", b"d")], "a=1&X-Amz-Date=d")
    assert without_credentials(given, query, key=None, was_signed=True) == cleaned
