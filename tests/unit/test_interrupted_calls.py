"""Calls of handlers to tables and buckets that an exception from a signal's handler interrupts."""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from thawd.runtime import services
from thawd.wire import frames


class _Interrupted(Exception):
    pass


def _interrupt(number: int, frame: object) -> None:
    raise _Interrupted


class _Platform:
    """Answers calls in a thread of its own; `on_call` runs before each answer."""

    def __init__(self, end: socket.socket) -> None:
        self.on_call: Callable[[Any], None] = lambda head: None
        self._end = end
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        decoder = frames.Decoder()
        while data := self._end.recv(1 << 16):
            decoder.feed(data)
            while (frame := decoder.take()) is not None:
                self.on_call(frame.head)
                head = {"found": True, "n": frame.head.get("n")}
                self._end.sendall(frames.encode(frames.REPLY, head, json.dumps({"of": frame.head["key"]}).encode()))


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Platform]:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(services, "_connection", services._Connection())
    services.connect(ours.detach())
    before = signal.signal(signal.SIGUSR1, _interrupt)
    served = _Platform(theirs)
    yield served
    channel = services._connection._channel
    assert channel is not None
    channel.close()
    served.thread.join()
    theirs.close()
    signal.signal(signal.SIGUSR1, before)


def _interrupt_main(head: Any) -> None:
    if head["key"] == "slow":
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def test_reply_to_an_interrupted_call_is_not_taken_for_that_to_the_next_one(platform: _Platform) -> None:
    platform.on_call = _interrupt_main
    table = services.table("rows")
    for _ in range(20):
        with pytest.raises(_Interrupted):
            table.get("slow")
        assert table.get("quick") == {"of": "quick"}


def test_after_an_interruption_in_the_middle_of_a_frame_no_further_call_is_made(platform: _Platform) -> None:
    write = os.write

    def write_a_part(fd: int, data: bytes) -> int:
        write(fd, bytes(data)[:5])
        raise _Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", write_a_part)
        with pytest.raises(_Interrupted):
            services.table("rows").put("key", {"text": "x" * 100_000})
    with pytest.raises(services.ServiceError, match="an earlier call was interrupted"):
        services.table("rows").get("other")
