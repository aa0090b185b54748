"""The endpoint that `benchmarks.runtime_api` calls: thawd's Runtime API, which always has a next invocation ready.

It runs in a separate process, on uvloop as thawd does:

    python -m benchmarks.runtime_endpoint READY_FILE
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop

from thawd.environments.runtime_api.endpoint import RuntimeApi
from thawd.environments.runtime_api.extensions_api import ExtensionsApi
from thawd.wire import frames

EVENT = b'{"key": "value"}'
HEAD = json.dumps(
    {
        "id": "8f8e5c5e-0a5a-4a5e-9b5e-2f5e5c5e0a5a",
        "arn": "arn:aws:lambda:us-east-1:000000000000:function:noop",
        "left_ms": 30_000,
        "trace": "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=0",
    }
).encode()


async def serve(ready: Path) -> None:
    """Serve until SIGTERM."""
    api = RuntimeApi(ExtensionsApi(function="noop", number="$LATEST", handler="m.f", external=[]), snap_start=False)

    def on_frame(kind: int, head: Any, body: bytes) -> None:
        api.send(frames.INVOKE, HEAD, EVENT)

    def on_answer(head: dict[str, Any], body: bytes) -> None:
        api.send(frames.INVOKE, HEAD, EVENT)

    api.attach(on_frame, on_answer=on_answer, on_lost=lambda: None)
    api.pid = os.getpid()
    await api.open()
    announced = json.dumps({"url": f"http://{api.address}", "pid": os.getpid()})
    await asyncio.to_thread(ready.write_text, announced)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    api.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1])))
