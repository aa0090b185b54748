"""What the server and its environments do while they are measured: environments by state, memory, over time.

Looking costs the machine that is measured: the status is asked for ten times a second, by the process that measures;
memory is looked at by a process of its own (`memory`).
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
        at_s: since the run's beginning.
        idle: environments that wait for a request.
        busy: that serve one.
        starting: that are being started.
        waiting: requests that wait for one.
    """

    at_s: float
    idle: int
    busy: int
    starting: int
    waiting: int


class MemorySample(msgspec.Struct, frozen=True):
    """Memory at one time, MiB of PSS: each page is divided among the processes that share it.

    Attributes:
        at_s: since the run's beginning.
        environments_mib: of all processes under the server, the templates among them.
        server_mib: of the server.
    """

    at_s: float
    environments_mib: float
    server_mib: float


class StatusClient:
    """Asks a running thawd for its status, over a connection kept.

    Args:
        url: of the server.
        headers: what lets the request in.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._target = Target(f"{url}/_thawd/status", "GET", headers)
        self._request = Requests(self._target, [b""])[0]
        self._connection: Connection | None = None
        self._answered: asyncio.Future[Answer] | None = None
        self._turn = asyncio.Lock()

    async def read(self) -> dict[str, Any]:
        """The status document.

        Raises:
            OSError: nobody answers, or not with a status.
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
            self.close()  # its answer is nobody's
            raise

    def answered(self, connection: Connection, answer: Answer) -> None:
        """See `Owner`."""
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(answer)

    def lost(self, connection: Connection) -> None:
        """See `Owner`."""

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Watch:
    """Looks at a server while it is measured.

    Args:
        client: asks for the status.
        function: whose environments are counted.

    Attributes:
        moments: environments over time.
    """

    def __init__(self, client: StatusClient, function: str) -> None:
        self._client = client
        self._function = function
        self.moments: list[Moment] = []

    async def run(self, begun_ns: int) -> None:
        """Look again and again, until cancelled; times count from `begun_ns` of `clock_ns`."""
        while True:
            await self.look(begun_ns)
            await asyncio.sleep(_STATUS_S)

    async def look(self, begun_ns: int) -> None:
        """Look once."""
        with contextlib.suppress(OSError, KeyError):  # a server that is too busy to tell, or ends
            entry = (await self._client.read())["functions"][self._function]
            self.note(entry, at_s=(clock_ns() - begun_ns) / 1e9)

    def note(self, entry: Mapping[str, Any], *, at_s: float) -> None:
        """The function's part of a status document tells of the time `at_s` after the beginning."""
        counts = entry["environments"]
        self.moments.append(Moment(at_s, counts["idle"], counts["busy"], counts["starting"], entry["waiting"]))


class MemoryWatch:
    """A process that looks at memory; see `thawd.bench.memory`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, pid: int) -> MemoryWatch:
        """Watch the server `pid`; returns once its first look is done, so that its start disturbs nothing."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "thawd.bench.memory",
            str(pid),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the load
        )
        assert process.stdout is not None
        await process.stdout.readline()
        return cls(process)

    async def stop(self, begun_ns: int) -> list[MemorySample]:
        """What was seen since `begun_ns` of `clock_ns`; the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, RuntimeError):  # it has ended, because the server has
            self._process.stdin.close()
        told = await self._process.stdout.read()
        await self._process.wait()
        looks = (line.split() for line in told.decode().splitlines())
        seen = [(int(at_ns) - begun_ns, float(below), float(server)) for at_ns, below, server in looks]
        return [MemorySample(at_ns / 1e9, below, server) for at_ns, below, server in seen if at_ns >= 0]
