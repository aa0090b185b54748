"""The process of a function with a snapshot: initialised and primed once, frozen, and thawed any number of times.

The original process runs init, the before-snapshot hooks and the priming event, and is then frozen. If the freeze is
refused, or the image fails its self-test, the original becomes a template. A copy takes over the descriptors and
environment variables that the platform gives it, renews state that must differ between copies, runs the after-restore
hooks, and is ready. A copy that becomes a template takes over only the descriptors; each environment that it forks does
the other steps.
"""

import gc
import json
import os
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from thawd.runtime import (
    context,
    faults,
    logs,
    loop,
    priming,
    process,
    services,
    shared_files,
    shared_pages,
    spare,
    template,
)
from thawd.runtime.changed_files import SourceFiles, Stamp, changed, stamps_here, write_stamps
from thawd.runtime.channel import Channel
from thawd.runtime.faults import Fault
from thawd.runtime.handler import Handler
from thawd.snapshot import engine, hooks, uniqueness
from thawd.snapshot.connections import CONNECTED, Openings
from thawd.wire import frames

_WRAPPER = "AWS_LAMBDA_EXEC_WRAPPER"
_CONTROL, _SERVICES, _LIFELINE = frames.DESCRIPTORS

Head = Dict[str, Any]


class _Frozen(NamedTuple):
    """Data from before the freeze that a copy needs.

    Attributes:
        pid: process id of the original.
        variables: environment variables that the original was started with.
        facts: fields to report to the platform: ``init_ms``; ``fork_refused``, why this process must not be forked;
            ``dropped``, the connections that are closed in each thawed copy.
        stamps: stamps of the files that init has read, and of those that the base was loaded from. Files in the code
            folder or the temporary folder are left out.
    """

    pid: int
    variables: Dict[str, str]
    facts: Head
    stamps: Sequence[Sequence[Stamp]]


