"""The image that a version is thawed from, and the result of a freeze."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from thawd.environments.starts.file_listing import Arrival
from thawd.environments.starts.template import Template
from thawd.environments.starts.thawable import Thawable
from thawd.snapshot.store.images import SnapshotLease

# With at least `_BURST` simultaneous starts, environments are forked from one thawed copy, if a restore takes at least
# `_SLOW_RESTORE_MS`. A restore takes that long if the image has about 2,000 mappings or more; with fewer, thawing each
# environment is faster (docs/decisions/0007-bursts.md).
_BURST = 3
_SLOW_RESTORE_MS = 8.0


@dataclass(slots=True)
class Frozen:
    """The image that a version is thawed from.

    Attributes:
        thawable: the image, and the program that thaws it.
        lease: the lease of the image; until it is released, the store does not remove the image. If the image still
            arrives, the arriving snapshot.
        fork_refused: why a thawed copy must not be forked; None when it may be.
        init_ms: how long init took before the freeze, milliseconds.
        dropped: connections that are closed in each thawed copy.
        failures: number of failed thaws since the last one that succeeded.
        unchecked: True until `Snapshots.check` has found that the files which init read are unchanged. Call `check`
            before the first thaw.
        found: whether the image was in the store already, so that init did not run for it.
        lock: held while the image is checked, or replaced by the same one in the store.
    """

    thawable: Thawable
    lease: SnapshotLease | Arrival
    fork_refused: str | None
    init_ms: float
    dropped: list[str]
    failures: int = 0
    unchecked: bool = False
    found: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def arrival(self) -> Arrival | None:
        """The snapshot whose image arrives while copies run; None when the image is in the store."""
        return None if isinstance(self.lease, SnapshotLease) else self.lease

    def is_forked_in_bursts(self, *, thawing: int) -> bool:
        """Whether to fork environments from one thawed copy, while `thawing` of them start.

        Not while the image arrives: if contents cannot be had, all copies must be found and killed.
        """
        is_slow = self.thawable.restore_ms >= _SLOW_RESTORE_MS
        return self.fork_refused is None and is_slow and thawing >= _BURST and self.arrival is None

    def describe(self) -> dict[str, Any]:
        """Return the image's fields in ``/_thawd/status``."""
        snapshot = self.lease.snapshot
        return {
            "id": snapshot.id,
            "stored_bytes": snapshot.stored_bytes,
            "init_ms": round(self.init_ms, 3),
            "dropped": self.dropped,
            "arriving": self.arrival is not None,
            "base": None if snapshot.base is None else snapshot.base[:12],
            "base_refused": (snapshot.sidecar.origin.base_refused or None) if snapshot.sidecar else None,
        }


@dataclass(slots=True)
class FreezeResult:
    """The result of a freeze.

    Attributes:
        frozen: the image; None when there is none.
        refused: why there is no image, and what to do; empty when there is an image.
        template: the process that was to be frozen, if the freeze was refused and environments can be forked from the
            process; else None.
        fork_refused: why that process cannot be forked; None if it can be, if it has ended, or if there is an image.
    """

    frozen: Frozen | None = None
    refused: str = ""
    template: Template | None = None
    fork_refused: str | None = None
