"""Claims about `thawd.cli.options.check_writable`, which commands call before a long measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.privileges import as_nobody, open_to_all
from thawd.cli.options import check_writable


def is_refused(path: Path) -> bool:
    try:
        with as_nobody():
            check_writable(path)
    except SystemExit:
        return True
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which every user may create files."""
    open_to_all(tmp_path)
    tmp_path.chmod(0o777)
    return tmp_path


def test_an_existing_file_that_is_read_only_is_refused(folder: Path) -> None:
    file = folder / "report.html"
    file.touch()
    file.chmod(0o444)
    assert is_refused(file)
    (folder / "link").symlink_to(file)
    assert is_refused(folder / "link")


def test_an_existing_file_that_is_writable_is_accepted_in_a_folder_that_is_not(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "report.html").touch()
    (inner / "report.html").chmod(0o666)
    inner.chmod(0o555)
    assert not is_refused(inner / "report.html")
    assert is_refused(inner / "other.html")
    assert not is_refused(Path("/dev/null"))


def test_a_new_file_needs_a_folder_that_is_writable(folder: Path) -> None:
    assert not is_refused(folder / "report.html")
    assert is_refused(folder)
    assert is_refused(folder / "none" / "report.html")
    (folder / "link").symlink_to(folder / "none" / "report.html")
    assert is_refused(folder / "link")
