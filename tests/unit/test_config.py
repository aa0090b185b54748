"""Any ``thawd.toml``: how a file is read, and how mistakes of every kind are reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.privileges import as_nobody
from tests.unit.config_files import HELLO, load, mistakes, only_mistake
from thawd import config
from thawd.errors import ConfigurationError
from thawd.resources import Function


def test_the_smallest_file_gets_every_default(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO)

    assert settings.path == tmp_path / "thawd.toml"
    assert settings.server == config.ServerSettings(data=tmp_path / ".thawd")
    assert settings.functions == {"hello": Function(name="hello", handler="hello.handler", code=tmp_path)}
    assert (settings.buckets, settings.tables, settings.routes) == ({}, {}, ())


def test_reading_makes_no_folder(tmp_path: Path) -> None:
    load(tmp_path, HELLO + "[buckets.uploads]\n[tables.labels]\n")

    assert [entry.name for entry in tmp_path.iterdir()] == ["thawd.toml"]


def test_every_mistake_is_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """
[server]
prot = 80
[functions.classify]
handler = "classify"
memory_mb = 96
requirements = "requirments.txt"
on_success = "table:lables"
[buckets.uploads]
notify = [{ function = "clasify" }]
[routes]
"POST /classify" = "nobody"
[tables.labels]
[tabels.more]
"""

    problems = mistakes(tmp_path, text)

    assert [problem.key for problem in problems] == [
        "server.prot",
        "functions.classify.handler",
        "functions.classify.memory_mb",
        "functions.classify.requirements",
        "functions.classify.on_success",
        "buckets.uploads.notify[0].function",
        'routes."POST /classify"',
        "tabels",
    ]
    assert {problem.file for problem in problems} == {str(tmp_path / "thawd.toml")}


def test_a_mistake_tells_what_was_found_and_what_is_allowed(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, HELLO + "memory_mb = 96")

    assert str(problem) == (
        f"{tmp_path}/thawd.toml: functions.hello.memory_mb: found 96; allowed: a whole number from 128 to 10240"
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('memory_mb = "512"', 'the text "512"'),
        ("memory_mb = true", "true"),
        ("memory_mb = 512.0", "512.0"),
        ("memory_mb = 10241", "10241"),
        ("memory_mb = [512]", "a list of 1"),
        ("memory_mb = { mb = 512 }", "a table"),
        ("memory_mb = 2024-01-01", "the date or time 2024-01-01"),
        ("timeout_s = 0", "0"),
        ("timeout_s = 901", "901"),
        ("idle_timeout_s = nan", "nan"),
        ("idle_timeout_s = inf", "inf"),
        ("idle_timeout_s = true", "true"),
        ('snapshot = "yes"', 'the text "yes"'),
        ("snapshot = 1", "1"),
        ("prime = 1", "the number 1"),
        ('prime = ""', '""'),
        ("prime = []", "an empty list"),
        ("python = 3.11", "the number 3.11"),
        ('python = "3.8"', '"3.8"'),
        ('python = "3.15"', '"3.15"'),
        ('python = ""', '""'),
        ("maximum_retry_attempts = 3", "3"),
        ("maximum_event_age_s = 59", "59"),
        ("reserved_concurrency = -1", "-1"),
        ('on_success = "labels"', '"labels"'),
        ('on_failure = "queue:x"', '"queue:x"'),
    ],
)
def test_a_value_of_the_wrong_kind_or_range_is_refused(tmp_path: Path, line: str, found: str) -> None:
    problem = only_mistake(tmp_path, HELLO + line)

    assert problem.key == "functions.hello." + line.split(" ", maxsplit=1)[0]
    assert problem.found == found


@pytest.mark.parametrize("name", ["functions", "buckets", "tables", "routes", "server"])
def test_a_section_that_is_no_table_is_told(tmp_path: Path, name: str) -> None:
    rest = "" if name == "functions" else HELLO

    assert [problem.key for problem in mistakes(tmp_path, f"{name} = 3\n{rest}")] == [name]


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        (HELLO + "memroy_mb = 256", "functions.hello.memroy_mb", '"memory_mb" (did you mean that?)'),
        (HELLO + "[sever]\n", "sever", '"server" (did you mean that?)'),
        (HELLO + "on_failure = 'bucket:faild'\n[buckets.failed]", "functions.hello.on_failure", '"bucket:failed" (did'),
        (HELLO + "[routes]\n'GET /x' = 'Hello'", 'routes."GET /x"', '"hello" (did you mean that?)'),
        (HELLO + "[routes]\n'get /x' = 'hello'", 'routes."get /x"', '"GET" (did you mean that?)'),
        (HELLO + "[routes]\n'GET /x' = 'zzz'", 'routes."GET /x"', "one of the functions of this file: hello"),
        (
            HELLO + "[buckets.inn]\nnotify = [{ function = 'hello', events = ['s3:ObjectCreated:Putt'] }]",
            "buckets.inn.notify[0].events[0]",
            '"s3:ObjectCreated:Put" (did you mean that?)',
        ),
    ],
)  # fmt: skip
def test_a_misspelt_name_is_told_with_the_closest_one(tmp_path: Path, text: str, key: str, suggestion: str) -> None:
    problem = only_mistake(tmp_path, text)

    assert problem.key == key
    assert problem.allowed.startswith(suggestion)


@pytest.mark.parametrize("section", ["functions", "buckets", "tables"])
@pytest.mark.parametrize("name", ["a b", "ü" * 5, "x" * 300, "a/b"])
def test_names_outside_the_character_sets_are_refused(tmp_path: Path, section: str, name: str) -> None:
    handler = "handler = 'a.b'" if section == "functions" else ""
    text = f'[{section}."{name}"]\n{handler}\n' + (HELLO if section != "functions" else "")

    first = mistakes(tmp_path, text)[0]

    assert first.key == f'{section}."{name}"' or name == "x" * 300
    assert first.found.startswith('the name "')


def test_values_of_secrets_are_never_shown(tmp_path: Path) -> None:
    text = "[server]\nkey = 'hunter2'\n" + HELLO + "environment = { TOKEN = 31337, 1X = 'hunter3' }"

    told = "\n".join(map(str, mistakes(tmp_path, text, environ={"THAWD_KEY": "hunter 4"})))

    assert not re.search("hunter|31337", told)
    assert "server.key" in told and "environment.TOKEN" in told and "THAWD_KEY" in told


# Files that are not a configuration


def test_an_empty_file_tells_what_the_smallest_one_holds(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, "")

    assert (problem.key, problem.found) == ("", "nothing")
    assert '[functions.hello] with handler = "hello.handler"' in problem.allowed


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[functions.f]\nhandler = \n", "line 2, column 11"),
        ("[functions.f]\nhandler = 'a.b'\nhandler = 'c.d'\n", "line 3, column"),
        ("[functions.f", "its end (line 1)"),
        ('a = """\n\nx', "its end (line 3)"),
        ("a = 2024-13-45\n", "line 1, column"),
    ],
)
def test_broken_toml_is_told_with_line_and_column(tmp_path: Path, text: str, where: str) -> None:
    assert only_mistake(tmp_path, text).found.startswith(f"broken TOML at {where}")


