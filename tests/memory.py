"""A folder in memory, where a commit to a state file waits for no disk."""

from __future__ import annotations

import os

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""None if this machine has no such folder."""
