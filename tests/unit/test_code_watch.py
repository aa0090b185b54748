"""Which of the files that have changed `thawd up --watch` and `thawd run` name, and how."""

from __future__ import annotations

from pathlib import Path

import pytest
from watchfiles import Change

from tests.unit.config_files import HELLO, load
from thawd import config
from thawd.config import Settings
from thawd.server import code_watch
from thawd.server.code_watch import named_files


def settings_in(folder: Path, code: str = ".") -> Settings:
    """The configuration in a folder, with one function, whose code is in the folder `code`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / code / "app.py").write_text("def handler(event, context): ...\n")
    file = folder / "thawd.toml"
    file.write_text(f'[functions.app]\nhandler = "app.handler"\ncode = "{code}"\n')
    return config.load(file, environ={})


@pytest.mark.parametrize("first", [Change.added, Change.deleted, Change.modified])
@pytest.mark.parametrize("temporary", ["sedAbCd12", "4913"])
def test_files_that_editors_make_for_a_moment_are_not_named(tmp_path: Path, temporary: str, first: Change) -> None:
    settings = settings_in(tmp_path)
    changed = {str(tmp_path / temporary): first, str(tmp_path / "app.py"): Change.added}
    assert named_files(changed, settings) == "app.py"


def test_a_file_that_was_deleted_is_named_if_nothing_else_changed(tmp_path: Path) -> None:
    assert named_files({str(tmp_path / "old.py"): Change.deleted}, settings_in(tmp_path)) == "old.py"
    assert not named_files({str(tmp_path / "4913"): Change.added}, settings_in(tmp_path))


def test_code_outside_the_configurations_folder_is_named_from_its_own_folder(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / ".thawd" / "run", "../..")  # where `thawd run` writes its configuration
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.py").touch()
    changed = {str(tmp_path / "parts" / "a.py"): Change.modified, str(settings.path): Change.modified}
    assert named_files(changed, settings) == "thawd.toml, parts/a.py"
    as_watched = {f"{settings.path.parent}/../../app.py": Change.modified}
    assert named_files(as_watched, settings) == "app.py"


def test_files_whose_names_begin_as_the_data_folders_does_are_watched(tmp_path: Path) -> None:
    is_code = code_watch._CodeFilter(load(tmp_path, HELLO))
    assert is_code(Change.added, str(tmp_path / ".thawdignore"))
    assert not is_code(Change.added, str(tmp_path / ".thawd" / "lock"))
