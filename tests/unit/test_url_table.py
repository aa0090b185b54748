"""`thawd.gateway.function_urls.table`: which function an address belongs to."""

from __future__ import annotations

import re

import pytest

from thawd.gateway.function_urls.table import Url, UrlTable, described, id_in, settings_of, url_id
from thawd.resources import Cors, FunctionUrl

OPEN = FunctionUrl(auth_type="NONE")
SIGNED = FunctionUrl(auth_type="AWS_IAM", invoke_mode="RESPONSE_STREAM")


def test_an_identifier_is_32_letters_and_digits_and_follows_from_function_and_qualifier() -> None:
    names = [(f"f{number}", qualifier) for number in range(50) for qualifier in ("$LATEST", "live")]
    made = [url_id(*name) for name in names]
    assert len(set(made)) == len(names)
    assert all(re.fullmatch("[a-z0-9]{32}", one) for one in made)
    assert made == [url_id(*name) for name in names]
    assert url_id("f0") == url_id("f0", "$LATEST")


ID = url_id("f")


@pytest.mark.parametrize(
    ("address", "found"),
    [
        (f"{ID}.lambda-url.us-east-1.localhost", True),
        (f"{ID}.lambda-url.us-east-1.localhost:8350", True),
        (f"{ID}.lambda-url.eu-central-1.on.aws", True),
        (f"{ID.upper()}.Lambda-URL.us-east-1.LOCALHOST:1", True),
        (f"/_urls/{ID}", True),
        (f"/_urls/{ID}/", True),
        (f"/_urls/{ID}/a/b", True),
        (f"/_urls/{ID}x/", False),
        (f"/_urls/{ID[:-1]}/", False),
        (f"/x/_urls/{ID}/", False),
        (f"{ID}.lambda-url.us-east-1.on.aws.evil.example", False),
        (f"x.{ID}.lambda-url.us-east-1.localhost", False),
        (f"{ID}.lambda.us-east-1.localhost", False),
        ("localhost:8350", False),
        ("", False),
    ],
)
def test_an_address_is_a_host_or_a_path(address: str, found: bool) -> None:
    table = UrlTable()
    table.declare({"f": OPEN})
    assert (table.find(address) == Url(ID, "f", "$LATEST", OPEN)) is found
    assert (id_in(address) == ID) is found


def test_what_the_api_sets_stands_beside_what_the_file_declares_and_survives_a_reload() -> None:
    table = UrlTable()
    table.declare({"f": OPEN, "g": OPEN})
    made = table.set("f", "live", SIGNED)
    assert made == url_id("f", "live")
    table.declare({"f": OPEN})
    assert {(url.function, url.qualifier) for url in table} == {("f", "$LATEST"), ("f", "live")}
    assert len(table) == 2
    assert table.find(f"/_urls/{url_id('g')}/") is None
    assert table.find(f"/_urls/{made}/") == Url(made, "f", "live", SIGNED)


def test_the_api_goes_before_the_file_and_what_it_takes_away_is_gone() -> None:
    table = UrlTable()
    table.declare({"f": OPEN})
    identifier = table.set("f", "$LATEST", SIGNED)
    assert (len(table), [url.settings for url in table]) == (1, [SIGNED])
    assert table.find(f"/_urls/{identifier}").settings == SIGNED  # type: ignore[union-attr]
    assert table.remove("f", "$LATEST") is True
    assert table.find(f"/_urls/{identifier}").settings == OPEN  # type: ignore[union-attr]
    assert table.remove("f", "$LATEST") is False


def test_a_configuration_of_the_api_says_the_same_as_the_file() -> None:
    assert settings_of({"AuthType": "NONE"}) == OPEN
    assert settings_of({"AuthType": "AWS_IAM", "InvokeMode": "RESPONSE_STREAM", "Cors": {}, "Url": "x"}) == SIGNED
    cors = {
        "AllowOrigins": ["*"],
        "AllowMethods": ["GET"],
        "AllowHeaders": ["x-a"],
        "ExposeHeaders": ["x-b"],
        "MaxAge": 5,
        "AllowCredentials": True,
    }
    whole = settings_of({"AuthType": "NONE", "Cors": cors})
    assert described(whole) == {"AuthType": "NONE", "InvokeMode": "BUFFERED", "Cors": cors}
    for settings in (OPEN, SIGNED, whole):
        assert settings_of(described(settings)) == settings
    assert whole.cors == Cors(
        allow_origins=("*",),
        allow_methods=("GET",),
        allow_headers=("x-a",),
        expose_headers=("x-b",),
        max_age_s=5,
        allow_credentials=True,
    )


def test_a_table_is_true_while_it_has_any() -> None:
    table = UrlTable()
    assert not table
    table.set("f", "live", OPEN)
    assert table
