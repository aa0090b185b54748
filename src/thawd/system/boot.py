"""Identifies the current boot of the machine."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def boot_id() -> str:
    """Return the id of the kernel's current boot, 36 characters; "" if the system has none.

    Source: random(4), /proc/sys/kernel/random/boot_id.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
