"""What models hold that a snapshot cannot take along: given back before it is taken, taken again in each copy.

By the hooks of Lambda's SnapStart (`snapshot_restore_py`), which thawd runs, too; where there are none, there are no
snapshots.
"""

from __future__ import annotations

from typing import Callable, List

_registered: List[Callable[[], None]] = []


def before(release: Callable[[], None]) -> None:
    """Call `release` before a snapshot; asked for again, it is called once."""
    if release in _registered:
        return
    _registered.append(release)
    try:
        from snapshot_restore_py import register_before_snapshot
    except ImportError:
        return
    register_before_snapshot(release)


def after(take: Callable[[], None]) -> None:
    """Call `take` in each copy of a snapshot; asked for again, it is called once."""
    if take in _registered:
        return
    _registered.append(take)
    try:
        from snapshot_restore_py import register_after_restore
    except ImportError:
        return
    register_after_restore(take)
