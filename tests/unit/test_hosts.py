"""`thawd.gateway.hosts`: accepts names of this machine and pages from it, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from thawd.gateway.hosts import Hosts, is_loopback_name, may_ask


def scope(**headers: str) -> Any:
    return {"headers": [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]}


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8350",
        "localhost.:8350",
        "a.b.localhost:1",
        "uploads.s3.localhost:8350",
        "127.0.0.1",
        "127.8.9.10:8350",
        "[::1]",
        "[::1]:8350",
        "build-box.example:8350",
        "Build-Box.example",
        f"{'a' * 32}.lambda-url.us-east-1.on.aws",
        f"{'a' * 32}.lambda-url.us-east-1.localhost:8350",
        "abc.execute-api.us-east-1.amazonaws.com:8350",
        "abc.execute-api.localhost",
    ],
)
def test_names_of_this_machine_and_configured_ones_are_served(host: str) -> None:
    hosts = Hosts(("127.0.0.1", "build-box.example"))
    assert hosts.serves(scope(host=host))
    assert hosts.serves(scope(host=host))
    assert hosts.serves(scope())


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:8350",
        "localhost.evil.com",
        "127.0.0.1.evil.com",
        "evillocalhost",
        "other.build-box.example",
        "0.0.0.0:8350",
        "10.0.0.1",
        "[::]",
        "[fe80::1]",
        "",
        "127.0.0.1@evil.com",
        "evil.com:x",
        f"{'a' * 32}.lambda-url.us-east-1.on.aws.evil.com",
        f"evil.{'a' * 32}.lambda-url.us-east-1.on.aws",
        "abc.execute-api.us-east-1.amazonaws.com.evil.com",
        "abc.execute-api.evil.com",
    ],
)
def test_other_names_are_not_served(host: str) -> None:
    assert not Hosts(("127.0.0.1", "build-box.example")).serves(scope(host=host))


def test_a_name_of_many_dots_is_no_loopback_name() -> None:
    assert not is_loopback_name("." * 60_000)


HOST = "127.0.0.1:8350"


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ({}, True),
        ({"sec_fetch_site": "none"}, True),
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "whatever"}, False),
        ({"sec_fetch_site": "cross-site", "referer": "https://shared.example/a?b"}, True),
        ({"sec_fetch_site": "cross-site", "referer": "https://evil.com/"}, False),
        ({"sec_fetch_site": "same-site", "referer": "http://localhost:3000/page"}, True),
        ({"sec_fetch_site": "cross-site", "referer": "http://["}, False),
        ({"origin": "https://shared.example"}, True),
        ({"origin": "https://evil.com"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://["}, False),
        ({"origin": "http://localhost:3000"}, True),
        ({"origin": "http://127.0.0.1:8350"}, True),
        ({"origin": "https://evil.com", "sec_fetch_site": "same-origin"}, False),
    ],
)
def test_pages_of_this_machine_and_of_shared_origins_may_ask(headers: dict[str, str], may: bool) -> None:
    asked = scope(host=HOST, **headers)
    assert may_ask(asked, allows=lambda origin: origin == "https://shared.example") is may


def test_a_page_may_ask_the_origin_that_it_is_of() -> None:
    host = f"{'a' * 32}.lambda-url.us-east-1.localhost:8350"
    assert may_ask(scope(host=host, origin=f"http://{host}"), allows=lambda _: False)
    assert may_ask(scope(host="build-box.example", origin="https://build-box.example"), allows=lambda _: False)
    assert not may_ask(scope(host=HOST, origin=f"http://{host}"), allows=lambda _: False)
    assert not may_ask(scope(host=host, origin=f"http://{host}1"), allows=lambda _: False)


def test_an_origin_that_is_not_told_is_allowed_where_all_are() -> None:
    assert may_ask(scope(host=HOST, sec_fetch_site="cross-site"), allows=lambda origin: origin == "")
