"""What the operator of ``thawd up --debug`` is told while functions run: stale code, and a stop that has to wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import msgspec

from thawd.config import Settings
from thawd.environments.debugging import Debugging
from thawd.scheduling.dispatcher import Dispatcher
from thawd.server.code_watch import CodeWatcher
from thawd.telemetry.console import complain


def stale_code_watcher(settings: Callable[[], Settings], debugging: Debugging) -> CodeWatcher:
    """Return a watcher that says when code of a debugged function changes that nothing republishes.

    Args:
        settings: returns the current configuration.
        debugging: the functions that a debugger can stop.
    """

    def debugged() -> Settings:
        now = settings()
        functions = {name: each for name, each in now.functions.items() if name in debugging.ports}
        return msgspec.structs.replace(now, functions=functions)

    async def warn(changed: str) -> None:
        if changed:
            complain(
                f"thawd: {changed} changed after the debugged process started, so a debugger shows wrong lines. "
                f"`kill -HUP {os.getpid()}` republishes; --watch does so by itself"
            )

    return CodeWatcher(debugged, warn, suffix=".py", announces=False)


def held_up(dispatcher: Dispatcher, grace_s: float) -> Iterator[str]:
    """Yield a line for each function with an invocation that a debugger may have stopped, when the server stops.

    Args:
        dispatcher: the functions.
        grace_s: how long the server waits for invocations, seconds.
    """
    busy = {name for name, counts, _ in dispatcher.load() if counts["busy"]}
    names = {version.function.name for version in dispatcher.versions() if version.debugged}
    for name in sorted(names & busy):
        yield (
            f"{name} runs an invocation, which a debugger may have stopped; thawd waits up to {grace_s:g} s for it. "
            "Ctrl-C again ends it"
        )
