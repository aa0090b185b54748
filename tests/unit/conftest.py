"""Where the machine has a file system in memory, tests whose commits would wait for a disk have their folder there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory import MEMORY


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder for one test; of a test marked `in_memory`, in memory."""
    if MEMORY is None or not request.node.get_closest_marker("in_memory"):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="thawd-unit-", dir=MEMORY))
    yield folder
    shutil.rmtree(folder)
