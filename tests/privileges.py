"""Runs parts of tests as a user other than root."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

MODULES = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith(("site-packages", "src")))}
"""Environment variables with which another interpreter finds thawd and its dependencies."""


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's rights for the block, so that file permissions take effect."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def unprivileged_python() -> str:
    """Return an interpreter of this version that other users may run.

    This one may be in a folder that belongs to root.
    """
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        probe = [python, "-c", "import thawd.server"]
        with suppress(OSError):
            environ = {**os.environ, **MODULES}
            if subprocess.run(probe, env=environ, user=65534, group=65534, capture_output=True).returncode == 0:
                return python
    pytest.skip("no interpreter of this version that an unprivileged user may run")


def open_to_all(folder: Path) -> None:
    """Let other users into `folder`, which pytest has made."""
    within = [part for part in folder.parents if part.is_relative_to(tempfile.gettempdir())]
    for part in (folder, *within):
        with suppress(PermissionError):
            part.chmod(part.stat().st_mode | 0o055)
