"""A bucket's state while it is watched: keys to check, folders to scan, and whether its folder is lost.

The memory for this state is limited: when too many keys wait, only the folders of further keys are remembered, and are
scanned later.
"""
# Keys and paths are bytes here, which pathlib does not take.
# ruff: noqa: PTH120

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field

from thawd.sources.buckets.inotify import TreeWatch
from thawd.sources.buckets.pending import PendingKeys
from thawd.sources.buckets.recorder import LookAgain

_MOST_DIRTY = 1000
_FULL_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """How a bucket is watched.

    Attributes:
        settle_s: without file leases (see `files`), a file counts as complete after it has not changed for this long,
            seconds.
        scan_interval_s: shortest time between two full scans, seconds.
        unwatched_interval_s: shortest time between two full scans if some folders cannot be watched, seconds.
        scan_share: shortest pause after a full scan, as a multiple of that scan's duration.
        held_keys: most keys that wait for a check. For further keys, only their folders are remembered.
    """

    settle_s: float = 1.0
    scan_interval_s: float = 30.0
    unwatched_interval_s: float = 2.0
    scan_share: float = 50.0
    held_keys: int = 8192


@dataclass(slots=True)
class WatchSession:
    """A bucket's state from the moment at which its folder is found until the folder is lost.

    Attributes:
        tree: receives the kernel's notices; None: there are none.
        pending: keys to check.
        large: keys of files so large that other files should not wait for them.
        dirty: folders to scan, and when, ``time.monotonic()`` seconds; the empty name means the whole bucket.
        dirtied: set when a folder was added to `dirty`.
        lost: set when the folder is lost.
        reason: how the folder was lost; empty until then.
        unwatched: whether any folder is not watched.
    """

    tree: TreeWatch | None
    pending: PendingKeys
    large: PendingKeys
    dirty: dict[bytes, float] = field(default_factory=dict)
    dirtied: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""
    unwatched: bool = False

    def lose(self, reason: str) -> None:
        """Record that the folder is lost. If this is called again, the first reason is kept.

        Args:
            reason: how the folder was lost: the end of a sentence that begins with the folder's path.
        """
        self.reason = self.reason or reason
        self.lost.set()

    def scan_folder(self, folder: bytes, due: float) -> None:
        """Schedule a scan of `folder` at `due` or earlier. If too many folders wait, scan the whole bucket instead."""
        if len(self.dirty) >= _MOST_DIRTY:
            self.dirty.clear()
            folder = b""
        self.dirty[folder] = min(due, self.dirty.get(folder, due))
        self.dirtied.set()

    def look_at(self, key: bytes, due: float) -> None:
        """Schedule a check of `key`. If too many keys wait, schedule a scan of its folder instead."""
        if not self.pending.push(key, due):
            self.scan_folder(os.path.dirname(key), due)

    def look_again(self, again: list[LookAgain]) -> None:
        """Schedule further checks of keys. If too many keys wait, schedule scans of their folders instead."""
        now = time.monotonic()
        for key, wait_s, unfinished, alone in again:
            held_by = self.large if alone else self.pending
            if not held_by.push(key, now + wait_s, unfinished=unfinished):
                self.scan_folder(os.path.dirname(key), now + max(wait_s, _FULL_RETRY_S))
