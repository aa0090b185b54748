"""Runs, before a process is frozen as a base, what its copies will run.

The first runs of a function change memory: the interpreter counts them, specializes the function's bytecode, and fills
caches. If that happens before the freeze, the changed memory is part of the base, and copies do not change it again.
Nothing here loads code of a function, or leaves anything that code can see.
"""

import json
import os
import socket
from typing import Any, Dict

from thawd.runtime import context, fork_refusals, logs, loop, process
from thawd.runtime.changed_files import SourceFiles
from thawd.runtime.channel import Channel
from thawd.snapshot import uniqueness
from thawd.snapshot.connections import Openings
from thawd.wire import frames

# After so many runs, CPython 3.11 has specialized the bytecode of a function. Source: PEP 659.
RUNS = 10
_LIFELINE = frames.DESCRIPTORS[2]
_HEAD = {"id": "0" * 36, "arn": "arn:aws:lambda:us-east-1:000000000000:function:function", "left_ms": 1000.0}


def run(before_init: Dict[str, Any], *, runs: int = RUNS) -> None:
    """Do what a copy does before init, at a freeze, after a thaw and in an invocation.

    Args:
        before_init: a report like that of a copy before init.
        runs: how often.
    """
    for _ in range(runs):
        _init_and_freeze(before_init)
        _thaw()
    _serve(runs)


def _init_and_freeze(before_init: Dict[str, Any]) -> None:
    sources, openings = SourceFiles(), Openings("/")
    sources.watch()
    openings.watch()
    openings.stop()
    sources.stop()
    frames.encode(frames.READY, {"before_init": json.loads(json.dumps(before_init))})
    openings.any_port()
    openings.sockets(frames.DESCRIPTORS)
    process.seccomp_filters()
    process.native_threads()
    fork_refusals.refusal()


def _thaw() -> None:
    variables = dict(os.environ)
    other = {**variables, frames.PER_ENVIRONMENT[0]: "rehearsal"}
    uniqueness.environment(other, original=variables)
    uniqueness.environment(variables, original=other)
    try:
        uniqueness.renew(os.getpid(), thread_ids=lambda tid: 0)
    except uniqueness.RenewalError:
        pass  # the copies will get this error and be refused
    process.die_with_platform(_LIFELINE)
    process.limit_descriptors()


def _serve(runs: int) -> None:
    own, platform = socket.socketpair()
    with own, platform:
        channel = Channel(own.fileno())
        channel.wait_by_poll()
        for number in range(runs, 0, -1):
            # The last request has no trace id, so that the variable with the trace id is removed.
            head = {**_HEAD, "trace": "Root=1-0-0"} if number > 1 else _HEAD
            platform.sendall(frames.encode(frames.INVOKE, head, b"{}") + frames.encode(frames.GO_ON, {}))
            loop.serve(channel, _handler, until=frames.GO_ON)
            platform.recv(1 << 16)
    context.forget_environment()
    logs.set_request_id("")


def _handler(event: Any, context: Any) -> Any:
    return event
