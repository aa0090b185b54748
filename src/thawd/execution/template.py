"""The platform's side of a version's template: the process that ran init once and forks environments from there."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from typing import Any

import msgspec

from thawd import wire
from thawd.execution.children import Child, Children
from thawd.execution.ends import Ends, FrameProtocol
from thawd.execution.environment import InitError, describe_exit
from thawd.execution.output import OutputPipe
from thawd.execution.version import Version
from thawd.telemetry.logs import LogStream

_encode = msgspec.json.Encoder().encode
# A fork takes some 90 ms for each GB of the template; one that takes longer than this does not come.
_FORK_S = 3.0


class ForkRefusedError(Exception):
    """This version cannot be forked; the message says why, and the way out."""


class TemplateLostError(Exception):
    """The template ended before it had forked what it was asked to."""


class Template:
    """A version's template.

    Attributes:
        identifier: 32 hexadecimal digits, unique.
        init_ms: how long the function's init took in it, milliseconds.
        ended: set when it can no longer fork.
        ready: its word that init has run; fails with InitError.
        child: its process, None until `adopt`.
    """

    def __init__(self, version: Version, *, identifier: str, stream: LogStream, ends: Ends, children: Children) -> None:
        self.version = version
        self.identifier = identifier
        self.init_ms = 0.0
        self.ended = asyncio.Event()
        self.child: Child | None = None
        self._children = children
        self._stream = stream
        self._ends = ends
        self._output = OutputPipe(ends.output, stream)
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._forks: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count(1)
        # Descriptors travel by sendmsg, which asyncio's transport does not offer: same socket, second descriptor.
        self._sender = socket.socket(fileno=os.dup(ends.control.fileno()))
        self._sender.setblocking(False)
        self._control = FrameProtocol(self._on_frame, self._on_control_lost)
        self._to_send: list[tuple[bytes, Ends]] = []

    async def connect(self) -> None:
        """Attach to the channels."""
        loop = asyncio.get_running_loop()
        self._output.open()
        await loop.create_unix_connection(lambda: self._control, sock=self._ends.control)

    def adopt(self, child: Child) -> None:
        """The process is `child`."""
        self.child = child
        child.ended.add_done_callback(lambda _: self._on_exit())

    def check_forkable(self) -> None:
        """Once `ready`: whether copies of it work.

        Raises:
            ForkRefusedError: init succeeded, but a copy of the process would not work.
        """
        head = self.ready.result()
        self.init_ms = head["init_ms"]
        if head["fork_refused"] is not None:
            raise ForkRefusedError(head["fork_refused"])

    async def fork(self, ends: Ends, variables: dict[str, str]) -> int:
        """Fork one environment that gets `ends` and `variables`; its process id.

        Raises:
            TemplateLostError: the template died, or hangs.
            OSError: the fork itself failed, for want of memory or processes.
        """
        if self.ended.is_set():
            raise TemplateLostError("the template has ended")
        number = next(self._numbers)
        forked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forks[number] = forked
        head = _encode({"n": number, "environ": variables})
        frame = wire.HEADER.pack(len(head), 0, wire.FORK) + head
        patience_s = min(_FORK_S, self.version.function.init_timeout_s)
        self._to_send.append((frame, ends))
        self._send()
        try:
            async with asyncio.timeout(patience_s):
                return await forked
        except TimeoutError:
            self.kill()
            raise TemplateLostError(f"the template did not fork within {patience_s:.0f} s") from None
        finally:
            self._forks.pop(number, None)
            self._to_send = [waiting for waiting in self._to_send if waiting[1] is not ends]

    def kill(self) -> None:
        """End the template; environments forked from it live on."""
        if self.child is not None:
            self.child.kill()

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while self._to_send:
            frame, ends = self._to_send[0]
            try:
                socket.send_fds(self._sender, [frame], ends.theirs)
            except BlockingIOError:
                loop.add_writer(self._sender.fileno(), self._send_again)
                return
            except OSError:
                # Dead, or too many descriptors under way: in either case this template forks no more.
                self.kill()
                return
            del self._to_send[0]
            ends.close_theirs()

    def _send_again(self) -> None:
        asyncio.get_running_loop().remove_writer(self._sender.fileno())
        self._send()

    def _on_frame(self, kind: int, head: Any, body: bytes) -> None:
        if kind == wire.FORKED:
            forked = self._forks.pop(head["n"], None)
            if forked is not None and not forked.done():
                if "error" in head:
                    forked.set_exception(OSError(head["error"]))
                else:
                    forked.set_result(int(head["pid"]))
        elif kind == wire.EXITED:
            status = head["status"]
            self._children.told(int(head["pid"]), None if status is None else int(status))
        elif kind == wire.READY and not self.ready.done():
            self.ready.set_result(head)
        elif kind == wire.INIT_ERROR and not self.ready.done():
            self.ready.set_exception(InitError(head["message"], body))
        else:
            self.kill()

    def _on_control_lost(self) -> None:
        if self.child is not None and self.child.ended.done():
            self._on_gone()
        elif self.child is not None:
            self.child.make_sure()

    def _on_exit(self) -> None:
        asyncio.get_running_loop().call_later(0.1, self._on_gone)

    def _on_gone(self) -> None:
        if self.ended.is_set():
            return
        self._output.close()
        self.ended.set()
        status = self.child.ended.result() if self.child is not None else None
        if not self.ready.done():
            self.ready.set_exception(InitError.of_exit(self.child))
            self.ready.exception()
        for forked in self._forks.values():
            if not forked.done():
                forked.set_exception(TemplateLostError(f"the template ended: {describe_exit(status)}"))
        self._forks.clear()
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._sender.fileno())
        self._sender.close()
        self._control.close()
        self._ends.services.close()
        os.close(self._ends.lifeline)
