"""The life of a function that is frozen: initialised and primed once, frozen, and thawed as often as it is needed.

In the original: init, before-snapshot hooks, the priming event, the freeze; then it can be forked until the platform
ends it. In a copy: descriptors and variables become the new process's own, what must not be the same in two copies is
made anew, after-restore hooks, ready. A copy that is to be a template leaves the last three to those it forks.
"""

import gc
import os
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from thawd.runtime import context, faults, logs, loop, priming, process, services, shared_files, template
from thawd.runtime.channel import Channel
from thawd.runtime.faults import Fault
from thawd.runtime.handler import Handler
from thawd.runtime.sources import SourceFiles, Stamp, changed
from thawd.snapshot import engine, hooks
from thawd.snapshot.connections import CONNECTED, Openings
from thawd.wire import frames

_WRAPPER = "AWS_LAMBDA_EXEC_WRAPPER"
_CONTROL, _SERVICES, _LIFELINE = frames.DESCRIPTORS

Head = Dict[str, Any]


class _Frozen(NamedTuple):
    """What a copy knows from before the freeze.

    Attributes:
        pid: process id of the original.
        variables: environment variables that the original was started with.
        facts: what it tells the platform: ``init_ms``, ``fork_refused``, ``dropped``.
        stamps: the files outside its code that it was made of.
    """

    pid: int
    variables: Dict[str, str]
    facts: Head
    stamps: List[Stamp]


def run(channel: Channel, *, started_s: float) -> Tuple[Channel, Handler, Head]:
    """Init, then freeze as the platform asks; returns only in environments, thawed or forked, that can serve.

    Args:
        channel: to the platform.
        started_s: when the process began, ``time.monotonic()`` seconds.

    Returns:
        The environment's channel, the handler, and what its READY is to say.
    """
    original = dict(os.environ)
    filters = process.seccomp_filters()
    sources = SourceFiles()
    openings = Openings(os.environ["LAMBDA_TASK_ROOT"])
    sources.watch()
    openings.watch()
    handler = loop.init(channel)
    sources.stop()
    facts: Head = {"init_ms": (time.monotonic() - started_s) * 1000}
    channel.send(frames.READY, {"pid": os.getpid(), **facts})
    request = channel.receive()
    if request is None or request.kind != frames.FREEZE:
        os._exit(0)
    channel.send(frames.STAGE, {"stage": "hooks"})
    _run_hooks(channel, hooks.run_before)
    primed = priming.Primed()
    if request.head["ids"]:
        channel.send(frames.STAGE, {"stage": "priming"})
        primed = priming.prime(handler, request.head, request.body)
        context.forget_environment()
        logs.set_request_id("")
    openings.stop()
    channel.send(frames.STAGE, {"stage": "freezing"})
    unshared = shared_files.keep()
    facts["fork_refused"] = template.fork_refusal() or unshared
    facts["dropped"] = [one.describe() for one in openings.sockets(frames.DESCRIPTORS) if one.kind == CONNECTED]
    frozen = _Frozen(os.getpid(), original, facts, sources.stamps(_kept(request.head)))
    told: Head = {"refused": primed.refused or unshared or _wrapper_refusal()}
    if told["refused"] is None:
        with services.quiet():
            outcome, told = _freeze(request.head, filters, any_port=openings.any_port())
            if outcome is not None and outcome.restored:
                services.go_on(_SERVICES)
        if outcome is not None and outcome.restored:
            return _in_copy(channel, handler, frozen, outcome, library=request.head["library"])
    channel.send(frames.FROZEN, {**facts, **told, "answers_differ": primed.differ}, primed.answer)
    loop.serve(channel, handler, until=frames.GO_ON)
    # It may have been asked the priming event once more since, and have opened what forks would share.
    refused = template.fork_refusal()
    if refused is not None:
        faults.write_log("thawd: not forked: %s\n" % refused)
        os._exit(0)
    # The platform waits for this: descriptors that come with a FORK would be lost on who reads frames alone.
    channel.send(frames.STAGE, {"stage": "template"})
    return _fork_on_request(channel, handler, frozen)


def _wrapper_refusal() -> Optional[str]:
    """Why a process that a wrapper started must not be frozen: what it is a child of would be missing in a copy."""
    if _WRAPPER not in os.environ or os.getpid() == os.getsid(0):
        return None
    return (
        'the program that AWS_LAMBDA_EXEC_WRAPPER names goes on beside the runtime: let it end with `exec "$@"`, which '
        "puts the runtime in its place"
    )


