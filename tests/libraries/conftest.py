"""Images of this group take up to 2 GB; each goes with its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """Where a test puts its image; whatever lies beside it is removed with it."""
    yield tmp_path / "image"
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
