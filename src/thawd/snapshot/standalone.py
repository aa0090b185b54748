"""Freezing a program of one's own, without the platform: `thawd.snapshot.freeze` and ``thawd thaw``.

What the platform's runtime does around a freeze, a program gets here by one call: hooks, fresh randomness, the new
process's environment variables. Standard library only; runs on Python 3.9.
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

    Before: the hooks of `register_before_snapshot`, the last registered first. In each copy: environment variables
    are those ``thawd thaw`` was given (what this program set itself stays), ``random``, ``secrets``, OpenSSL, NumPy and
    PyTorch give fresh numbers, then the hooks of `register_after_restore` run, in order. Standard input, output and
    error are the new process's; its arguments are in ``outcome.arguments``.

    Args:
        path: of the image, mode 0600, replaced when it exists. A copy keeps working when it is deleted.
        provided: further descriptors that each copy is passed by ``thawd-thaw --fd OLD=NEW``.
        copy: page data is copied at each thaw instead of mapped: slower by 0.4 s a GB, and independent of the image.
        connections: ``drop``: a copy finds connections ended, and its libraries connect anew; ``refuse``: a connected
            socket refuses the freeze.
        listeners: ``refuse``: a socket that listens on a port of the program's choice refuses the freeze; ``close``: in
            a copy nobody reaches it.
        any_port: descriptors of sockets that were bound to port 0; each copy has a port of its own.

    Raises:
        SnapshotRefused: this process holds what no copy could be given; the message says what, and the way out.
        SnapshotFailed: the system could not do it: a full disk, a missing folder.
        HookError: a hook raised; in a copy, one that took longer than 10 s too.
    """
    hooks.run_before()
    given = uniqueness.started_with()
    old_pid = os.getpid()
    outcome = engine.freeze(
        os.fspath(path), provided=provided, copy=copy, connections=connections, listeners=listeners, any_port=any_port
    )
    if outcome.restored:
        uniqueness.environment(outcome.environment, given=given)
        uniqueness.renew(old_pid, thread_ids=engine.new_thread_id)
        hooks.run_after()
    return outcome


def register_before_snapshot(function: _Hook, *args: Any, **kwargs: Any) -> _Hook:
    """Have ``function(*args, **kwargs)`` run before the freeze; the last registered runs first. Also a decorator."""
    return _register("register_before_snapshot", function, args, kwargs)


def register_after_restore(function: _Hook, *args: Any, **kwargs: Any) -> _Hook:
    """Have ``function(*args, **kwargs)`` run in each copy, in order of registration. Also a decorator."""
    return _register("register_after_restore", function, args, kwargs)


def _register(name: str, function: _Hook, args: Any, kwargs: Any) -> _Hook:
    hooks.install()
    import importlib

    # The registry that AWS's functions use, so that libraries which register there are served too.
    getattr(importlib.import_module(hooks.MODULE), name)(function, *args, **kwargs)
    return function
