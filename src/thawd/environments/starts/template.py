"""The platform's end of the channels to a template, and to a process that is to be frozen.

A version's template is the process that runs init once, can be frozen, and forks environments. A thawed copy of that
process can be a template too, but is never frozen again.
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

from thawd.environments.channels import Channels, FrameProtocol, attach
from thawd.environments.child_processes import Child, Children
from thawd.environments.init_phase import InitError, ReadyHead, describe_exit, init_ends
from thawd.environments.output import OutputPipe
from thawd.environments.sandbox.memory import MemoryLimit
from thawd.environments.starts.launcher import Start
from thawd.environments.store_call_channel import CallChannel, ServiceHandler
from thawd.environments.version import Version
from thawd.invocation import new_request_id
from thawd.snapshot.disk.temporary_folders import DiskSnapshot, PreparedFolder
from thawd.snapshot.engine import LIBRARY_NAME, native_folder
from thawd.telemetry.logs.writer import LogStream
from thawd.wire import frames

_encode = msgspec.json.Encoder().encode
# A fork takes about 90 ms for each GB of the template's memory. If it takes longer than this, the template has hung.
_FORK_S = 3.0
# Before-snapshot hooks get the function's timeout, but at least this long. Source: Lambda developer guide, "SnapStart",
# which gives this time to init and the hooks together.
_HOOKS_S = 130.0
# Time limit for writing the image: enough for a large function and a slow disk.
_FREEZE_S = 600.0
# How long the process may take to continue after a freeze that was refused: enough to handle one frame.
_GO_ON_S = 3.0
# Before the freeze, the priming event is sent this many times, and the answers are compared.
_PRIMINGS = 2

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class FrozenHead(msgspec.Struct):
    """The head of a FROZEN frame. It is checked, because user code can write to the process's end of the channel.

    Attributes:
        refused: why there is no image, and what to do; None when there is an image.
        fork_refused: why forks of the process would not work; None when they would.
        answers_differ: whether the process gave two different answers to the priming event.
        init_ms: how long init took.
        dropped: descriptions of the network connections that init left open; in each copy they have ended.
        park_ms: time until all threads were stopped.
        scan_ms: time to find the pages to store.
        write_ms: time to write the image.
        sync_ms: time to sync the image to the disk.
        image_bytes: size of the image, holes included.
        data_bytes: size of the memory pages in the image.
        threads: number of threads in the image.
        operations: number of mappings that a thaw makes.
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
        """Duration of the whole freeze, milliseconds."""
        return self.park_ms + self.scan_ms + self.write_ms + self.sync_ms


class FreezeFailedError(Exception):
    """The process ended or took too long during a freeze; the message names the stage."""


class ForkRefusedError(Exception):
    """This version cannot be forked; the message says why, and what to do."""


class TemplateLostError(Exception):
    """The template cannot complete a fork: it ended, hung and was killed, or the fork's temporary folder is refused."""


