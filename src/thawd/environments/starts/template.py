"""The platform's side of a version's template: the process that ran init once, is frozen and forks environments.

A thawed copy of it may be a template too; that one is not frozen again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec

from thawd.environments.calls import CallChannel, ServiceHandler
from thawd.environments.children import Child, Children
from thawd.environments.ends import Ends, FrameProtocol
from thawd.environments.init_phase import InitError, ReadyHead, describe_exit, init_ends
from thawd.environments.output import OutputPipe
from thawd.environments.sandbox.memory import MemoryLimit
from thawd.environments.starts.launcher import Start
from thawd.environments.version import Version
from thawd.invocation import new_request_id
from thawd.snapshot.disk.folders import DiskSnapshot, PreparedFolder
from thawd.snapshot.engine import LIBRARY_NAME, native_folder
from thawd.telemetry.logs.writer import LogStream
from thawd.wire import frames

_encode = msgspec.json.Encoder().encode
# A fork takes some 90 ms for each GB of the template; one that takes longer than this does not come.
_FORK_S = 3.0
# Source: Lambda developer guide, "SnapStart": init with its before-snapshot hooks gets the function's timeout or 130 s.
_HOOKS_S = 130.0
# To write the image of a large function to a slow disk.
_FREEZE_S = 600.0
# To look at one frame.
_GO_ON_S = 3.0
# The answers of the priming event are compared with each other.
_PRIMINGS = 2

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class FrozenHead(msgspec.Struct):
    """The head of a FROZEN, checked.

    Attributes:
        refused: why there is no image, and the way out; None when there is one.
        fork_refused: why forks of it would not work; None when they would.
        answers_differ: whether the answers of the priming event differ from each other.
        init_ms: how long init took.
        dropped: connections that a copy finds ended.
        park_ms: until all its threads stood still.
        scan_ms: what finding the pages to store took.
        write_ms: what writing the image took.
        sync_ms: what bringing it to the disk took.
        image_bytes: size of the image, holes included.
        data_bytes: memory pages in it.
        threads: threads in it.
        operations: mappings to be made at a thaw.
    """

    refused: str | None
    fork_refused: str | None
    answers_differ: bool
    init_ms: _Milliseconds
    dropped: list[str] = []
    park_ms: _Milliseconds = 0.0
    scan_ms: _Milliseconds = 0.0
    write_ms: _Milliseconds = 0.0
    sync_ms: _Milliseconds = 0.0
    image_bytes: _Count = 0
    data_bytes: _Count = 0
    threads: _Count = 0
    operations: _Count = 0

    @property
    def freeze_ms(self) -> float:
        """The whole freeze, milliseconds."""
        return self.park_ms + self.scan_ms + self.write_ms + self.sync_ms


class FreezeFailedError(Exception):
    """The process ended, or took too long, while it was to be frozen; the message says at what."""


class ForkRefusedError(Exception):
    """This version cannot be forked; the message says why, and the way out."""


class TemplateLostError(Exception):
    """The template ended before it had forked what it was asked to."""


class Template:
    """A version's template.

    Attributes:
        identifier: 32 hexadecimal digits, unique.
        restored: whether the before-snapshot hooks have run in it, so that what it forks is restored by the others.
        ended: set when it can no longer fork.
        ready: its word that init has run; fails with InitError.
        child: its process, None until `adopt`.
    """

    def __init__(self, version: Version, *, identifier: str, stream: LogStream, ends: Ends, children: Children) -> None:
        self.version = version
        self.identifier = identifier
        self.restored = False
        self.folder: PreparedFolder | None = None
        self.disk: DiskSnapshot | None = None
        self.disk_refused: str | None = None
        self.ended = asyncio.Event()
        self.child: Child | None = None
        self._children = children
        self._stream = stream
        self._ends = ends
        self._output = OutputPipe(ends.output, stream)
        self.ready: asyncio.Future[ReadyHead] = asyncio.get_running_loop().create_future()
        self._frozen: asyncio.Future[tuple[FrozenHead, bytes]] | None = None
        self._answered: asyncio.Future[bytes | None] | None = None
        self._gone_on: asyncio.Future[None] | None = None
        self._stage = ""
        self._stage_ends_s = 0.0
        self._forks: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count(1)
        # Descriptors travel by sendmsg, which asyncio's transport does not offer: same socket, second descriptor.
        self._sender = socket.socket(fileno=os.dup(ends.control.fileno()))
        self._sender.setblocking(False)
        self._control = FrameProtocol(self._on_frame, self._on_control_lost)
        self._calls: CallChannel | None = None
        self._to_send: list[tuple[bytes, Ends]] = []

    async def connect(self, services: ServiceHandler) -> None:
        """Attach to the channels, and serve what init calls by `services`."""
        loop = asyncio.get_running_loop()
        self._output.open()
        await loop.create_unix_connection(lambda: self._control, sock=self._ends.control)
        self._calls = CallChannel(services, on_nonsense=self.kill)
        await self._calls.open(self._ends.services)

    def drain(self) -> None:
        """Take what it has written so far."""
        self._output.drain()

    def adopt(self, child: Child) -> None:
        """The process is `child`."""
        self.child = child
        child.ended.add_done_callback(lambda _: self._on_exit())

    def check_forkable(self) -> None:
        """Once `ready`: whether copies of it work.

        Raises:
            ForkRefusedError: init succeeded, but a copy of the process would not work.
        """
        refused = self.ready.result().fork_refused or self.disk_refused
        if refused is not None:
            raise ForkRefusedError(refused)

    @property
    def init_ms(self) -> float:
        """How long the function's init took in it, milliseconds."""
        return self.ready.result().init_ms

    async def freeze(self, image: Path, *, library: Path) -> tuple[FrozenHead, bytes]:
        """Have the process run the before-snapshot hooks and the priming event, and freeze itself into a new file.

        Args:
            image: the file.
            library: libthawd_freeze.so.

        Returns:
            What came of it, and the priming event's answer, JSON text; empty when there is no such event.

        Raises:
            FreezeFailedError: the process ended or took too long.
            InitError: a before-snapshot hook failed.
        """
        assert self.child is not None
        function = self.version.function
        primings = 0 if function.prime is None else _PRIMINGS
        head = {
            "path": str(image),
            "library": str(library),
            "disk": None if self.folder is None else str(self.folder.path),
            "ids": [new_request_id() for _ in range(primings)],
            "arn": function.arn,
            "left_ms": function.timeout_s * 1000,
            "connections": function.snapshot_connections,
            "listeners": function.snapshot_listeners,
        }
        self.restored = True
        self._frozen = asyncio.get_running_loop().create_future()
        self._enter("hooks")
        self._control.send(frames.FREEZE, _encode(head), function.prime or b"")
        await init_ends(
            self._frozen,
            child=self.child,
            limit=MemoryLimit(self.child.pid, limit_mib=function.memory_mb),
            until_s=lambda: self._stage_ends_s,
            timed_out=lambda: FreezeFailedError(f"it took too long: {self._stage}"),
        )
        self._output.drain()
        return self._frozen.result()

    async def ask(self, *, limit_s: float) -> bytes | None:
        """Have the process that was frozen answer the priming event once more; None when it fails or takes too long.

        Args:
            limit_s: how long that may take, seconds.
        """
        function = self.version.function
        assert function.prime is not None
        self._answered = asyncio.get_running_loop().create_future()
        head = {"id": new_request_id(), "arn": function.arn, "left_ms": limit_s * 1000}
        self._control.send(frames.INVOKE, _encode(head), function.prime)
        try:
            async with asyncio.timeout(limit_s):
                return await self._answered
        except TimeoutError:
            self.kill()
            return None

    async def go_on(self) -> None:
        """Have the process that was frozen, or should have been, fork from now on.

        Raises:
            FreezeFailedError: it ended, or took too long.
        """
        self._gone_on = asyncio.get_running_loop().create_future()
        self._control.send(frames.GO_ON, b"{}")
        try:
            async with asyncio.timeout(_GO_ON_S):
                await self._gone_on
        except TimeoutError:
            raise FreezeFailedError(f"the process did not go on within {_GO_ON_S:.0f} s after it") from None

    def _enter(self, stage: str) -> None:
        """The process has begun a stage on its way to an image; each has a time limit of its own."""
        timeout_s = self.version.function.timeout_s
        limits_s = {"hooks": max(timeout_s, _HOOKS_S), "priming": _PRIMINGS * timeout_s, "freezing": _FREEZE_S}
        self._stage = f"{stage}, for which it has {limits_s[stage]:.0f} s"
        self._stage_ends_s = time.monotonic() + limits_s[stage]

    async def fork(self, start: Start, *, drops: bool) -> int:
        """Fork one environment, as `start` says, which gives up its capabilities if it `drops` them; its process id.

        Raises:
            TemplateLostError: the template died, or hangs.
            OSError: the fork itself failed, for want of memory or processes.
        """
        if self.ended.is_set():
            raise TemplateLostError("the template has ended")
        number = next(self._numbers)
        forked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forks[number] = forked
        ends = start.ends
        bare = _library() if drops else None
        head = _encode({"n": number, "environ": start.variables, "disk": _mount(start.folder), "bare": bare})
        frame = frames.HEADER.pack(len(head), 0, frames.FORK) + head
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
        if kind == frames.FORKED:
            forked = self._forks.pop(head["n"], None)
            if forked is not None and not forked.done():
                if "error" in head:
                    forked.set_exception(OSError(int(head["errno"]), str(head["error"])))
                else:
                    forked.set_result(int(head["pid"]))
        elif kind == frames.EXITED:
            status = head["status"]
            self._children.told(int(head["pid"]), None if status is None else int(status))
        elif kind == frames.READY and not self.ready.done():
            self.ready.set_result(msgspec.convert(head, ReadyHead))
        elif kind == frames.INIT_ERROR and not self.ready.done():
            self.ready.set_exception(InitError(head["message"], body, told=True))
        elif self._frozen is not None and not self._frozen.done():
            self._on_freezing(self._frozen, kind, head, body)
        elif kind == frames.RESULT and self._answered is not None and not self._answered.done():
            self._answered.set_result(None if head["failed"] else body)
        elif kind == frames.STAGE and self._gone_on is not None and not self._gone_on.done():
            self._gone_on.set_result(None)
        else:
            self.kill()

    def _on_freezing(self, frozen: asyncio.Future[tuple[FrozenHead, bytes]], kind: int, head: Any, body: bytes) -> None:
        if kind == frames.STAGE:
            self._enter(head["stage"])
        elif kind == frames.FROZEN:
            frozen.set_result((msgspec.convert(head, FrozenHead), body))
        elif kind == frames.INIT_ERROR:
            frozen.set_exception(InitError(head["message"], body, told=True))
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
        if self._frozen is not None and not self._frozen.done():
            self._frozen.set_exception(FreezeFailedError(f"the process ended ({self._stage}): {describe_exit(status)}"))
            self._frozen.exception()  # nobody may be waiting any more
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
        if self._gone_on is not None and not self._gone_on.done():
            self._gone_on.set_exception(FreezeFailedError(f"the process ended after it: {describe_exit(status)}"))
            self._gone_on.exception()
        for forked in self._forks.values():
            if not forked.done():
                forked.set_exception(TemplateLostError(f"the template ended: {describe_exit(status)}"))
        self._forks.clear()
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._sender.fileno())
        self._sender.close()
        self._control.close()
        if self._calls is not None:
            self._calls.close()
        os.close(self._ends.lifeline)


def _mount(folder: PreparedFolder | None) -> dict[str, str | None] | None:
    """What a fork must mount before it looks at its temporary folder; None: nothing. See `engine.enter_disk`."""
    if folder is None or folder.at is None:
        return None
    return {
        "at": str(folder.at),
        "tmp": None if folder.tmp is None else str(folder.tmp),
        "own": str(folder.own),
        "lower": None if folder.lower is None else str(folder.lower),
        "library": _library(),
    }


def _library() -> str:
    return str(Path(native_folder() or "") / LIBRARY_NAME)