def run(
    channel: Channel,
    *,
    started_s: float,
    before_init: Optional[str] = None,
    base: Sequence[Sequence[Stamp]] = (),
    state: Optional[Callable[[], Head]] = None,
) -> Tuple[Channel, Handler, Head]:
    """Run init, then freeze when the platform asks. Returns only in a thawed or forked environment that can serve.

    Args:
        channel: channel to the platform.
        started_s: when the process began, ``time.monotonic()`` seconds.
        before_init: state of this process before init, to report with READY; None if it is not the copy of a base.
        base: stamps of the files that the base was loaded from.
        state: describes this process after init, for the report with READY; None: no such report is wanted.

    Returns:
        The environment's channel, the handler, and the head of its READY frame.
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
    _report(channel, facts, before_init, state)
    request = channel.receive()
    if request is None or request.kind != frames.FREEZE:
        os._exit(0)
    channel.wait_by_poll()
    channel.send(frames.STAGE, {"stage": "hooks"})
    _run_hooks(channel, hooks.run_before)
    primed = priming.PrimingResult()
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
    frozen = _Frozen(os.getpid(), original, facts, sources.stamps(_stored_folders(request.head), base))
    # Otherwise each copy would write to the pages of these objects when it frees them.
    shared_pages.keep(frozen)
    outcome_head: Head = {"refused": primed.refused or unshared or _wrapper_refusal()}
    if outcome_head["refused"] is None:
        with services.quiet():
            outcome, outcome_head = freeze(request.head, filters, any_port=openings.any_port())
            if outcome is not None and outcome.restored:
                services.go_on(_SERVICES)
        if outcome is not None and outcome.restored:
            return _continue_in_copy(channel, handler, frozen, outcome, library=request.head["library"])
        if outcome is not None:
            write_stamps(request.head["path"] + ".stamps", frozen.stamps)
    channel.send(frames.FROZEN, {**facts, **outcome_head, "answers_differ": primed.differ}, primed.answer)
    loop.serve(channel, handler, until=frames.GO_ON)
    # Check again: the self-test of an image may have sent the priming event once more to this process, which is the
    # original, and the handler may have opened files.
    refused = template.fork_refusal()
    if refused is not None:
        faults.write_log("thawd: not forked: %s\n" % refused)
        os._exit(0)
    # The platform sends FORK only after this frame. An earlier FORK would reach `loop.serve`, which cannot receive the
    # descriptors that come with it.
    channel.send(frames.STAGE, {"stage": "template"})
    return _fork_on_request(channel, handler, frozen)


def _wrapper_refusal() -> Optional[str]:
    """Say that this process must not be frozen, because a wrapper still runs as its parent; None if no wrapper runs.

    A copy of this process would not have the wrapper as its parent.
    """
    if _WRAPPER not in os.environ or os.getpid() == os.getsid(0):
        return None
    return (
        "the program that AWS_LAMBDA_EXEC_WRAPPER names keeps running as the parent of the runtime; make "
        '`exec "$@"` its last command, so that the runtime replaces it'
    )


def _stored_folders(request: Head) -> List[str]:
    """Folders whose contents are stored with the snapshot: the code and the temporary folder."""
    return [folder for folder in (os.environ["LAMBDA_TASK_ROOT"], request["disk"]) if folder is not None]


def _run_hooks(channel: Channel, run: Callable[[], int]) -> None:
    try:
        run()
    except hooks.HookError as error:
        fault = Fault(error.error_type, error.message, error.cause)
        loop.give_up(channel, faults.report(fault), status=error.exit_status)
    process.flush_output()


def freeze(
    request: Head, filters: int, *, any_port: List[int], complete: bool = False
) -> "Tuple[Optional[engine.FreezeOutcome], Head]":
    """Freeze this process. Returns in it, and once more in each copy.

    Args:
        request: head of the FREEZE frame.
        filters: number of seccomp filters that this process was started under.
        any_port: descriptors of sockets whose port the kernel chose.
        complete: whether the image is to refer to no other image, although this process is a copy.

    Returns:
        The outcome, and fields for the FROZEN frame. If the freeze was refused or failed, the outcome is None and the
        fields are the reason; otherwise the fields are figures, such as durations.
    """
    # The copies share the image's memory. gc.freeze keeps the garbage collector from writing to it: a copy needs memory
    # of its own for each page that it writes to.
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
            hold_threads=True,
            complete=complete,
        )
    except (engine.SnapshotRefused, engine.SnapshotFailed) as error:
        return None, {"refused": str(error)}
    figures = ("park_ms", "scan_ms", "write_ms", "sync_ms", "image_bytes", "data_bytes", "threads", "operations")
    return outcome, {"refused": None, **{name: getattr(outcome, name) for name in figures}}


def _report(channel: Channel, facts: Head, before_init: Optional[str], state: Optional[Callable[[], Head]]) -> None:
    """Send READY. Nothing that this function makes is left at the freeze.

    The states refer to strings of all modules. If they were left, the image would contain a changed reference count for
    each of these strings, and each copy would need a page of its own for it.
    """
    reported: Head = {} if before_init is None else {"before_init": json.loads(before_init)}
    if state is not None:
        reported["after_init"] = state()
    channel.send(frames.READY, {"pid": os.getpid(), **facts, **reported})


def _continue_in_copy(
    channel: Channel, handler: Handler, frozen: _Frozen, outcome: "engine.FreezeOutcome", *, library: str
) -> Tuple[Channel, Handler, Head]:
    """Continue in a copy, in the role that `outcome.arguments[0]` names: environment, spare, template or probe."""
    role = outcome.arguments[0]
    head: Head = {**frozen.facts, "restore_ms": outcome.restore_ms}
    if role != "environment":
        engine.release_threads(library=library)  # a spare has no other Python threads, and the other roles never serve
    blocked = spare.park(channel) if role == "spare" else None
    begun_s = time.monotonic()
    if role in ("environment", "spare"):
        _become_distinct(frozen, outcome.environment, thread_ids=lambda tid: engine.new_thread_id(tid, library=library))
    # Until here the function's own threads have not run in this copy: they would have used the random numbers and the
    # variables of the original.
    if role == "environment" and not engine.release_threads(library=library):
        process.refuse_copy(uniqueness.NOT_ALONE)
    if blocked is not None:
        spare.resume(blocked)
    process.die_with_platform(_LIFELINE)
    process.limit_descriptors()
    shared_files.restore()
    if role in ("environment", "spare"):
        return channel, handler, {**head, **_run_after_restore_hooks(channel, begun_s=begun_s)}
    if role == "template":
        channel.send(frames.READY, {"pid": os.getpid(), **head})
        return _fork_on_request(channel, handler, frozen)
    # A probe only reports whether files that init read have changed since the freeze. If so, the image is not used
    # again. Its argument is the list of files of a snapshot that was made on another machine.
    here = stamps_here(outcome.arguments[1]) if len(outcome.arguments) > 1 else None
    channel.send(frames.READY, {"pid": os.getpid(), **head, "changed": changed(frozen.stamps, here)})
    os._exit(0)


def share_pages() -> None:
    """Share the pages of this copy that differ from those of the base no more.

    What a copy does once, after its thaw and in its first invocation, writes to pages, but leaves the contents of some
    as they were: counts of references have gone up and down again. Called between two invocations, because during an
    invocation more contents differ.
    """
    engine.share_equal_pages()


def _fork_on_request(channel: Channel, handler: Handler, frozen: _Frozen) -> Tuple[Channel, Handler, Head]:
    """Serve as a template. Returns only in forked environments, which run the same restore steps as thawed ones."""
    forked = template.serve(channel, own_fds=[_SERVICES, _LIFELINE])
    begun_s = time.monotonic()
    # A forked process has only the thread that called fork, so the ids of all other threads map to 0.
    _become_distinct(frozen, {**frozen.variables, **forked.environ}, thread_ids=lambda tid: 0)
    return (
        forked.channel,
        handler,
        {"init_ms": forked.fork_ms, **_run_after_restore_hooks(forked.channel, begun_s=begun_s)},
    )


def _become_distinct(frozen: _Frozen, variables: Mapping[str, str], *, thread_ids: Callable[[int], int]) -> None:
    """Give this copy its own environment variables, and renew its state that must differ between copies."""
    if _WRAPPER in frozen.variables:
        # Init saw the variables as the wrapper had changed them. No wrapper runs for a copy, so keep those values.
        own = {name: variables[name] for name in frames.PER_ENVIRONMENT if name in variables}
        variables = {**frozen.variables, **own}
    process.become_own_process(frozen.pid, variables=variables, original=frozen.variables, thread_ids=thread_ids)


def _run_after_restore_hooks(channel: Channel, *, begun_s: float) -> Head:
    """Run a copy's after-restore hooks; returns fields for its READY frame, such as how long the hooks took."""
    logs.configure()
    renewed_s = time.monotonic()
    if hooks.MODULE in sys.modules:
        channel.send(frames.STAGE, {"stage": "hooks"})
        _run_hooks(channel, hooks.run_after)
    hooked_s = time.monotonic()
    return {"restored": True, "renew_ms": (renewed_s - begun_s) * 1000, "hooks_ms": (hooked_s - renewed_s) * 1000}
