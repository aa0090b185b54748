"""The plain server that `benchmarks.overhead` compares with: Starlette on uvicorn, echoing a POST.

Its settings are those that thawd gives its own uvicorn: httptools, uvloop, no access log, one process. It runs as a
separate program:

    python -m benchmarks.echo READY_FILE
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH = "/echo"


async def echo(request: Request) -> Response:
    """Return the request's body."""
    return Response(await request.body(), media_type="application/json")


def main(ready: Path) -> None:
    """Serve until SIGTERM. Write URL and process id to the file `ready` as soon as connections are accepted."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    app = Starlette(routes=[Route(PATH, echo, methods=["POST"])])
    config = uvicorn.Config(
        app,
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
    )
    # The socket listens already, so the kernel accepts connections. uvicorn answers them as soon as its loop runs.
    announced = {"url": f"http://127.0.0.1:{listener.getsockname()[1]}", "pid": os.getpid()}
    ready.write_text(json.dumps(announced))
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
