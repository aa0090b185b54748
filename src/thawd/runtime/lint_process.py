"""Searches a function's process for state that a snapshot would break: runs init and the before-snapshot hooks first.

The process reports what it finds and then ends.
"""

import os
import sys
from typing import NoReturn, Sequence

from thawd.runtime import faults, loop, process
from thawd.runtime.channel import Channel
from thawd.runtime.faults import Fault
from thawd.snapshot import hooks
from thawd.snapshot.connections import Openings
from thawd.snapshot.lint import search
from thawd.wire import frames


def run(channel: Channel, *, own_fds: Sequence[int]) -> NoReturn:
    """Send the findings in the READY frame and end the process. A failed init is reported as in any other mode.

    Args:
        channel: channel to the platform.
        own_fds: descriptors that belong to the runtime, not to the function.
    """
    openings = Openings(os.environ["LAMBDA_TASK_ROOT"])
    openings.watch()
    loop.init(channel)
    try:
        hooks.run_before()
    except hooks.HookError as error:
        fault = Fault(error.error_type, error.message, error.cause)
        loop.give_up(channel, faults.report(fault), status=error.exit_status)
    openings.stop()
    found = search.findings(search.user_modules(os.environ["LAMBDA_TASK_ROOT"]), own_fds=own_fds, openings=openings)
    process.flush_output()
    channel.send(frames.READY, {"pid": os.getpid(), "findings": found})
    sys.stdout.flush()
    os._exit(0)
