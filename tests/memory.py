"""Where files are in memory: a commit to a state file there waits for no disk."""

from __future__ import annotations

import os

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""None: this machine has no such place."""
