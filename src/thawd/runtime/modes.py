"""The modes in which a runtime process can run: what the process does after its start, and in which order.

The docstring of `bootstrap` lists the modes.
"""

import json
import os
import time
from typing import Any, NoReturn

from thawd.runtime import aws_guard, logs, loop, process, sdk, services
from thawd.runtime.channel import Channel
from thawd.snapshot import hooks
from thawd.wire import frames


def main(mode: str, control: int, service: int, lifeline: int) -> NoReturn:
    """Run this process in `mode`, one of the modes in the docstring of `bootstrap`.

    Args:
        mode: the mode.
        control: descriptor of the channel for invocations.
        service: descriptor of the channel for calls to tables and buckets.
        lifeline: descriptor of the pipe that closes when the platform ends.
    """
    started_s = time.monotonic()
    if mode == "api":
        from thawd.runtime import api_client

        api_client.run()
    if mode in ("snapshot", "base", "bare"):
        process.settle_descriptors([control, service, lifeline])
        control, service, lifeline = frames.DESCRIPTORS
    process.die_with_platform(lifeline)
    process.keep_private([control, service, lifeline])
    process.limit_descriptors()
    process.set_up_output()
    channel = Channel(control)
    hooks.install()
    sdk.install()
    base: Any = None
    before_init = after_init = None
    if mode in ("base", "bare"):
        from thawd.runtime import base_process, package_base
    if mode == "base":
        base = base_process.run(channel, started_s=started_s)
        # From here on this process is a thawed copy of the base, and will load a function, or packages for one.
        mode, started_s = "snapshot", time.monotonic()
    logs.install()
    aws_guard.install()
    if base is not None:
        base, packages = package_base.run(channel, base)
        if packages is not None:
            # From here on this process is a thawed copy of the package base.
            started_s = time.monotonic()
            logs.configure()
        before_init = json.dumps(base_process.state() if packages is None else packages.state())
        after_init = base_process.short_state if "compare" in base.arguments else None
    services.connect(service)
    if mode == "bare":
        base_process.report(channel)
    if mode == "lint":
        from thawd.runtime import lint_process

        lint_process.run(channel, own_fds=[control, service, lifeline])
    if mode == "snapshot":
        from thawd.runtime import freezing

        stamps = () if base is None else base.stamps
        channel, handler, head = freezing.run(
            channel, started_s=started_s, before_init=before_init, base=stamps, state=after_init
        )
        # From here on this process is an environment: thawed, or forked from a template.
    else:
        handler = loop.init(channel, debugs="THAWD_DEBUG" in os.environ)
        head = {"init_ms": (time.monotonic() - started_s) * 1000}
    if mode == "template":
        from thawd.runtime import template

        channel, _, head["init_ms"] = template.run(channel, init_ms=head["init_ms"], own_fds=[service, lifeline])
        # From here on this process is a forked environment.
    channel.send(frames.READY, {"pid": os.getpid(), **head, "closes": loop.shutdown_of(handler) is not None})
    loop.serve(channel, handler, after_first=None if base is None else freezing.share_pages)
    raise AssertionError("serve returns only if `until` is set")
