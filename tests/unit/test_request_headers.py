"""`thawd.gateway.http.header`."""

from __future__ import annotations

from typing import Any

from thawd.gateway.http import header


def test_of_headers_with_one_name_the_first_counts() -> None:
    scope: dict[str, Any] = {"headers": [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]}
    assert [header(scope, name) for name in (b"a", b"b", b"c")] == [b"1", b"2", None]


def test_a_scope_with_other_headers_is_looked_at_anew() -> None:
    scope: dict[str, Any] = {"headers": [(b"content-length", b"1")]}
    assert header(scope, b"content-length") == b"1"
    changed = {**scope, "headers": [(b"content-length", b"22")]}
    assert header(changed, b"content-length") == b"22"
    assert header(scope, b"content-length") == b"1"
