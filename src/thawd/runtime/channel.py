"""Sends and receives frames over one end of a socketpair, blocking.

It calls `os.read` and `os.write` on the descriptor, because importing the module `socket` would add 4 ms to each start.
"""

import os
import sys
from typing import Any, Iterator, Optional

from thawd.wire import frames

# Bytes to read at a time, as long as it is not known how large a frame is. Buffers of 128 KiB and more would have to be
# mapped and unmapped for each read, which takes longer than the read itself.
_READ_BYTES = 1 << 14
_MOST_READ_BYTES = 1 << 18


class Channel:
    """This process's end of a socketpair to the platform.

    Attributes:
        fd: the descriptor; -1 when closed.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._decoder = frames.Decoder()
        self._poll: Any = None
        os.set_inheritable(fd, False)
        if "select" in sys.modules:
            self.wait_by_poll()

    def wait_by_poll(self) -> None:
        """From now on, wait for frames with poll(2).

        While a process waits in read(2), the kernel wakes the process for nothing when the platform reads the answer
        that the process has sent, because the process could then write again. That costs both sides up to 10 us. After
        a cold start, an environment calls this only after its first answer, because importing the module `select`
        takes 0.2 to 0.6 ms.
        """
        if self._poll is None:
            import select

            self._poll = select.poll()
            self._poll.register(self.fd, select.POLLIN)

    def receive(self) -> Optional[frames.Frame]:
        """Wait for the next frame; None when the platform has closed its end."""
        while True:
            frame = self._decoder.take()
            if frame is not None:
                return frame
            if self._poll is not None:
                self._poll.poll()
            if not self.read():
                return None

    def wait(self) -> None:
        """Wait until bytes have arrived that are not read yet, or the platform has closed its end.

        Call `wait_by_poll` before, once.
        """
        self._poll.poll()

    def has_arrived(self) -> bool:
        """Whether bytes have arrived that are not read yet, or the platform has closed its end.

        Call `wait_by_poll` before, once.
        """
        return bool(self._poll.poll(0))

    def read(self) -> bool:
        """Read what has arrived, or wait for something to arrive; returns False if the platform has closed its end."""
        try:
            data = os.read(self.fd, max(_READ_BYTES, min(_MOST_READ_BYTES, self._decoder.missing_bytes())))
        except ConnectionResetError:
            return False
        self._decoder.feed(data)
        return bool(data)

    def received(self) -> Iterator[frames.Frame]:
        """The frames that have been read whole and not yet returned."""
        while True:
            frame = self._decoder.take()
            if frame is None:
                return
            yield frame

    def send(self, kind: int, head: Any, body: bytes = b"") -> None:
        """Send one whole frame.

        Raises:
            BrokenPipeError: the platform has closed its end.
        """
        data = frames.encode(kind, head, body)
        written = os.write(self.fd, data)
        while written < len(data):
            written += os.write(self.fd, memoryview(data)[written:])

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
