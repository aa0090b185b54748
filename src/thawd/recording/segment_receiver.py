"""Receives the segments that X-Ray's SDKs in functions send by UDP, as AWS's X-Ray daemon does.

A thread of its own reads them, at a limited rate: what arrives faster stays in the kernel's buffer, and the kernel
drops what does not fit there. So a function that floods the port takes a bounded share of a processor.

Source: AWS X-Ray developer guide, "Sending segment documents to the X-Ray daemon".
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from thawd.errors import NoThreadError
from thawd.recording.segment_joining import SegmentJoiner
from thawd.system import threads
from thawd.system.retry import SayOnce

HOST = "127.0.0.1"
_LARGEST_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 20
_DATAGRAMS_PER_S = 2000.0
_BYTES_PER_S = float(1 << 20)
# What may come at once.
_MOST_DATAGRAMS = 2000.0
_MOST_BYTES = float(4 << 20)
_LAST_S = 0.2


class _Allowance:
    """How much may be read now.

    Args:
        per_s: how fast it grows.
        most: how large it becomes.
    """

    def __init__(self, per_s: float, most: float) -> None:
        self._per_s = per_s
        self._left = self._most = most
        self._at_s = time.monotonic()

    def take(self, amount: float) -> float:
        """Take an amount; returns how long to wait before the next is taken, seconds."""
        now_s = time.monotonic()
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._per_s) - amount
        self._at_s = now_s
        return max(0.0, -self._left / self._per_s)


class SegmentReceiver:
    """Receives segments on a port of the loopback interface.

    Args:
        port: the port; 0: any.
        joiner: makes spans of the segments.
        report: takes a line for the operator.

    Attributes:
        address: where it listens, such as ``127.0.0.1:9000``.

    Raises:
        OSError: the port cannot be used.
        NoThreadError: the operating system refused to start a thread.
    """

    def __init__(self, port: int, joiner: SegmentJoiner, *, report: Callable[[str], object]) -> None:
        self._joiner = joiner
        self._reports = SayOnce(report)
        self._stop = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            self._socket.bind((HOST, port))
            self._address = self._socket.getsockname()
            self.address = f"{HOST}:{self._address[1]}"
            self._thread = threading.Thread(target=self._run, name="segments", daemon=True)
            threads.start(self._thread)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Take what has arrived, within a fraction of a second, and end. Blocks."""
        self._stop.set()
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waking:
            waking.sendto(b"", self._address)
        self._thread.join(_LAST_S + 1.0)
        self._socket.close()

    def _run(self) -> None:
        count = _Allowance(_DATAGRAMS_PER_S, _MOST_DATAGRAMS)
        size = _Allowance(_BYTES_PER_S, _MOST_BYTES)
        deadline_s: float | None = None
        while True:
            if deadline_s is None and self._stop.is_set():
                deadline_s = time.monotonic() + _LAST_S
                self._socket.setblocking(False)
            try:
                datagram = self._socket.recv(_LARGEST_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._reports.say(f"thawd: segments of X-Ray are no longer received: {error}", topic="socket")
                return
            self._take(datagram)
            wait_s = max(count.take(1), size.take(len(datagram)))
            if deadline_s is not None and time.monotonic() + wait_s >= deadline_s:
                return
            if wait_s:
                self._reports.say(
                    "thawd: functions send segments of X-Ray faster than thawd takes them; some are dropped",
                    topic="rate",
                )
                self._stop.wait(wait_s)

    def _take(self, datagram: bytes) -> None:
        try:
            self._joiner.take(datagram, time.time())
        except Exception as error:  # a bug in thawd that one datagram triggers must not end the thread
            self._reports.say(f"thawd: taking a segment failed inside thawd: {type(error).__name__}", topic="bug")


def opened(port: int, joiner: SegmentJoiner, *, report: Callable[[str], object]) -> SegmentReceiver | None:
    """Receive segments on a port, or on another one if that port cannot be used.

    Args:
        port: the port; 0: any.
        joiner: makes spans of the segments.
        report: takes a line for the operator.

    Returns:
        The receiver; None, after a report: no segments can be received.
    """
    try:
        try:
            return SegmentReceiver(port, joiner, report=report)
        except OSError as error:
            receiver = SegmentReceiver(0, joiner, report=report)
            report(
                f"thawd: segments of X-Ray are received on {receiver.address}, because UDP port {port} cannot be used "
                f"({error}). Snapshots contain this address, so they are made again after each change of it"
            )
            return receiver
    except (OSError, NoThreadError) as error:
        report(f"thawd: segments of X-Ray are not received: {error}")
        return None
