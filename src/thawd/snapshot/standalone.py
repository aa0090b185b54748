"""Freezes a program without thawd's server: `thawd.snapshot.freeze`, for use with ``thawd thaw``.

One call does everything that thawd's Python runtime does around a freeze: it runs the hooks, renews randomness and sets
the new process's environment variables. Standard library only, Python 3.9 and later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from thawd.snapshot import engine, hooks, uniqueness

_Hook = TypeVar("_Hook", bound=Callable[..., Any])


def freeze(
    path: str,
    *,
    provided: Sequence[int] = (),
    copy: bool = False,
    connections: str = "drop",
    listeners: str = "refuse",
    any_port: Sequence[int] = (),
) -> engine.FreezeOutcome:
    """Write this process to the image `path`; returns here, and once more in each copy that ``thawd thaw`` starts.

    Before the freeze, the hooks of `register_before_snapshot` run, the last registered first. Each copy has the
    environment variables of ``thawd thaw``; variables that this program set itself stay. In a copy, ``random``,
    ``secrets``, OpenSSL, NumPy and PyTorch return fresh numbers. Then the hooks of `register_after_restore` run, in the
    order of registration. A copy's standard input, output and error are those of ``thawd thaw``. What follows the
    image's path on the command line of ``thawd thaw`` is in ``outcome.arguments``.

    Args:
        path: path of the image, mode 0600. An existing file is replaced. A copy keeps working when the image is
            deleted.
        provided: further descriptors, which ``thawd-thaw --fd OLD=NEW`` passes to each copy.
        copy: whether a thaw copies page data instead of mapping it. A thaw then takes 0.4 s longer per GB, and later
            changes of the image's file do not reach the copy.
        connections: ``drop``: in a copy all connections have ended, and libraries connect again; ``refuse``: a process
            with a connected socket is not frozen.
        listeners: ``refuse``: a process with a socket that listens on a port of the program's choice is not frozen;
            ``close``: in a copy nothing can connect to that socket.
        any_port: descriptors of sockets that were bound to port 0; the kernel chooses another port for each copy.

    Raises:
        SnapshotRefused: this process has state that no copy could have; the message names it and says what to do.
        SnapshotFailed: the operating system reported an error: a full disk, a missing folder.
        HookError: a hook raised an exception, or in a copy the hooks took longer than 10 s.
        RenewalError: in a copy, a library could not be made to return fresh random numbers.
    """
    library = (
        engine.freeze_library_path()
    )  # not again in the copy, where looking for files could block: see `uniqueness`
    hooks.run_before()
    original = uniqueness.started_with()
    old_pid = os.getpid()
    outcome = engine.freeze(
        os.fspath(path),
        provided=provided,
        library=library,
        copy=copy,
        connections=connections,
        listeners=listeners,
        any_port=any_port,
        hold_threads=True,
    )
    if outcome.restored:
        try:
            uniqueness.environment(outcome.environment, original=original)
            uniqueness.renew(old_pid, thread_ids=lambda tid: engine.new_thread_id(tid, library=library))
        finally:
            waited = engine.release_threads(library=library)
        if not waited:
            raise uniqueness.RenewalError(uniqueness.NOT_ALONE)
        hooks.run_after()
    return outcome


def register_before_snapshot(function: _Hook, *args: Any, **kwargs: Any) -> _Hook:
    """Run ``function(*args, **kwargs)`` before the freeze; the last registered runs first. Also a decorator."""
    return _register("register_before_snapshot", function, args, kwargs)


def register_after_restore(function: _Hook, *args: Any, **kwargs: Any) -> _Hook:
    """Run ``function(*args, **kwargs)`` in each copy, in order of registration. Also a decorator."""
    return _register("register_after_restore", function, args, kwargs)


def _register(name: str, function: _Hook, args: Any, kwargs: Any) -> _Hook:
    hooks.install()
    import importlib

    # The module `snapshot_restore_py` is the registry on Lambda, too, so hooks that libraries register there also run.
    getattr(importlib.import_module(hooks.MODULE), name)(function, *args, **kwargs)
    return function
