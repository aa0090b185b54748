"""Rules replace secret values wherever they are in an event, an answer or a text."""

from __future__ import annotations

import base64
import json
from typing import Any

from thawd.config.settings import REDACTED
from thawd.recording.redaction import MARK, Redactor

CANARY = "canary-4711-do-not-store"


def redacted(event: Any) -> str:
    return Redactor(REDACTED).body(json.dumps(event).encode())[0].decode()


def test_a_redacted_value_is_nowhere_in_what_is_stored() -> None:
    hidden = base64.b64encode(json.dumps({"user": "ann", "password": CANARY}).encode()).decode()
    events: dict[str, Any] = {
        "a key": {"password": CANARY},
        "a key in other letters": {"Db_Password": CANARY},
        "a key inside lists": {"a": [{"b": [{"ACCESS-TOKEN": CANARY}]}]},
        "a header": {"headers": {"Authorization": f"Bearer {CANARY}", "accept": "*/*"}},
        "many headers": {"multiValueHeaders": {"Cookie": [f"a={CANARY}", "b=2"]}},
        "cookies of format 2.0": {"cookies": [f"session={CANARY}"]},
        "an object under a key": {"credentials": {"inner": {"x": CANARY}}},
        "a number under a key": {"client_secret": 471147114711},
        "JSON in a body": {"body": json.dumps({"deep": {"secret": CANARY}})},
        "JSON in JSON in a body": {"body": json.dumps({"Message": json.dumps({"api_key": CANARY})})},
        "a form": {"body": f"user=ann&password={CANARY}&x=1"},
        "a form with an encoded name": {"body": f"user=ann&pass%77ord={CANARY}"},
        "a query string": {"rawQueryString": f"a=1&token={CANARY}"},
        "a Base64 body": {"isBase64Encoded": True, "body": hidden},
        "a Base64 record": {"Records": [{"kinesis": {"data": hidden}}]},
        "the same value under another key": {"password": CANARY, "copy": f"was {CANARY}!"},
        "a text with a pair": {"message": f"login with password: {CANARY} failed"},
        "a text with a quoted pair": {"message": f"got {{'password': '{CANARY}'}}"},
        "an escaped name": "\\u0070assword",
    }
    for name, event in events.items():
        text = json.dumps(event) if isinstance(event, dict) else f'{{"{event}": "{CANARY}"}}'
        kept = Redactor(REDACTED).body(text.encode())[0].decode()
        assert CANARY not in kept and "471147114711" not in kept, name
        assert hidden not in kept, name
        assert MARK in kept, name


def test_what_no_rule_names_is_stored_unchanged() -> None:
    for event in (
        {"max_tokens": 100, "tokens": ["a", "b"], "prompt": "the secretary passes words"},
        {"body": json.dumps({"x": [1, 2.5, None, True]}), "n": 10**30},
        {"image": base64.b64encode(bytes(range(256)) * 4).decode()},
        {"password": "", "token": None},
        [1, "a=b&c=d", {"k": "100% sure"}],
    ):
        body = json.dumps(event).encode()
        assert Redactor(REDACTED).body(body)[0] is body


def test_a_value_that_was_redacted_in_the_event_is_replaced_in_the_answer() -> None:
    redactor = Redactor(REDACTED)
    _, values = redactor.body(json.dumps({"password": CANARY, "secret": "ab"}).encode())
    answer = json.dumps({"errorMessage": f"no user with {CANARY}", "ab": "ab"}).encode()
    assert (
        redactor.body(answer, values=values)[0]
        == json.dumps({"errorMessage": f"no user with {MARK}", "ab": "ab"}, separators=(",", ":")).encode()
    )
    assert redactor.text(f"plain text with {CANARY}", values=values) == f"plain text with {MARK}"


def test_of_two_values_one_of_which_is_part_of_the_other_nothing_is_left() -> None:
    names = [f"secret-{number}" for number in range(8)]
    event = {name: "part" + "-of-it" * number for number, name in enumerate(names)}
    kept, values = Redactor(REDACTED).body(json.dumps({**event, "copy": " ".join(event.values())}).encode())
    assert json.loads(kept)["copy"] == " ".join([MARK] * 8)
    assert Redactor(REDACTED).text(" ".join(event.values()), values=values) == " ".join([MARK] * 8)


def test_what_a_handler_prints_of_a_value_is_replaced_too() -> None:
    headers = {"authorization": f"Bearer {CANARY}=1", "cookie": "theme=dark; id=canary-of-a-session=="}
    event = {"private_key": "-----BEGIN-----\ncanary-1\ncanary-2\n-----END-----", "headers": headers}
    _, values = Redactor(REDACTED).body(json.dumps(event).encode())
    for line in ("key canary-1", "canary-2", f"bad token {CANARY}=1", "no session canary-of-a-session=="):
        assert "canary" not in Redactor(REDACTED).text(line, values=values)
    assert Redactor(REDACTED).text("dark", values=values) == "dark"


def test_a_text_that_is_made_to_be_hard_to_search_is_searched_quickly() -> None:
    # Each "password" could begin a name that ends only with the text. In steps of the search, that is the square of
    # their number: minutes, in which the whole server stands still.
    body = json.dumps({"x": "password" * 40_000}).encode()
    assert Redactor(REDACTED).body(body)[0] is body
    many = {"token": [f"{number:05}" for number in range(300)], "x": "00007"}
    kept, values = Redactor(REDACTED).body(json.dumps(many).encode())
    assert json.loads(kept) == MARK and len(values) == 300
    assert json.loads(Redactor(REDACTED).body(b'["00007"]', values=values)[0]) == MARK
    assert Redactor(REDACTED).text("00007", values=values) == MARK


def test_the_servers_secrets_are_replaced_even_where_no_rule_names_the_key() -> None:
    redactor = Redactor((), secrets=[CANARY])
    assert CANARY not in redactor.body(json.dumps({"x": f"key {CANARY}"}).encode())[0].decode()
    assert CANARY not in redactor.body(f"not JSON {CANARY}".encode())[0].decode()
    assert redactor.text(f"x{CANARY}y") == f"x{MARK}y"


def test_the_error_of_an_event_contains_none_of_its_values() -> None:
    redactor = Redactor(REDACTED, secrets=["key-of-the-server"])
    lines = f"{CANARY}\n second line, of the value"
    for filler in ("", "x" * 70_000):
        event = json.dumps({"headers": {"authorization": f"Bearer {lines}"}, "filler": filler}).encode()
        for error in (json.dumps({"errorMessage": f"no {lines} key-of-the-server"}), f"no {lines} key-of-the-server"):
            shown = redactor.error(event, error)
            assert MARK in shown and not any(each in shown for each in (CANARY, "second line", "key-of-the-server"))
    assert redactor.error(b"\xff", "no \udcff bytes") == "no ? bytes"


def test_keys_that_are_remembered_are_bounded_and_answered_the_same() -> None:
    redactor = Redactor(REDACTED)
    for number in range(3000):
        for _ in range(2):
            assert redactor.names(f"token-{number}-secret") and not redactor.names(f"number-{number}")
    assert len(redactor._known) <= 1000


def test_a_document_that_is_too_deep_is_replaced_as_a_whole() -> None:
    deep: Any = {"password": CANARY}
    for _ in range(300):
        deep = {"a": deep}
    assert CANARY not in redacted(deep)
