"""The Logs API alone, without functions, on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from botocore.exceptions import ClientError

from tests.integration.conftest import eventually
from thawd.cloudwatch.logs.groups import LogGroups
from thawd.cloudwatch.logs.queries import Queries
from thawd.cloudwatch.logs.subscriptions import Subscriptions
from thawd.errors import ResourceNotFoundException
from thawd.gateway.logs.endpoint import LogsApi
from thawd.gateway.logs.filter_operations import FilterOperations
from thawd.resources import Function
from thawd.stores.log_events import LogStore
from thawd.stores.schema import open_state

KNOWN = "arn:aws:lambda:us-east-1:000000000000:function:known"
"""ARN of the only function that filters find."""


def _find(arn: str) -> Function:
    if arn != KNOWN:
        raise ResourceNotFoundException("Function not found")
    return Function(name="known", handler="app.handler", code=Path("/"))


@contextlib.contextmanager
def served(folder: Path, *, max_bytes: int = 1 << 20) -> Iterator[str]:
    """Serve the Logs API for the files in `folder`; the state file is beside it. Yields the URL."""
    state = folder.with_name(folder.name + "-state") / "thawd.db"
    with contextlib.closing(open_state(state)) as database, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))

        async def serve() -> None:
            groups = LogGroups(LogStore(database), folder, max_bytes=max_bytes, flush=lambda: None)
            await groups.open()

            async def deliver(arn: str, document: bytes, stream: str) -> None:
                raise AssertionError("nothing is delivered here")

            async with asyncio.TaskGroup() as tasks:
                queries = Queries(
                    groups, state, spawn_task=tasks.create_task, spare_own_programs=contextlib.nullcontext
                )
                filters = FilterOperations(groups, Subscriptions(groups, deliver), find_function=_find, has_stream=None)
                api = LogsApi(groups, filters, queries)
                server = uvicorn.Server(
                    uvicorn.Config(api, log_level="warning", lifespan="off")  # type: ignore[arg-type]
                )
                servers.append(server)
                await server.serve(sockets=[listening])
                queries.close()

        servers: list[uvicorn.Server] = []
        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            eventually(lambda: servers and servers[0].started, what="the server's start")
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            if servers:
                servers[0].should_exit = True
            thread.join()


def now_ms() -> int:
    """The present time, milliseconds since 1970."""
    return int(time.time() * 1000)


def put(logs: Any, group: str, *events: tuple[int, str], stream: str = "s") -> dict[str, Any]:
    """Put events, pairs of time and message, into a stream, and return the answer."""
    documents = [{"timestamp": time_ms, "message": message} for time_ms, message in events]
    return dict(logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=documents))


def printed(folder: Path, function: str, *events: tuple[int, str], stream: str = "f/[$LATEST]1") -> None:
    """Write lines as a function's environment does."""
    lines = []
    for time_ms, message in events:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ms // 1000)) + f".{time_ms % 1000:03d}Z"
        lines.append(f"{at}\t{stream}\t{message}\n")
    with (folder / f"{function}.log").open("a") as file:
        file.write("".join(lines))


def messages(answer: dict[str, Any]) -> list[str]:
    """The messages in an answer."""
    return [event["message"] for event in answer["events"]]


@contextlib.contextmanager
def refused(code: str, words: str) -> Iterator[None]:
    """Require that a request in this block is refused with an error that has this code and these words."""
    with pytest.raises(ClientError) as caught:
        yield
    answer = caught.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (code, 400)
    assert words in answer["Error"]["Message"]
