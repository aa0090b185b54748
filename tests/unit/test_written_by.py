"""Which thawd has used a data folder, for the messages of older ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from thawd import __version__
from thawd.errors import StoreError
from thawd.stores import written_by
from thawd.stores.database import Database
from thawd.stores.schema import MIGRATIONS, open_state

pytestmark = pytest.mark.in_memory


def test_an_older_thawd_names_the_file_the_version_that_wrote_it_and_two_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "thawd.db"
    monkeypatch.setattr(written_by, "__version__", "0.11.0")
    open_state(file).close()
    monkeypatch.undo()
    with pytest.raises(StoreError) as refused:
        Database(file, migrations=MIGRATIONS[:-1])
    text = str(refused.value)
    assert text.startswith(f"{file} was written by a newer thawd, 0.11.0 (schema version {len(MIGRATIONS)}; ")
    assert f"this is thawd {__version__}" in text
    assert "use the newer thawd" in text
    assert "restore a backup with `thawd restore`" in text


def test_an_older_thawd_does_not_replace_the_note_of_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, noted in (
        ("0.9.0", "0.9.0"),
        ("0.10.0", "0.10.0"),
        ("0.9.1", "0.10.0"),
        ("0.11.0.dev1", "0.11.0.dev1"),
    ):
        monkeypatch.setattr(written_by, "__version__", version)
        written_by.note(tmp_path)
        assert written_by.newest(tmp_path) == noted


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"1", b"\x1b[31m", b"9" * 5000])
def test_a_note_that_is_no_version_is_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "newest-thawd").write_bytes(content)
    assert written_by.newest(tmp_path) is None
    assert written_by.newer(tmp_path) == "a newer thawd"
    written_by.note(tmp_path)
    assert written_by.newest(tmp_path) == __version__


def test_a_folder_that_cannot_be_written_gets_no_note(tmp_path: Path) -> None:
    written_by.note(tmp_path / "missing")
    assert written_by.newest(tmp_path / "missing") is None
