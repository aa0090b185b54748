"""Watches a server during a measurement: the number of environments in each state, and memory, over time.

Watching itself uses a little of the measured machine's processor time: the process that sends the load also requests
the server's status about ten times a second, and a separate process (`thawd.bench.memory`) measures memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from thawd.bench.connection import Answer, Connection, clock_ns
from thawd.bench.requests import Requests, Target

_STATUS_S = 0.1
_ANSWER_S = 30.0


class Moment(msgspec.Struct, frozen=True):
    """Environments at one time.

    Attributes:
        at_s: time since the beginning of the run, seconds.
        idle: environments that wait for a request.
        busy: environments that serve a request.
        starting: environments that are being started.
        waiting: requests that wait for an environment.
    """

    at_s: float
    idle: int
    busy: int
    starting: int
    waiting: int


class MemorySample(msgspec.Struct, frozen=True):
    """Memory at one time, MiB. It is measured as PSS: a page that several processes share is divided among them.

    Attributes:
        at_s: time since the beginning of the run, seconds.
        environments_mib: memory of all descendants of the server's process: environments, and the templates from which
            environments are forked.
        server_mib: memory of the server.
    """

    at_s: float
    environments_mib: float
    server_mib: float


class StatusClient:
    """Requests the status of a running server, over one connection.

    Args:
        url: URL of the server.
        headers: headers to send, with the server's key if it has one.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._target = Target(f"{url}/_thawd/status", "GET", headers)
        self._request = Requests(self._target, [b""])[0]
        self._connection: Connection | None = None
        self._answered: asyncio.Future[Answer] | None = None
        self._turn = asyncio.Lock()

    async def read(self) -> dict[str, Any]:
        """Request the status document.

        Raises:
            OSError: no server answers, or the answer is an error.
        """
        async with self._turn:
            answer = await self._ask()
        if answer.status != 200:
            what = answer.trouble or f"HTTP {answer.status} {answer.body[:200].decode(errors='replace')}"
            raise OSError(f"{self._target.url}: {what}")
        document: dict[str, Any] = json.loads(answer.body)
        return document

    async def _ask(self) -> Answer:
        if self._connection is None or not self._connection.alive:
            connection = Connection(self, timeout_s=_ANSWER_S, whole=True)
            await asyncio.get_running_loop().create_connection(lambda: connection, self._target.host, self._target.port)
            self._connection = connection
        self._answered = asyncio.get_running_loop().create_future()
        self._connection.send(self._request)
        try:
            return await self._answered
        except asyncio.CancelledError:
            self.close()  # otherwise the next request would get the answer to this one
            raise

    def answered(self, connection: Connection, answer: Answer) -> None:
        """Pass the answer on to `read`. See `connection.Owner`."""
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(answer)

    def lost(self, connection: Connection) -> None:
        """Do nothing: the next request opens a new connection. See `connection.Owner`."""

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Watch:
    """Records the environments of a function during a measurement.

    Args:
        client: requests the status.
        function: function whose environments are counted.

    Attributes:
        moments: environments over time.
    """

    def __init__(self, client: StatusClient, function: str) -> None:
        self._client = client
        self._function = function
        self.moments: list[Moment] = []

    async def run(self, begun_ns: int) -> None:
        """Record about ten times a second until cancelled. Times count from `begun_ns`, a time by `clock_ns`."""
        while True:
            await self.look(begun_ns)
            await asyncio.sleep(_STATUS_S)

    async def look(self, begun_ns: int) -> None:
        """Request the status once, and record it. If the server does not answer, nothing is recorded."""
        with contextlib.suppress(OSError, KeyError):  # the server is too busy to answer, or is stopping
            entry = (await self._client.read())["functions"][self._function]
            self.note(entry, at_s=(clock_ns() - begun_ns) / 1e9)

    def note(self, entry: Mapping[str, Any], *, at_s: float) -> None:
        """Record the function's entry in a status document that was read `at_s` seconds after the beginning."""
        counts = entry["environments"]
        self.moments.append(Moment(at_s, counts["idle"], counts["busy"], counts["starting"], entry["waiting"]))


class MemoryWatch:
    """Starts and stops the process that measures memory, `thawd.bench.memory`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, pid: int) -> MemoryWatch:
        """Start to watch the process `pid`, and return after the first measurement.

        A caller that sends the load only after that measures no delays from the start of the watching process.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "thawd.bench.memory",
            str(pid),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach only the process that sends the load
        )
        assert process.stdout is not None
        await process.stdout.readline()
        return cls(process)

    async def stop(self, begun_ns: int) -> list[MemorySample]:
        """End the process and return its measurements since `begun_ns`, a time by `clock_ns`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, RuntimeError):  # the process has exited, because the server has exited
            self._process.stdin.close()
        written = await self._process.stdout.read()
        await self._process.wait()
        looks = (line.split() for line in written.decode().splitlines())
        seen = [(int(at_ns) - begun_ns, float(below), float(server)) for at_ns, below, server in looks]
        return [MemorySample(at_ns / 1e9, below, server) for at_ns, below, server in seen if at_ns >= 0]