class Template:
    """A version's template, or a process that is to be frozen.

    Attributes:
        identifier: 32 hexadecimal digits, unique.
        restored: whether the before-snapshot hooks have run in it, so that the after-restore hooks run in its forks.
        usable_s: when its init, or the init of the process that it is a copy of, had ended, ``time.monotonic()``
            seconds; 0: before this server started, or not yet.
        folder: its temporary folder; None if it does not have its own.
        disk: the first content of its forks' temporary folders; None: they are empty.
        disk_refused: why its forks cannot get the content of its temporary folder; None when they can.
        ended: set when it can no longer fork.
        ready: a future; done when init has run, or failed with InitError.
        child: its process, None until `adopt`.
    """

    def __init__(
        self, version: Version, *, identifier: str, stream: LogStream, channels: Channels, children: Children
    ) -> None:
        self.version = version
        self.identifier = identifier
        self.restored = False
        self.usable_s = 0.0
        self.folder: PreparedFolder | None = None
        self.disk: DiskSnapshot | None = None
        self.disk_refused: str | None = None
        self.ended = asyncio.Event()
        self.child: Child | None = None
        self._children = children
        self._stream = stream
        self._channels = channels
        self._output = OutputPipe(channels.output, stream)
        self.ready: asyncio.Future[ReadyHead] = asyncio.get_running_loop().create_future()
        self._frozen: asyncio.Future[tuple[FrozenHead, bytes]] | None = None
        self._answered: asyncio.Future[bytes | None] | None = None
        self._gone_on: asyncio.Future[None] | None = None
        self._stage = ""
        self._stage_ends_s = 0.0
        self._forks: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count(1)
        # Passing descriptors needs sendmsg, which asyncio's transport does not offer. So `_sender` is a second
        # descriptor of the same socket.
        self._sender = socket.socket(fileno=os.dup(channels.control.fileno()))
        self._sender.setblocking(False)
        self._control = FrameProtocol(self._on_frame, self._on_control_lost)
        self._calls: CallChannel | None = None
        self._to_send: list[tuple[bytes, Channels]] = []

    async def connect(self, services: ServiceHandler) -> None:
        """Attach to the channels; `services` answers the calls that init makes."""
        self._output.open()
        try:
            await attach(self._control, self._channels.control)
        except BaseException:
            self._channels.services.close()
            raise
        self._calls = CallChannel(services, on_invalid=self.kill)
        await self._calls.open(self._channels.services)

    def drain(self) -> None:
        """Copy to the log what the process has written so far."""
        self._output.drain()

    def adopt(self, child: Child) -> None:
        """Take `child` as the template's process, and follow it."""
        self.child = child
        child.ended.add_done_callback(lambda _: self._on_exit())

    def check_forkable(self) -> None:
        """Check that forks of the process will work. Call it when the template is `ready`.

        Raises:
            ForkRefusedError: init succeeded, but forks of the process would not work.
        """
        refused = self.ready.result().fork_refused or self.disk_refused
        if refused is not None:
            raise ForkRefusedError(refused)

    @property
    def init_ms(self) -> float:
        """How long the function's init took, milliseconds."""
        return self.ready.result().init_ms

    async def freeze(self, image: Path, *, library: Path) -> tuple[FrozenHead, bytes]:
        """Make the process run the before-snapshot hooks and the priming event, and freeze itself to a new file.

        Args:
            image: path of the new file.
            library: path of libthawd_freeze.so.

        Returns:
            The head of the FROZEN frame, and the handler's answer to the priming event as JSON text. The answer is
            empty if the function has no priming event.

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
            timed_out=lambda: FreezeFailedError(f"the freeze took too long: {self._stage}"),
        )
        self._output.drain()
        return self._frozen.result()

    async def ask(self, *, limit_s: float) -> bytes | None:
        """Send the priming event once more to the process that was frozen, not to a copy of it.

        Args:
            limit_s: how long the answer may take, seconds.

        Returns:
            The answer; None when the handler failed or took too long.
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
        """Make the process a template that forks, after a freeze that was refused.

        Raises:
            FreezeFailedError: the process ended or took too long.
        """
        self._gone_on = asyncio.get_running_loop().create_future()
        self._control.send(frames.GO_ON, b"{}")
        try:
            async with asyncio.timeout(_GO_ON_S):
                await self._gone_on
        except TimeoutError:
            raise FreezeFailedError(f"the process did not continue within {_GO_ON_S:.0f} s after the freeze") from None

    def _enter(self, stage: str) -> None:
        """The process has begun a stage of its freeze: set the stage's own time limit."""
        timeout_s = self.version.function.timeout_s
        limits_s = {"hooks": max(timeout_s, _HOOKS_S), "priming": _PRIMINGS * timeout_s, "freezing": _FREEZE_S}
        self._stage = f"stage {stage}, which may take {limits_s[stage]:.0f} s"
        self._stage_ends_s = time.monotonic() + limits_s[stage]

    async def fork(self, start: Start, *, drops: bool) -> int:
        """Fork one environment.

        Args:
            start: identity, channels and temporary folder of the environment.
            drops: whether the environment drops its capabilities.

        Returns:
            The process id of the environment.

        Raises:
            TemplateLostError: the template died, or hung and was killed.
            OSError: the fork itself failed, because no memory or process was left.
        """
        if self.ended.is_set():
            raise TemplateLostError("the template has ended")
        number = next(self._numbers)
        forked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forks[number] = forked
        channels = start.channels
        bare = _library() if drops else None
        head = _encode({"n": number, "environ": start.variables, "disk": _mount(start.folder), "bare": bare})
        frame = frames.HEADER.pack(len(head), 0, frames.FORK) + head
        patience_s = min(_FORK_S, self.version.function.init_timeout_s)
        self._to_send.append((frame, channels))
        self._send()
        try:
            async with asyncio.timeout(patience_s):
                return await forked
        except TimeoutError:
            self.kill()
            raise TemplateLostError(f"the template did not fork within {patience_s:.0f} s") from None
        finally:
            self._forks.pop(number, None)
            self._to_send = [waiting for waiting in self._to_send if waiting[1] is not channels]

    def kill(self) -> None:
        """End the template; environments that were forked from it keep running."""
        if self.child is not None:
            self.child.kill()

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while self._to_send:
            frame, channels = self._to_send[0]
            try:
                socket.send_fds(self._sender, [frame], channels.process_ends)
            except BlockingIOError:
                loop.add_writer(self._sender.fileno(), self._send_again)
                return
            except OSError:
                # The template is dead, or it has left too many descriptors unread. It cannot be used any more.
                self.kill()
                return
            del self._to_send[0]
            channels.close_process_ends()

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
            self._children.report_exit(int(head["pid"]), None if status is None else int(status))
        elif kind == frames.READY and not self.ready.done():
            self.ready.set_result(msgspec.convert(head, ReadyHead))
        elif kind == frames.INIT_ERROR and not self.ready.done():
            self.ready.set_exception(InitError.reported(head["message"], body))
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
            frozen.set_exception(InitError.reported(head["message"], body))
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
            self._frozen.exception()  # marks it as retrieved: asyncio logs an exception that nobody retrieves
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
        if self._gone_on is not None and not self._gone_on.done():
            ended = FreezeFailedError(f"the process ended after the freeze: {describe_exit(status)}")
            self._gone_on.set_exception(ended)
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
        os.close(self._channels.lifeline)


def _mount(folder: PreparedFolder | None) -> dict[str, str | None] | None:
    """Return the mounts that a fork makes before it uses its temporary folder; None: it makes none.

    See `snapshot.engine.enter_disk`.
    """
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
