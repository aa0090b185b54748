"""How much data uploads may hold together, and how long they may take: real sockets and boto3 with the object API."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.integration.conftest import DEADLINE_S, Project, eventually
from tests.integration.served import Served, code_of, xml_code
from thawd.gateway.http import _Incomplete
from thawd.gateway.http_server.limits import ConnectionLimits
from thawd.stores.objects.folder import STAGING


def begin(served: Served, key: str, body: bytes, *, size: int, headers: str = "") -> socket.socket:
    """Begin an upload and send only `body`."""
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S)
    head = f"PUT /uploads/{key} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n{headers}\r\n"
    connection.sendall(head.encode() + body)
    return connection


def status_of(connection: socket.socket) -> int:
    with connection.makefile("rb") as file:
        return int(file.readline().split()[1])


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Served]:
    limits = ConnectionLimits(connections=100, stall_s=0.2)
    with Served(tmp_path, limits=limits) as running:
        yield running


def staged(served: Served) -> int:
    folder = served.folder / "uploads" / os.fsdecode(STAGING)
    return sum(1 for _ in folder.iterdir()) if folder.exists() else 0


def test_an_upload_that_stalls_is_ended_and_leaves_nothing(limited: Served) -> None:
    connections = [begin(limited, f"k{i}", b"a" * 500_000, size=600_000) for i in range(20)]
    for connection in connections:
        assert status_of(connection) == 408
        connection.close()
    eventually(lambda: staged(limited) == 0, what="the end of what was staged")
    client = limited.client()
    client.put_object(Bucket="uploads", Key="whole", Body=b"1" * 2_000_000)
    assert client.get_object(Bucket="uploads", Key="whole")["Body"].read() == b"1" * 2_000_000
    client.close()


class Body:
    """A body that is being received, with as much of its interface as `_Incomplete` uses."""

    is_given_up = False

    def reschedule(self, when: float) -> None:
        self.is_given_up = True


def test_bodies_that_could_not_be_read_because_a_turn_of_the_loop_was_late_are_not_slow() -> None:
    mib = 1 << 20

    async def scenario() -> None:
        now_s = 0.0
        loop = asyncio.get_running_loop()
        loop.time = lambda: now_s  # type: ignore[method-assign]

        async def until(moment_s: float) -> None:
            nonlocal now_s
            now_s = moment_s
            for _ in range(3):
                await asyncio.sleep(0)

        bodies = _Incomplete()
        first, second = Body(), Body()
        bodies.add(first, 10 * mib)  # type: ignore[arg-type]
        bodies.add(second, 13 * mib)  # type: ignore[arg-type]
        # A turn of the loop that took 2 s, then the bytes that arrived meanwhile, one body after the other.
        await until(2.0)
        bodies.add(first, 2 * mib)  # type: ignore[arg-type]
        assert not second.is_given_up
        bodies.add(second, 2 * mib)  # type: ignore[arg-type]
        await until(2.25)
        assert not first.is_given_up
        assert not second.is_given_up
        # Another slow turn while slow bodies are being looked for.
        await until(5.0)
        bodies.add(first, mib)  # type: ignore[arg-type]
        bodies.add(second, mib)  # type: ignore[arg-type]
        await until(5.25)
        assert not first.is_given_up
        assert not second.is_given_up
        # Now no turn is slow, but one body is.
        for quarter in range(1, 9):
            bodies.add(second, mib)  # type: ignore[arg-type]
            await until(5.25 + quarter / 4)
        assert first.is_given_up
        assert not second.is_given_up
        bodies.remove(second)  # type: ignore[arg-type]

    asyncio.run(scenario())


def test_more_uploads_than_there_may_be_are_answered_slow_down_and_their_senders_read_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.api.uploads, "most", 3)
    with contextlib.ExitStack() as closing:
        busy = [closing.enter_context(begin(served, f"k{i}", b"", size=10)) for i in range(3)]
        eventually(lambda: served.api.uploads.count == 3, what="the beginning of the uploads")
        body = b"b" * 20_000_000
        status, headers, answer = served.request("PUT", "/uploads/one", body)
        assert (status, headers["retry-after"], xml_code(answer)) == (503, "1", "SlowDown")
        with begin(served, "k", b"", size=10, headers="Expect: 100-continue\r\n") as waiting:
            assert status_of(waiting) == 503
        client = served.client()
        with pytest.raises(ClientError) as caught:
            client.put_object(Bucket="uploads", Key="one", Body=body)
        assert code_of(caught) == "SlowDown"
        with pytest.raises(ClientError) as caught:
            upload = client.create_multipart_upload(Bucket="uploads", Key="parts")["UploadId"]
            client.upload_part(Bucket="uploads", Key="parts", PartNumber=1, UploadId=upload, Body=body)
        assert code_of(caught) == "SlowDown"
        for connection in busy:
            connection.sendall(b"0123456789")
            assert status_of(connection) == 200
        client.put_object(Bucket="uploads", Key="one", Body=body)
        client.close()


def test_memory_that_is_short_makes_uploads_write_at_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.api.uploads, "memory_bytes", 0)
    body = os.urandom(3_000_000)
    client = served.client()
    client.put_object(Bucket="uploads", Key="one", Body=body)
    assert client.get_object(Bucket="uploads", Key="one")["Body"].read() == body
    client.close()
    assert served.api.uploads.held_bytes == served.api.uploads.count == 0


def test_uploads_leave_the_disk_some_room(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.api.uploads, "disk_share", 1.0)
    monkeypatch.setattr(served.api.uploads, "disk_bytes", 1 << 62)
    status, _, answer = served.request("PUT", "/uploads/full", b"b" * 2_000_000)
    assert (status, xml_code(answer)) == (503, "SlowDown")
    assert b"full except for a reserve" in answer
    assert not (served.folder / "uploads/full").exists()


def test_the_memory_of_a_server_stays_within_64_mib_under_bodies_that_stall(project: Project) -> None:
    project.code("def handler(event, context):\n    return event\n")
    project.config('[functions.echo]\nhandler = "app.handler"\n[buckets.uploads]\n')
    with project.up() as running:
        running.invoke("echo", {})
        host, _, port = running.url.removeprefix("http://").partition(":")

        def resident_mib() -> float:
            status = Path(f"/proc/{running.process.pid}/status").read_text()
            return int(status.partition("VmRSS:")[2].split()[0]) / 1024

        idle_mib = resident_mib()
        invoke = "POST /2015-03-31/functions/echo/invocations"
        for line, size, sent, count in (
            ("PUT /uploads/k{}", 5_000_000, 1_000_000, 300),
            (invoke, 6_000_000, 3_000_000, 50),
            (invoke, 65_000, 64_000, 800),
        ):
            with contextlib.ExitStack() as closing:
                for i in range(count):
                    client = closing.enter_context(socket.create_connection((host, int(port)), timeout=DEADLINE_S))
                    head = f"{line.format(i)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
                    with contextlib.suppress(OSError):
                        client.sendall(head.encode() + b"1" * sent)
                assert running.invoke("echo", {"a": 1}) == ({"a": 1}, None)
                eventually(lambda: resident_mib() < idle_mib + 64, what=f"memory of {line} within 64 MiB of idle")
