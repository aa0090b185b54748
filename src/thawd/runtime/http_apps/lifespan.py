"""ASGI's lifespan protocol: runs an application's startup before the freeze, and its shutdown when the process ends.

Source: asgi.readthedocs.io, "Lifespan Protocol". An application that does not support it raises an exception.
"""

import asyncio
import traceback
from typing import Any, Dict, Optional

from thawd.runtime import coroutines
from thawd.runtime.faults import Fault, write_log

SHUTDOWN_LIMIT_S = 1.5


class Lifespan:
    """The lifespan of one application in this process.

    Attributes:
        state: what the application keeps in ``scope["state"]``; requests get a copy.
        is_open: whether the application has started and wants to be told when the process ends.
    """

    def __init__(self, application: Any) -> None:
        self.state: Dict[str, Any] = {}
        self.is_open = False
        self._application = application
        self._task: Any = None
        self._started: Any = None
        self._stopped: Any = None
        self._messages: Any = None
        self._was_asked = False  # whether the application has taken the message of its startup

    def start(self) -> None:
        """Run the application's startup, on the event loop on which it will answer requests.

        Raises:
            Fault: the startup has failed.
        """
        coroutines.finish(self._start())

    def stop(self) -> None:
        """Run the application's shutdown, for `SHUTDOWN_LIMIT_S` seconds at most. Errors go to the log."""
        if self.is_open:
            self.is_open = False
            coroutines.finish(self._stop())

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._started, self._stopped = loop.create_future(), loop.create_future()
        self._messages = asyncio.Queue()
        self._messages.put_nowait({"type": "lifespan.startup"})
        self._task = loop.create_task(self._run())
        await asyncio.wait({self._task, self._started}, return_when=asyncio.FIRST_COMPLETED)
        if self._started.done():
            failure: Optional[str] = self._started.result()
            if failure is not None:
                raise Fault("Runtime.LifespanStartupFailed", "the application's startup has failed: %s" % failure)
            self.is_open = not self._task.done()
        # Otherwise the application does not support the protocol; it serves without, as with other servers.

    async def _run(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
        }
        try:
            await self._application(scope, self._receive, self._send)
        except Exception:
            if self._started.done() and self.is_open:
                write_log("thawd: the application's lifespan has failed:\n%s" % traceback.format_exc())
            elif self._was_asked and not self._started.done():
                # An application without support for the protocol does not get this far.
                write_log(
                    "thawd: the application's startup has failed; it serves without it:\n%s" % traceback.format_exc()
                )
        finally:
            self.is_open = False
            if not self._stopped.done():
                self._stopped.set_result(None)

    async def _receive(self) -> Any:
        message = await self._messages.get()
        self._was_asked = True
        return message

    async def _send(self, message: Dict[str, Any]) -> None:
        kind = message["type"]
        if kind in ("lifespan.startup.complete", "lifespan.startup.failed") and not self._started.done():
            self._started.set_result(None if kind.endswith("complete") else message.get("message") or "no message")
        elif kind in ("lifespan.shutdown.complete", "lifespan.shutdown.failed") and not self._stopped.done():
            if kind.endswith("failed"):
                write_log("thawd: the application's shutdown has failed: %s\n" % message.get("message", ""))
            self._stopped.set_result(None)

    async def _stop(self) -> None:
        self._messages.put_nowait({"type": "lifespan.shutdown"})
        await asyncio.wait({self._stopped}, timeout=SHUTDOWN_LIMIT_S)
        if not self._stopped.done():
            write_log("thawd: the application's shutdown took longer than %.1f s\n" % SHUTDOWN_LIMIT_S)