def _kept(request: Head) -> List[str]:
    """Folders whose contents are found again with the snapshot: the code and the temporary folder."""
    return [folder for folder in (os.environ["LAMBDA_TASK_ROOT"], request["disk"]) if folder is not None]


def _run_hooks(channel: Channel, run: Callable[[], int]) -> None:
    try:
        run()
    except hooks.HookError as error:
        fault = Fault(error.error_type, error.message, error.cause)
        loop.give_up(channel, faults.report(fault), status=error.exit_status)
    process.flush_output()


def _freeze(request: Head, filters: int, *, any_port: List[int]) -> "Tuple[Optional[engine.FreezeOutcome], Head]":
    """The outcome, and what to tell the platform of it: why there is no image, or the figures of the one there is."""
    # What the image holds is shared by all copies; the collector must not write to it, page by page, in each of them.
    gc.collect()
    gc.freeze()
    process.flush_output()
    try:
        outcome = engine.freeze(
            request["path"],
            provided=frames.DESCRIPTORS,
            library=request["library"],
            disk=request["disk"],
            connections=request["connections"],
            listeners=request["listeners"],
            any_port=any_port,
            seccomp_filters=filters,
        )
    except (engine.SnapshotRefused, engine.SnapshotFailed) as error:
        return None, {"refused": str(error)}
    figures = ("park_ms", "scan_ms", "write_ms", "sync_ms", "image_bytes", "data_bytes", "threads", "operations")
    return outcome, {"refused": None, **{name: getattr(outcome, name) for name in figures}}


def _in_copy(
    channel: Channel, handler: Handler, frozen: _Frozen, outcome: "engine.FreezeOutcome", *, library: str
) -> Tuple[Channel, Handler, Head]:
    """What the platform wants of this copy is its first argument: environment, template or probe."""
    role = outcome.arguments[0]
    head: Head = {**frozen.facts, "restore_ms": outcome.restore_ms}
    begun_s = time.monotonic()
    if role == "environment":
        # First of all: from the next call on that waits for anything, threads of the function's own run too.
        _become(frozen, outcome.environment, thread_ids=lambda tid: engine.new_thread_id(tid, library=library))
    process.die_with_platform(_LIFELINE)
    process.limit_descriptors()
    shared_files.give_back()
    if role == "environment":
        return channel, handler, {**head, **_renewed(channel, begun_s=begun_s)}
    if role == "template":
        channel.send(frames.READY, {"pid": os.getpid(), **head})
        return _fork_on_request(channel, handler, frozen)
    # A probe: whether this image may be used again, asked of itself.
    channel.send(frames.READY, {"pid": os.getpid(), **head, "changed": changed(frozen.stamps)})
    os._exit(0)


def _fork_on_request(channel: Channel, handler: Handler, frozen: _Frozen) -> Tuple[Channel, Handler, Head]:
    """Returns in forked environments only. They are restored ones: the hooks before the snapshot have run in them."""
    forked = template.serve(channel, own_fds=[_SERVICES, _LIFELINE])
    # Threads that the fork left behind have no ids.
    begun_s = time.monotonic()
    _become(frozen, {**frozen.variables, **forked.environ}, thread_ids=lambda tid: 0)
    return forked.channel, handler, {"init_ms": forked.fork_ms, **_renewed(forked.channel, begun_s=begun_s)}


def _become(frozen: _Frozen, variables: Mapping[str, str], *, thread_ids: Callable[[int], int]) -> None:
    """Make this copy a process of its own."""
    if _WRAPPER in frozen.variables:
        # What the wrapper made of its variables is what init was given; no wrapper runs for a copy.
        own = {name: variables[name] for name in frames.PER_ENVIRONMENT if name in variables}
        variables = {**frozen.variables, **own}
    process.become_another(frozen.pid, variables=variables, original=frozen.variables, thread_ids=thread_ids)


def _renewed(channel: Channel, *, begun_s: float) -> Head:
    """Run the after-restore hooks of a copy that is a process of its own; the times that took, for its READY."""
    logs.configure()
    renewed_s = time.monotonic()
    if hooks.MODULE in sys.modules:
        channel.send(frames.STAGE, {"stage": "hooks"})
        _run_hooks(channel, hooks.run_after)
    hooked_s = time.monotonic()
    return {"restored": True, "renew_ms": (renewed_s - begun_s) * 1000, "hooks_ms": (hooked_s - renewed_s) * 1000}
