"""Folders so deep, or with such rights, that they are hard to measure and to remove."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.privileges import as_nobody
from thawd.snapshot.store.trust_and_locks import remove_tree, stored_bytes

NOBODY = 65534
MIB = 1 << 20


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own, which cannot remove deep ones either."""
    path = Path(tempfile.mkdtemp(prefix="thawd-deep-"))
    path.chmod(0o755)
    yield path
    remove_tree(path)


def make_deep(folder: Path, name: str, depth: int) -> None:
    """Make folders in each other, as a process in them does: the innermost path may be too long for the kernel."""
    script = (
        f"import os\nfor _ in range({depth}):\n    os.mkdir({name!r})\n    os.chdir({name!r})\n"
        "open('file', 'x').close()"
    )
    subprocess.run([sys.executable, "-S", "-c", script], cwd=folder, check=True)


@pytest.mark.parametrize(("name", "depth"), [("x" * 200, 60), ("d", 1500)])
def test_folders_of_any_depth_are_removed(folder: Path, name: str, depth: int) -> None:
    gone = folder / "gone"
    gone.mkdir()
    (gone / "beside").write_text("x")
    make_deep(gone, name, depth)
    remove_tree(gone)
    assert not os.path.lexists(gone)


def test_the_size_of_a_folder_is_known_at_any_depth_that_has_a_path(folder: Path) -> None:
    make_deep(folder, "d", 1500)
    with (folder / "file").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, MIB)
    assert MIB < stored_bytes(folder) < 16 * MIB
    make_deep(folder, "x" * 200, 60)
    with pytest.raises(OSError, match="File name too long"):
        stored_bytes(folder)


def test_the_size_of_a_folder_is_known_although_a_part_of_it_may_not_be_read(folder: Path) -> None:
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    with as_nobody():
        for name, mode in (("listed", 0o400), ("entered", 0o100), ("closed", 0)):
            (folder / name).mkdir()
            (folder / name / "file").write_bytes(b"x" * MIB)
            (folder / name).chmod(mode)
        (folder / "file").write_bytes(b"x" * MIB)
        assert MIB <= stored_bytes(folder) < 2 * MIB
