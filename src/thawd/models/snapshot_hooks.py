"""Registers functions that release resources which a snapshot cannot contain, and that acquire them again in each copy.

The functions become hooks of Lambda's SnapStart (`snapshot_restore_py`), which thawd runs, too. If that module does not
exist, no snapshots are taken, so the functions need not be called.
"""

from __future__ import annotations

from typing import Callable, List

_registered: List[Callable[[], None]] = []


def before(release: Callable[[], None]) -> None:
    """Register `release`, which is then called before a snapshot is taken. Registering it again has no effect."""
    if release in _registered:
        return
    _registered.append(release)
    try:
        from snapshot_restore_py import register_before_snapshot
    except ImportError:
        return
    register_before_snapshot(release)


def after(acquire: Callable[[], None]) -> None:
    """Register `acquire`, which is then called in each copy of a snapshot. Registering it again has no effect."""
    if acquire in _registered:
        return
    _registered.append(acquire)
    try:
        from snapshot_restore_py import register_after_restore
    except ImportError:
        return
    register_after_restore(acquire)
