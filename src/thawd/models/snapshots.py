"""Releases resources of models that a snapshot cannot hold before it is taken, and acquires them again in each copy.

Uses the hooks of Lambda's SnapStart (`snapshot_restore_py`), which thawd runs, too. Without that module there are no
snapshots.
"""

from __future__ import annotations

from typing import Callable, List

_registered: List[Callable[[], None]] = []


def before(release: Callable[[], None]) -> None:
    """Call `release` before a snapshot, once even if it is registered again."""
    if release in _registered:
        return
    _registered.append(release)
    try:
        from snapshot_restore_py import register_before_snapshot
    except ImportError:
        return
    register_before_snapshot(release)


def after(take: Callable[[], None]) -> None:
    """Call `take` in each copy of a snapshot, once even if it is registered again."""
    if take in _registered:
        return
    _registered.append(take)
    try:
        from snapshot_restore_py import register_after_restore
    except ImportError:
        return
    register_after_restore(take)
