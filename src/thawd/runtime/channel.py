"""Sends and receives frames over one end of a socketpair, blocking.

It calls `os.read` and `os.write` on the descriptor, because importing the module `socket` would add 4 ms to each start.
"""

import os
from typing import Any, Optional

from thawd.wire import frames


class Channel:
    """This process's end of a socketpair to the platform.

    Attributes:
        fd: the descriptor; -1 when closed.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._decoder = frames.Decoder()
        os.set_inheritable(fd, False)

    def receive(self) -> Optional[frames.Frame]:
        """Wait for the next frame; None when the platform has closed its end."""
        while True:
            frame = self._decoder.take()
            if frame is not None:
                return frame
            try:
                data = os.read(self.fd, 1 << 18)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._decoder.feed(data)

    def send(self, kind: int, head: Any, body: bytes = b"") -> None:
        """Send one whole frame.

        Raises:
            BrokenPipeError: the platform has closed its end.
        """
        data = memoryview(frames.encode(kind, head, body))
        while data:
            data = data[os.write(self.fd, data) :]

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
