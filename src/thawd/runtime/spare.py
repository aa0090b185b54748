"""A spare: a thawed copy that waits until the platform needs another environment, and then becomes that environment.

A spare has done most of the work of a start: the platform has started its process and thawed it, and the kernel has
mapped the pages that Python needs first. But a spare has not yet renewed the state that must differ between copies, for
example random numbers. So while a spare waits, none of the function's code may run: no other Python thread, and no
signal handler.
"""

import os
import signal
import sys

from thawd.runtime.channel import Channel
from thawd.wire import frames


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
    if frame is None or frame.kind != frames.GO_ON:
        os._exit(0)
    return {int(number) for number in blocked}


def resume(blocked: "set[int]") -> None:
    """Block only the signals in `blocked`, the result of `park`; all other signals are delivered again."""
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
