"""`thawd.destinations.webhook`: what is sent to an address, how it is signed, and what is retried."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ports import quiet_port
from thawd.destinations import delivery as module
from thawd.destinations.delivery import DestinationContext, Destinations
from thawd.destinations.slots import SLOTS
from thawd.errors import DestinationUnavailable, ThawdError
from thawd.resources import Destination

from .outcome_records import (
    REQUEST_ID,
    both,
    check_record,
    deliver,
    failure,
    run,
    success,
    within,
)
from .receiving import Receiver, receiving

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "destinations.md"


@both
def test_an_address_gets_the_record(receiver: Receiver, tmp_path: Path, fails: bool) -> None:
    receiver.statuses = [204]
    deliver(Destination("http", f"{receiver.url}/hook?token=a%20b"), tmp_path, fails=fails)
    (got,) = receiver.got
    check_record(json.loads(got.body), fails=fails)
    assert got.path == "/hook?token=a%20b"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-amzn-requestid"] == REQUEST_ID
    assert got.headers["idempotency-key"] == got.headers["webhook-id"]
    assert "webhook-signature" not in got.headers


def test_the_key_is_the_same_on_each_try_and_differs_by_outcome(receiver: Receiver, tmp_path: Path) -> None:
    receiver.statuses = [503, 200, 200]
    to = Destination("http", receiver.url)

    async def work(destinations: Destinations) -> None:
        made = success(destinations, to)
        with pytest.raises(DestinationUnavailable, match="answered 503"):
            await destinations.deliver(made)
        await destinations.deliver(made)
        await destinations.deliver(failure(destinations, to))

    run(work, tmp_path)
    first, second, other = (got.headers["idempotency-key"] for got in receiver.got)
    assert first == second != other
    assert receiver.got[0].body == receiver.got[1].body


def test_what_a_receiver_would_have_remembered_is_not_sent_again(receiver: Receiver, tmp_path: Path) -> None:
    receiver.headers = {"set-cookie": "session=1; path=/"}

    async def work(destinations: Destinations) -> None:
        for _ in range(2):
            await destinations.deliver(success(destinations, Destination("http", receiver.url)))

    run(work, tmp_path)
    assert ["cookie" in got.headers for got in receiver.got] == [False, False]


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        ("a-long-secret", b"a-long-secret"),
        ("whsec_" + base64.b64encode(b"key of the receiver").decode(), b"key of the receiver"),
        ("whsec_no base64!", b"whsec_no base64!"),
    ],
)
def test_a_record_is_signed_as_standard_webhooks_says(
    receiver: Receiver, tmp_path: Path, secret: str, key: bytes
) -> None:
    deliver(Destination("http", receiver.url), tmp_path, DestinationContext(webhook_secret=secret))
    (got,) = receiver.got
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert got.headers["webhook-signature"] == f"v1,{expected}"
    assert abs(int(got.headers["webhook-timestamp"]) - time.time()) < 600
    documented = re.search(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert documented is not None
    names: dict[str, Any] = {}
    exec(documented[1], names)
    assert names["is_ours"](key, got.headers, got.body)
    assert not names["is_ours"](key, got.headers, got.body + b" ")


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(500, True), (502, True), (503, True), (429, True), (408, True), (425, True), (409, True)]
    + [(400, False), (401, False), (403, False), (404, False), (410, False), (413, False), (422, False)]
    + [(301, False), (302, False), (307, False), (308, False), (304, False)],
)
def test_answers_of_an_address_are_tried_again_or_not(
    receiver: Receiver, tmp_path: Path, status: int, retryable: bool
) -> None:
    receiver.statuses = [status, 200]
    receiver.headers = {"location": f"{receiver.url}/elsewhere"}
    if status == 304:
        receiver.answer = b""
    with pytest.raises(ThawdError, match=f"answered {status}") as error:
        deliver(Destination("http", f"{receiver.url}/secret-path"), tmp_path)
    assert error.value.retryable == retryable
    assert len(receiver.got) == 1, "a redirect was followed"
    assert "secret-path" not in str(error.value)


def test_an_address_where_nobody_listens_may_be_up_later(tmp_path: Path) -> None:
    with pytest.raises(DestinationUnavailable, match="could not be reached"):
        deliver(Destination("http", f"http://127.0.0.1:{quiet_port()}/"), tmp_path)


def test_an_answer_without_end_is_cut_off(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer = b"x" * (8 << 20)
    deliver(Destination("http", receiver.url), tmp_path)


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{quiet_port()}")
    deliver(Destination("http", receiver.url), tmp_path)
    assert len(receiver.got) == 1


def test_an_address_that_hangs_takes_its_slots_and_delays_no_other(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.gate.clear()
    monkeypatch.setattr(module, "LIMIT_S", within(60.0))

    async def work(destinations: Destinations) -> None:
        hanging = success(destinations, Destination("http", receiver.url))
        tries = [asyncio.ensure_future(destinations.deliver(hanging)) for _ in range(3 * SLOTS)]
        with receiving() as other:
            while len(receiver.got) < SLOTS:  # noqa: ASYNC110 - the receiver is in a thread
                await asyncio.sleep(0.01)
            for to in (Destination("http", other.url), Destination("bucket", "out"), Destination("table", "out")):
                await destinations.deliver(success(destinations, to))
        assert len(receiver.got) == SLOTS, "more at once than there are slots"
        receiver.gate.set()
        await asyncio.gather(*tries)
        assert len(receiver.got) == 3 * SLOTS

    run(work, tmp_path)
