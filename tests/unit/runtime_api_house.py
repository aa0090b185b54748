"""An endpoint of the Runtime API with its connections, for tests: a real socket without a process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from thawd.environments.runtime_api.endpoint import RuntimeApi
from thawd.environments.runtime_api.extensions_api import ExtensionsApi
from thawd.wire import frames

RUNTIME = "/2018-06-01/runtime/"
NEXT = RUNTIME + "invocation/next"
ID = "8f8e5c5e-0a5a-4a5e-9b5e-2f5e5c5e0a5a"


class Answer:
    """An answer: status, headers by lower-case name, body."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def error(self) -> str:
        """Return the type in its error document."""
        return str(json.loads(self.body)["errorType"])


class Client:
    """One connection of a program."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: runtime"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def answer(self) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        return Answer(int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"])))

    async def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        self.send(method, path, body, **headers)
        return await self.answer()

    async def raw(self, data: bytes) -> bytes:
        """Send `data` and return everything received until the connection is closed."""
        self.writer.write(data)
        return await self.reader.read()


class House:
    """An endpoint, and what it has reported to its environment."""

    def __init__(self, *, snap_start: bool = False, external: list[str] | None = None) -> None:
        self.told: list[tuple[int, Any, bytes]] = []
        self.answers: list[tuple[dict[str, Any], bytes]] = []
        self.lost = asyncio.Event()
        self.news = asyncio.Event()
        extensions = ExtensionsApi(function="f", number="$LATEST", handler="m.f", external=external or [])
        self.api = RuntimeApi(extensions, snap_start=snap_start)
        self.api.attach(self._frame, on_answer=self._answer, on_lost=self.lost.set)
        self.on_part: Callable[[], None] = lambda: None
        self.writers: list[asyncio.StreamWriter] = []

    def _frame(self, kind: int, head: Any, body: bytes) -> None:
        self.told.append((kind, head, body))
        if kind == frames.PART:
            self.on_part()
        self.news.set()

    def _answer(self, head: dict[str, Any], body: bytes) -> None:
        self.answers.append((head, body))
        self.news.set()

    async def client(self) -> Client:
        host, port = self.api.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
        self.writers.append(writer)
        return Client(reader, writer)

    def invoke(self, payload: bytes = b"{}", **head: Any) -> None:
        head = {"id": ID, "arn": "arn:f", "left_ms": 3000, **head}
        self.api.send(frames.INVOKE, json.dumps(head).encode(), payload)

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()


def play(scene: Callable[[House], Awaitable[None]], **house: Any) -> None:
    """Run `scene` with an endpoint, and close the endpoint afterwards."""

    async def main() -> None:
        async with asyncio.timeout(300):
            it = House(**house)
            await it.api.open()
            try:
                await scene(it)
            finally:
                it.api.close()
                for writer in it.writers:
                    writer.close()

    asyncio.run(main())


async def ready(house: House) -> Client:
    """Return a client that has requested its first invocation."""
    client = await house.client()
    client.send("GET", NEXT)
    await house.until(lambda: house.told)
    return client


async def invoked(house: House) -> Client:
    """Return a client that has received an invocation."""
    client = await ready(house)
    house.invoke()
    assert (await client.answer()).status == 200
    return client
