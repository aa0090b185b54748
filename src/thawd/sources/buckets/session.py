"""A bucket's state while it is watched: keys to look at, folders to scan, whether its folder is lost.

Bounded: when more keys wait than may be held, only their folders are remembered, and scanned later.
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
        settle_s: where leases do not work, a file that is unchanged for so long is complete; seconds.
        scan_interval_s: shortest time between two full scans, seconds.
        unwatched_interval_s: the same when some folders cannot be watched, seconds.
        scan_share: a full scan that takes one second is followed by this many seconds without one.
        held_keys: most keys that wait for a look; of further ones, only the folders are remembered.
    """

    settle_s: float = 1.0
    scan_interval_s: float = 30.0
    unwatched_interval_s: float = 2.0
    scan_share: float = 50.0
    held_keys: int = 8192


@dataclass(slots=True)
class WatchSession:
    """The time between finding the bucket's folder and losing it.

    Attributes:
        tree: gives the kernel's notices; None: the kernel gives none.
        pending: keys to look at.
        large: keys of files so large that others should not wait for them.
        dirty: folders to scan, and when, ``time.monotonic()`` seconds; the empty name is the whole bucket.
        dirtied: set when a folder was added to `dirty`.
        lost: set when the folder is lost.
        reason: how the folder was lost; empty while it is not.
        unwatched: whether some folder is not watched.
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
        """Note that the folder is lost; the first reason counts."""
        self.reason = self.reason or reason
        self.lost.set()

    def scan_folder(self, folder: bytes, due: float) -> None:
        """Have `folder` scanned at `due` or earlier."""
        if len(self.dirty) >= _MOST_DIRTY:
            self.dirty.clear()
            folder = b""
        self.dirty[folder] = min(due, self.dirty.get(folder, due))
        self.dirtied.set()

    def look_at(self, key: bytes, due: float) -> None:
        """Have `key` looked at; when too many wait, have its folder scanned instead."""
        if not self.pending.push(key, due):
            self.scan_folder(os.path.dirname(key), due)

    def look_again(self, again: list[LookAgain]) -> None:
        """Have keys looked at later; when too many wait, have their folders scanned later."""
        now = time.monotonic()
        for key, wait_s, unfinished, alone in again:
            held_by = self.large if alone else self.pending
            if not held_by.push(key, now + wait_s, unfinished=unfinished):
                self.scan_folder(os.path.dirname(key), now + max(wait_s, _FULL_RETRY_S))
