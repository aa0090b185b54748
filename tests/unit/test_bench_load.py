"""The load generator records what happens: the time and failure of each request, and a stall for all requests it
delays."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit.answering import OK, Request, answering
from thawd.bench.load import Limits
from thawd.bench.measuring import Plan, Progress, measure
from thawd.bench.requests import Expected, Target, without_credentials
from thawd.bench.runs import LoadShape, Run
from thawd.bench.summary import summarise
from thawd.bench.watching import MemorySample, MemoryWatch, StatusClient
from thawd.errors import StoreError


def closed(
    url: str,
    *,
    count: int | None,
    at_once: int = 1,
    payloads: Sequence[bytes] = (b"{}",),
    progress: Progress = lambda load, for_s: None,
    **limits: Any,
) -> Run:
    shape = LoadShape("closed", concurrency=at_once, requests=count)
    return _measured(url, shape, None, at_once, payloads, limits, progress)


def opened(url: str, offsets: Sequence[float], *, connections: int) -> Run:
    shape = LoadShape("open", pattern="recorded", requests=len(offsets))
    return _measured(url, shape, offsets, connections, (b"{}",), {"connections": connections})


def _measured(  # noqa: PLR0917 - a plan's parts
    url: str,
    shape: LoadShape,
    offsets: Sequence[float] | None,
    connections: int,
    payloads: Sequence[bytes],
    limits: dict[str, Any],
    progress: Progress = lambda load, for_s: None,
) -> Run:
    def times() -> Iterator[float]:
        assert offsets is not None
        return iter(offsets)

    plan = Plan(
        label="it",
        target_name=url,
        target=Target(url, "POST", {}),
        payloads=payloads,
        limits=Limits(**limits),
        shape=shape,
        connections=connections,
        offsets=None if offsets is None else times,
    )
    return measure(plan, progress=progress)


def test_each_latency_holds_the_time_the_server_took_and_percentiles_are_those_of_the_latencies() -> None:
    delays_ms = [20.0 if index % 10 == 9 else 2.0 for index in range(60)]

    def answer(request: Request) -> bytes:
        time.sleep(delays_ms[request.index] / 1000)
        return OK

    with answering(answer) as server:
        run = closed(server.url, count=60)
    taken_ms = [(server.spans[index][1] - server.spans[index][0]) / 1e6 for index in range(60)]
    assert all(
        mine >= theirs >= delay for mine, theirs, delay in zip(run.columns.latency_ms, taken_ms, delays_ms, strict=True)
    )
    told = summarise(run).percentiles_ms
    ordered = sorted(run.columns.latency_ms)
    for name, rank in {"p50": 30, "p90": 54, "p95": 57, "p99": 60, "max": 60}.items():
        assert told[name] == pytest.approx(ordered[rank - 1], rel=0.002)
    assert told["p95"] >= 20


def test_a_stall_is_met_by_one_request_of_a_closed_loop_and_by_all_who_would_have_come_of_an_open_one() -> None:
    def answer(request: Request) -> bytes:
        if request.index == 50:
            time.sleep(0.5)
        return OK

    with answering(answer) as server:
        held = closed(server.url, count=200).columns
    ends_ms = [sent + latency for sent, latency in zip(held.intended_ms, held.latency_ms, strict=True)]
    assert held.latency_ms[50] >= 500
    # The others began after it or ended before it, so the stall is not in their times.
    assert all(sent >= end - 0.001 for sent, end in zip(held.intended_ms[1:], ends_ms[:-1], strict=True))
    with answering(answer) as server:
        # One connection represents a server that stalls as a whole: later requests wait for the connection.
        held = opened(server.url, [index / 400 for index in range(300)], connections=1).columns
    assert len(held) == 300
    # Requests planned for the first 0.4 s of the stall waited at least 0.1 s, mostly before they were sent, however
    # slow this machine is.
    assert sum(latency >= 100 for latency in held.latency_ms) >= 150
    assert sum(waited >= 99 for waited in held.waited_ms) >= 150


def test_an_open_loop_sends_at_its_times_whatever_comes_back() -> None:
    held_back = threading.Event()

    def answer(request: Request) -> bytes:
        if request.index == 29:
            held_back.set()
        held_back.wait()
        return OK

    offsets = [index / 1000 for index in range(30)]
    with answering(answer) as server:
        # No request is answered before the last one has come. A generator that waited for answers would never finish.
        held = opened(server.url, offsets, connections=30).columns
    assert sorted(held.intended_ms) == pytest.approx([offset * 1000 for offset in offsets], abs=0.001)
    assert held.outcome == [0] * 30


def test_requests_wait_for_a_connection_where_there_may_be_no_more_and_that_is_told() -> None:
    with answering(lambda _: OK) as server:
        run = opened(server.url, [0.0] * 20, connections=2)
    assert server.connections == 2
    assert run.notes == ["18 requests had to wait for a connection; see --connections"]
    assert run.late_ms.keys() == {"p50", "p99", "max"}
    with answering(lambda _: OK) as server:
        run = opened(server.url, [0.0] * 2, connections=1)
    assert run.notes == ["1 request had to wait for a connection; see --connections"]


def test_payloads_are_sent_in_turn_and_as_many_requests_at_a_time_as_asked_for() -> None:
    together = threading.Barrier(3)

    def answer(request: Request) -> bytes:
        together.wait()  # hangs with fewer concurrent requests, and breaks with more
        return OK

    with answering(answer) as server:
        run = closed(server.url, count=9, at_once=3, payloads=[b"one", b"two"])
    assert sorted(request.body for request in server.requests) == [b"one"] * 5 + [b"two"] * 4
    assert run.columns.outcome == [0] * 9
    assert server.connections == 3


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (b"HTTP/1.1 500 Bad\r\nContent-Length: 4\r\n\r\nbad!", "HTTP 500", "bad!"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n",
            "HTTP 302",
            "to /there; redirects are not followed",
        ),
        (b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n", "throttle", ""),
        (
            b"HTTP/1.1 200 OK\r\nX-Amz-Function-Error: Unhandled\r\nContent-Length: 4\r\n\r\noops",
            "function Unhandled",
            "oops",
        ),
        (
            b"HTTP/1.1 200 OK\r\nX-Amz-Function-Error: Unhandled\r\nContent-Length: 53\r\n\r\n"
            b'{"errorMessage": "not so", "errorType": "ValueError"}',
            "function Unhandled",
            "ValueError: not so",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", "unexpected answer", "other"),
        (b"no HTTP at all\r\n\r\n", "connection", "not HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nshort",
            "time-out",
            "not complete after 0.2 s",
        ),
        (None, "connection", "ended before an answer"),
    ],
)
def test_what_goes_wrong_is_counted_by_kind_and_told(answer: bytes | None, kind: str, said: str) -> None:
    right = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
    with answering(lambda request: answer if request.index in (2, 4) else right) as server:
        expected = Expected(text=b"" if kind.startswith("function") else b"good")
        run = closed(server.url, count=6, expected=expected, timeout_s=0.2 if kind == "time-out" else 60)
    told = summarise(run)
    assert told.errors_by_kind == {kind: 2}
    assert run.columns.outcome.count(0) == 4
    assert said in run.examples[kind]


def test_statuses_that_are_expected_are_right() -> None:
    with answering(lambda _: b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n") as server:
        run = closed(server.url, count=3, expected=Expected(frozenset({404})))
    assert run.columns.outcome == [0, 0, 0]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nwho\r\n2\r\nle\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nwhole",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nwhole",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole",
    ],
    ids=["chunked", "until the end of the connection", "connection: close", "after an interim answer"],
)
def test_answers_are_read_in_every_form_of_http(answer: bytes) -> None:
    with answering(lambda _: answer) as server:
        run = closed(server.url, count=8, at_once=2, expected=Expected(text=b"whole"))
    assert run.columns.outcome == [0] * 8


def test_a_server_that_takes_no_connections_is_told_before_and_counted_meanwhile() -> None:
    with answering(lambda _: OK) as server:
        url = server.url
    with pytest.raises(StoreError, match="cannot be reached"):
        closed(url, count=3)
    ended = threading.Event()
    with answering(lambda request: OK if request.index < 2 else ended.set()) as server:
        # The server stops for good after two answers.
        def stop_listening() -> None:
            ended.wait()
            server.stop()

        stopping = threading.Thread(target=stop_listening)
        stopping.start()
        run = closed(server.url, count=6)
        stopping.join()
    assert len(run.columns) == 6
    assert summarise(run).errors_by_kind == {"connection": 4}


def test_credentials_of_an_address_are_sent_and_not_told() -> None:
    address, headers = without_credentials("https://bob:p%40ss@host:8443/a?b=c")
    assert address == "https://host:8443/a?b=c"
    assert headers == {"Authorization": "Basic " + base64.b64encode(b"bob:p@ss").decode()}
    assert without_credentials("http://host/a@b") == ("http://host/a@b", {})


def test_a_path_that_is_not_ascii_is_percent_encoded_and_what_is_already_is_not_encoded_twice() -> None:
    assert Target("http://host/Bär/a%20b?c=ü&d=1", "GET", {}).path == "/B%C3%A4r/a%20b?c=%C3%BC&d=1"


def test_an_https_address_is_measured_and_its_certificate_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = _certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with answering(lambda _: OK, tls=context) as server:
        with pytest.raises(StoreError, match=r"cannot be reached.*CERTIFICATE_VERIFY_FAILED"):
            closed(server.url, count=1)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        run = closed(server.url, count=6, at_once=2)
    assert run.columns.outcome == [0] * 6


def _certificate(folder: Path) -> Path:
    """Return a key and a self-signed certificate for 127.0.0.1."""
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "certificate.pem"
    file.write_bytes(key.private_bytes(*plain) + made.public_bytes(serialization.Encoding.PEM))
    return file


def test_a_server_that_dies_does_not_take_what_was_seen_of_its_memory_with_it() -> None:
    server = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)

    async def watched() -> list[MemorySample]:
        watch = await MemoryWatch.start(server.pid)
        server.communicate()
        await watch._process.wait()  # this task ends when the server does
        return await watch.stop(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert all(look.server_mib > 0 for look in runner.run(watched()))


def test_status_is_asked_for_by_several_at_once_and_after_one_who_gave_up() -> None:
    slow = threading.Event()

    def answer(request: Request) -> bytes:
        if request.index == 0:
            slow.wait()
        body = b'{"asked": %d}' % request.index
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    async def ask(url: str) -> list[dict[str, Any]]:
        client = StatusClient(url, {})
        gives_up = asyncio.create_task(client.read())
        others = [asyncio.create_task(client.read()) for _ in range(3)]
        while not server.requests:  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.001)
        gives_up.cancel()
        answers = await asyncio.gather(*others)
        client.close()
        slow.set()
        return answers

    with answering(answer) as server:
        assert sorted(told["asked"] for told in asyncio.run(ask(server.url))) == [1, 2, 3]
