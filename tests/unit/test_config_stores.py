"""The buckets and tables of ``thawd.toml``: names, notifications, paths, and folders that must not overlap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.config_files import HELLO, load, mistakes, only_mistake


@pytest.mark.parametrize("name", ["Uploads", "ab", "a..b", "-ab", "ab-", "192.168.0.1", "a_b"])
def test_bucket_names_that_s3_refuses_are_refused(tmp_path: Path, name: str) -> None:
    assert only_mistake(tmp_path, HELLO + f'[buckets."{name}"]').found == f'the name "{name}"'


def test_a_table_name_too_long_for_a_file_name_wants_a_path(tmp_path: Path) -> None:
    name = "t" * 250

    assert only_mistake(tmp_path, HELLO + f"[tables.{name}]").found == "a file name of 253 bytes"
    assert load(tmp_path, HELLO + f"[tables.{name}]\npath = 'short.db'").tables[name].path == tmp_path / "short.db"


def test_a_notification_is_told_by_its_place_in_the_list(tmp_path: Path) -> None:
    notify = (
        "[{ function = 'hello' }, { suffix = '.png' }, 3, { function = 'hello', events = [] }, { function = 'hello' }]"
    )

    problems = mistakes(tmp_path, HELLO + f"[buckets.uploads]\nnotify = {notify}")

    assert [(problem.key.removeprefix("buckets.uploads.notify"), problem.found) for problem in problems] == [
        ("[1].function", "nothing"),
        ("[2]", "3"),
        ("[3]", "the same notification again"),
        ("[3].events", "an empty list"),
        ("[4]", "the same notification again"),
    ]


def test_a_prefix_that_no_key_can_have_is_refused(tmp_path: Path) -> None:
    text = HELLO + "[buckets.uploads]\nnotify = [{ function = 'hello', prefix = '/cats' }]"

    assert only_mistake(tmp_path, text).allowed == "a text; keys do not begin with a slash"


@pytest.mark.parametrize(
    ("text", "key", "found"),
    [
        ("[functions.f]\nhandler='a.b'\ncode='nope'", "functions.f.code", "nothing at {}/nope"),
        ("[functions.f]\nhandler='a.b'\ncode='file'", "functions.f.code", "a file at {}/file"),
        (HELLO + "requirements='nope'", "functions.hello.requirements", "nothing at {}/nope"),
        (HELLO + "requirements='sub'", "functions.hello.requirements", "a folder at {}/sub"),
        (HELLO + "[buckets.uploads]\npath='file'", "buckets.uploads.path", "a file at {}/file"),
        (HELLO + "[tables.labels]\npath='sub'", "tables.labels.path", "a folder at {}/sub"),
        ("[server]\ndata='file'\n" + HELLO, "server.data", "a file at {}/file"),
        ("[server]\ndata='.'\n" + HELLO, "server.data", "a folder that contains the code of hello"),
        (HELLO + "requirements='a\\u0000b'", "functions.hello.requirements", ""),
        (HELLO + "code=''", "functions.hello.code", '""'),
    ],
)
def test_paths_that_are_not_what_they_must_be_are_told(tmp_path: Path, text: str, key: str, found: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "sub").mkdir()

    problem = only_mistake(tmp_path, text.replace("'a\\u0000b'", '"a\\u0000b"'))

    assert problem.key == key
    assert problem.found == found.format(tmp_path) or not found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[buckets.one]\npath='.'", "a folder that contains this configuration and the data folder and the code"),
        ("[buckets.one]\npath='.thawd'", "a folder that contains the data folder"),
        ("[buckets.one]\npath='link'", "a folder that contains the code of function other"),
        ("[tables.t]\npath='one/t.db'\n[buckets.one]", "a folder that contains the file of table t"),
        ("[buckets.one]\n[buckets.two]\npath='one'", "{0}/one, which overlaps {0}/one of bucket one"),
        ("[buckets.one]\n[buckets.two]\npath='one/two'", "{0}/one/two, which overlaps {0}/one of bucket one"),
        ("[buckets.one]\npath='a/b'\n[buckets.two]\npath='a'", "{0}/a, which overlaps {0}/a/b of bucket one"),
        ("[buckets.one]\npath='src/../src'", "a folder that contains the code of function other"),
    ],
)
def test_folders_that_may_not_meet_are_told(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "link").symlink_to("src")
    functions = HELLO + "[functions.other]\nhandler='a.b'\ncode='src'\n"

    assert only_mistake(tmp_path, functions + text).found.startswith(found.format(tmp_path))


def test_buckets_beside_each_other_in_the_code_folder_are_fine(tmp_path: Path) -> None:
    assert len(load(tmp_path, HELLO + "[buckets.one]\n[buckets.one-more]\n[buckets.two]\npath='a/b'").buckets) == 3


def test_two_tables_may_not_share_a_file(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, HELLO + "[tables.a]\n[tables.b]\npath='.thawd/tables/a.db'")

    assert (problem.key, problem.found) == ("tables.b.path", "the file of table a")


def test_what_a_server_writes_and_its_configuration_are_no_code(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO + "[buckets.uploads]\n[tables.t]\npath='t.db'")

    names = {path.name for path in settings.not_code()}

    assert names == {"thawd.toml", ".thawd", "uploads", "t.db", "t.db-wal", "t.db-shm", "t.db-journal"}


def test_files_into_which_the_server_prints_are_not_code(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def handler(event, context): 1\n")
    (tmp_path / "thawd.toml").write_text("[functions.f]\nhandler = 'app.handler'\n")
    program = (
        "import sys; from pathlib import Path; from thawd import config; "
        "print(*sorted(path.name for path in config.load(Path('thawd.toml')).not_code()))"
    )
    with (tmp_path / "out.txt").open("w") as out:
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, stdout=out, check=True)
    assert (tmp_path / "out.txt").read_text() == ".thawd out.txt thawd.toml\n"