@pytest.mark.parametrize("line", ["key = hunter2-hunter2", 'key = "hunter2-hunter2'])
def test_a_message_about_broken_toml_does_not_repeat_a_value_which_may_be_a_secret(tmp_path: Path, line: str) -> None:
    found = only_mistake(tmp_path, f"[server]\n{line}\n").found
    assert "quote" in found
    assert "hunter2" not in found


def test_a_number_too_long_to_read_is_told(tmp_path: Path) -> None:
    assert only_mistake(tmp_path, "port = " + "9" * 5000).found.startswith("broken TOML: Exceeds the limit")


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"a = 1\n# gr\xf6\xdfe\n")
    deep = tmp_path / "deep.toml"
    deep.write_text("a = " + "[" * 100_000)

    def found(path: Path) -> str:
        with pytest.raises(ConfigurationError) as refused:
            config.load(path, environ={})
        [problem] = refused.value.problems
        assert problem.file == str(path)
        return problem.found

    assert found(tmp_path / "thawd.toml") == "no such file"
    assert found(tmp_path) == "a folder"
    assert found(Path("/dev/null")) == "a device, pipe or socket"
    assert found(latin) == "a byte that is not UTF-8 on line 2 (0xf6)"
    assert found(deep) == "lists or tables nested hundreds of levels deep"
    assert found(tmp_path / "thawd.toml" / "x") == "no such file"
    assert found(tmp_path / ("x" * 300)) == "a file that cannot be read (File name too long)"


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "thawd.toml"
    file.write_text(HELLO)
    file.chmod(0)

    with as_nobody(), pytest.raises(ConfigurationError, match=r"cannot be read \(Permission denied\)"):
        config.load(file, environ={})


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "thawd.toml").write_bytes(b"\xef\xbb\xbf" + HELLO.encode())

    assert config.load(tmp_path / "thawd.toml", environ={}).functions
