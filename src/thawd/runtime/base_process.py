"""The process that is frozen as a base: an interpreter with thawd's runtime and nothing of a function.

See `thawd.environments.starts.bases`. To publish a version, thawd thaws a copy of the base. The copy gets the version's
environment variables, loads the handler, and is frozen again; the new image stores only what differs from the base.

Code that runs when an interpreter starts may depend on environment variables that the base did not have. To find out,
the platform also starts the interpreter without the base (mode ``bare``). That process reports its state before init,
and the platform compares the report with that of the copy.
"""

import gc
import os
import sys
import time
from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Sequence

from thawd.runtime import freezing, process, rehearsal, shared_pages
from thawd.runtime.changed_files import SourceFiles, Stamp, changed, file_of
from thawd.runtime.channel import Channel
from thawd.snapshot import engine, uniqueness
from thawd.wire import frames

_CONTROL, _SERVICES, _LIFELINE = frames.DESCRIPTORS
_PATH_END = 48


class BaseCopy(NamedTuple):
    """A thawed copy of a base.

    Attributes:
        stamps: stamps of the files that the base was loaded from.
        arguments: what the platform wants the copy to do; see `thawd.environments.starts.thawable.Thawable.command`.
        variables: the environment variables that the copy was started with.
    """

    stamps: Sequence[Sequence[Stamp]]
    arguments: List[str]
    variables: Dict[str, str]


def run(channel: Channel, *, started_s: float) -> BaseCopy:
    """Freeze this process when the platform asks. Returns only in a thawed copy.

    Args:
        channel: channel to the platform.
        started_s: when the process began, ``time.monotonic()`` seconds.
    """
    # A copy removes the variables that are in `original` and not among those that it gets. It must keep LC_CTYPE, which
    # the interpreter itself may have added to os.environ. So `original` is not taken from os.environ.
    started_with = uniqueness.started_with()
    original = {os.fsdecode(name): os.fsdecode(value) for name, value in started_with.items()}
    filters = process.seccomp_filters()
    sources = SourceFiles()
    # `watch` is needed only for the time that it records: `stamps` finds the files of loaded modules by itself.
    sources.watch()
    sources.stop()
    os.chdir("/")  # the current folder is that of a function's code, which may be removed while the base is in use
    channel.send(frames.READY, {"init_ms": (time.monotonic() - started_s) * 1000})
    return freeze(channel, sources, filters=filters, original=original)


def freeze(
    channel: Channel,
    sources: SourceFiles,
    *,
    filters: int,
    original: Mapping[str, str],
    below: Sequence[Sequence[Stamp]] = (),
) -> BaseCopy:
    """Freeze this process as a base when the platform asks. Returns only in a thawed copy, after it has been renewed.

    Args:
        channel: channel to the platform.
        sources: has recorded the files from which the base was loaded.
        filters: number of seccomp filters that this process was started under.
        original: environment variables that this process was started with.
        below: stamps of the files that the base was loaded from of which this process is a copy.
    """
    request = channel.receive()
    if request is None or request.kind != frames.FREEZE:
        os._exit(0)
    channel.send(frames.STAGE, {"stage": "freezing"})
    own_pid, library = os.getpid(), request.head["library"]
    stamps = sources.stamps([], below)
    shared_pages.forget_lookups()
    rehearsal.run(state())
    shared_pages.keep_locals()
    gc.collect()
    gc.freeze()
    if below:  # without packages there are few free blocks, and the image of each version would be larger
        shared_pages.fill_free_blocks()
    outcome, head = freezing.freeze(request.head, filters, any_port=[], complete=True)
    if outcome is None or not outcome.restored:
        facts = {"init_ms": 0.0, "fork_refused": None, "answers_differ": False}
        channel.send(frames.FROZEN, {**facts, **head})
        channel.receive()  # the platform ends this process
        os._exit(0)
    process.become_own_process(
        own_pid,
        variables=outcome.environment,
        original=original,
        thread_ids=lambda tid: engine.new_thread_id(tid, library=library),
    )
    if not engine.release_threads(library=library):
        process.refuse_copy(uniqueness.NOT_ALONE)
    process.die_with_platform(_LIFELINE)
    process.limit_descriptors()
    stale = changed(stamps)
    if stale is not None:
        channel.send(frames.READY, {"changed": stale})
        os._exit(0)
    return BaseCopy(stamps, outcome.arguments, outcome.environment)


def report(channel: Channel) -> NoReturn:
    """In mode ``bare``, report the state of this process to the platform and end the process."""
    rehearsal.run(state(), runs=1)  # which imports modules, as it does in the process of a base
    channel.send(frames.READY, {"before_init": state()})
    os._exit(0)


def state() -> Dict[str, Any]:
    """The state of the interpreter that init may depend on, as JSON values.

    The platform compares the state of a base's copy with that of a process without a base.
    """
    variables = {name: value for name, value in os.environ.items() if name not in frames.PER_ENVIRONMENT}
    return {
        "modules": {name: str(file_of(module)) for name, module in list(sys.modules.items())},
        "sys.path": [str(entry) for entry in sys.path],
        "finders": [_name(one) for one in [*sys.meta_path, *sys.path_hooks]],
        "sys.flags": [str(flag) for flag in sys.flags],
        "encodings": [sys.getfilesystemencoding(), sys.stdout.encoding, sys.stdin.encoding],
        "variables": {os.fsencode(name).hex(): os.fsencode(value).hex() for name, value in variables.items()},
    }


def short_state() -> Dict[str, Any]:
    """The same state with only the ends of paths, because init may have loaded thousands of modules."""
    found = state()
    return {**found, "modules": {name: file[-_PATH_END:] for name, file in found["modules"].items()}}


def _name(finder: Any) -> str:
    kind = finder if isinstance(finder, type) else type(finder)
    return "%s.%s" % (kind.__module__, kind.__qualname__)
