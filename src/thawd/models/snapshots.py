"""Calls functions before a snapshot, to release resources that it cannot contain, and in each copy, to acquire them.

It uses the hooks of Lambda's SnapStart (`snapshot_restore_py`), which thawd runs too. If that module does not exist, no
snapshots are taken and nothing needs to be done.
"""

from __future__ import annotations

from typing import Callable, List

_registered: List[Callable[[], None]] = []


def before(release: Callable[[], None]) -> None:
    """Register `release`, which is called before a snapshot. Registering it again has no effect."""
    if release in _registered:
        return
    _registered.append(release)
    try:
        from snapshot_restore_py import register_before_snapshot
    except ImportError:
        return
    register_before_snapshot(release)


def after(take: Callable[[], None]) -> None:
    """Register `take`, which is called in each copy of a snapshot. Registering it again has no effect."""
    if take in _registered:
        return
    _registered.append(take)
    try:
        from snapshot_restore_py import register_after_restore
    except ImportError:
        return
    register_after_restore(take)
