"""A spare: a thawed copy that waits until the platform needs another environment, and then becomes that environment.

A spare has done most of the work of a start: the platform has started its process and thawed it, and the kernel has
mapped the pages that Python needs first. But a spare has not yet renewed the state that must differ between copies, for
example random numbers. So while a spare waits, none of the function's code may run: no other Python thread, and no
signal handler.
"""

import os
import signal
import struct
import sys
from typing import Any

from thawd.runtime.channel import Channel
from thawd.wire import frames

# They change no contents. Source: madvise(2), since Linux 5.14; an older kernel refuses them, and nothing is touched.
_POPULATE_READ, _POPULATE_WRITE = 22, 23
# A request waits for one piece at most. If the image is not in the page cache, the disk has to read the piece.
_PIECE_BYTES = 4 << 20
_RANGE = struct.Struct("<QQ")  # start and end of a range of pages


def park(channel: Channel) -> "set[int]":
    """Wait until the platform sends GO_ON.

    Ends the process if it has other Python threads, or if the platform closes the channel.

    Returns:
        The signals that were blocked before. All signals are blocked until `resume`.
    """
    has_threads = len(sys._current_frames()) > 1
    refused = "Python threads of the function would run while the spare waits" if has_threads else None
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    channel.send(frames.STAGE, {"stage": frames.PARKED, "refused": refused})
    frame = None if refused else channel.receive()
    while frame is not None and frame.kind == frames.TOUCH:
        touch(frame, channel)
        frame = channel.receive()
    if frame is None or frame.kind != frames.GO_ON:
        os._exit(0)
    return {int(number) for number in blocked}


def touch(frame: frames.Frame, channel: Channel) -> None:
    """Take the page faults of the memory that a TOUCH frame lists, until the next frame arrives.

    The contents of the memory do not change. Memory that this process does not have is left out.
    """
    written = frame.head["written"]
    for ranges, advice in ((frame.body[:written], _POPULATE_WRITE), (frame.body[written:], _POPULATE_READ)):
        for start, end in _RANGE.iter_unpack(ranges):
            for piece in range(start, end, _PIECE_BYTES):
                if channel.has_arrived():
                    return
                _advise(piece, min(_PIECE_BYTES, end - piece), advice)


def _advise(start: int, count: int, advice: int) -> None:
    ctypes: Any = sys.modules["ctypes"]  # the snapshot engine has loaded it
    ctypes.PyDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(count), advice)


def resume(blocked: "set[int]") -> None:
    """Block only the signals in `blocked`, the result of `park`; all other signals are delivered again."""
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
