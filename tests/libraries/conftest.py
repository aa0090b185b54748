"""Images of these tests take up to 2 GB. Each is removed when its test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """A place for a test's image. The folder is removed with everything in it."""
    yield tmp_path / "image"
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
