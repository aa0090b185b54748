"""A spare: a thawed copy that waits until the platform needs another environment, and then becomes that environment.

Most of a start's time passes while Python wakes up in the copy. In a spare that has happened. But a spare has not yet
renewed the state that must differ between copies, for example random numbers. So while it waits, nothing of the
function may run: no other Python thread, and no signal handler.
"""

import os
import signal
import sys

from thawd.runtime.channel import Channel
from thawd.wire import frames


def park(channel: Channel) -> "set[int]":
    """Wait until the platform sends GO_ON. Ends the process if the platform closes the channel instead.

    Returns:
        The signals that were blocked before. All signals are blocked until `resume`.
    """
    refused = "Python threads of the function would run while it waits" if len(sys._current_frames()) > 1 else None
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    channel.send(frames.STAGE, {"stage": frames.PARKED, "refused": refused})
    frame = None if refused else channel.receive()
    if frame is None or frame.kind != frames.GO_ON:
        os._exit(0)
    return {int(number) for number in blocked}


def resume(blocked: "set[int]") -> None:
    """Block only the signals `blocked` again, which `park` returned."""
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
