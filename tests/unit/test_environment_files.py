"""``.env`` files: their syntax, and what a function gets from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config_files import HELLO, load, mistakes, only_mistake
from thawd.grammar.environment_files import MOST_BYTES, EnvironmentFileError, parse

SECRET = "canary-3141592653"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("AB=1", "1"),
        ("export AB=1", "1"),
        ("  AB = 1  ", "1"),
        ("AB=", ""),
        ("AB= # nothing", ""),
        ("AB=#1", "#1"),
        ("AB=a b  # two words", "a b"),
        ("AB=a#b", "a#b"),
        ("AB=a=b", "a=b"),
        ("AB=it's", "it's"),
        ("AB='a # b' # a comment", "a # b"),
        ("AB='$HOME \\n'", "$HOME \\n"),
        ("AB='it\\'s'", "it's"),
        ('AB="a\\tb\\n\\"c\\" \\$d \\x"', 'a\tb\n"c" $d \\x'),
        ('AB="two\nlines"', "two\nlines"),
        ("AB=${HOME}`id`", "${HOME}`id`"),
        ("AB=ü", "ü"),
        ("AB=1\r\n", "1"),
        ("\ufeffAB=1", "1"),
        ("AB=1\nAB=2", "2"),
        ("# AB=0\n\n   # more\nAB=1", "1"),
    ],
)
def test_a_line_has_the_value_that_other_tools_read(line: str, value: str) -> None:
    assert {name: each for name, (each, _) in parse(line.encode()).items()} == {"AB": value}


@pytest.mark.parametrize(
    ("content", "line", "found"),
    [
        (f"AB=1\n{SECRET}\n".encode(), 2, "no NAME=value"),
        (f"AB='1\n2'\n\nCD='{SECRET}".encode(), 4, "a ' that is not closed"),
        (f'AB="{SECRET}" {SECRET}'.encode(), 1, 'text after the closing "'),
        (b"AB=1\nCD=\xff" + SECRET.encode(), 2, "bytes that are not UTF-8"),
        (b"AB=1\n\nCD=\x00" + SECRET.encode(), 3, "a NUL character"),
        (b"=1", 1, "no NAME=value"),
        (b"#" * (MOST_BYTES + 1), 1, f"more than {MOST_BYTES} bytes in all"),
    ],
)
def test_a_mistake_has_its_line_and_neither_name_nor_value(content: bytes, line: int, found: str) -> None:
    with pytest.raises(EnvironmentFileError) as refused:
        parse(content)
    assert (refused.value.line, refused.value.found) == (line, found)
    assert SECRET not in repr(refused.value)
    assert refused.value.__cause__ is None


def test_long_lines_and_many_lines_take_no_longer_than_their_length() -> None:
    assert parse(b"AB=" + b" " * 900_000 + b"x" + b" " * 100_000)["AB"] == ("x", 1)
    assert parse(b"AB=1\n" * 200_000)["AB"] == ("1", 200_000)


def test_later_files_override_earlier_ones_and_the_table_overrides_all(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("ONE=a\nTWO=a\nTHREE=a\n")
    (tmp_path / "b.env").write_text("TWO=b\nTHREE=b\n")
    settings = load(tmp_path, HELLO + 'environment_file = ["a.env", "b.env"]\nenvironment = { THREE = "c" }')
    assert settings.functions["hello"].environment == {"ONE": "a", "TWO": "b", "THREE": "c"}
    assert {tmp_path / "a.env", tmp_path / "b.env"} <= settings.not_code()


def test_mistakes_in_files_name_the_file_and_the_line_and_no_value(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"OK={SECRET}\nAWS_REGION={SECRET}\n_X={SECRET}\n")
    found = mistakes(tmp_path, HELLO + 'environment_file = ".env"')
    assert [problem.key for problem in found] == ["functions.hello.environment_file"] * 2
    assert [problem.found for problem in found] == [
        "line 2 of .env: the reserved name AWS_REGION",
        "line 3 of .env: a name that is not allowed",
    ]
    for line in (f"{SECRET}+/==", f"{SECRET}='x"):  # as the last line of a key in Base64
        (tmp_path / ".env").write_text(f"OK={SECRET}\n{line}\n")
        found.append(only_mistake(tmp_path, HELLO + 'environment_file = ".env"'))
        assert found[-1].found.startswith("line 2 of .env: ")
    (tmp_path / ".env").write_text(f"OK={SECRET}\n{SECRET}")
    found.append(only_mistake(tmp_path, HELLO + 'environment_file = ".env"'))
    assert found[-1].found == "line 2 of .env: no NAME=value"
    assert SECRET not in repr(found)


def test_a_file_that_is_missing_or_too_large_for_lambda_is_refused(tmp_path: Path) -> None:
    assert "nothing at" in only_mistake(tmp_path, HELLO + 'environment_file = ".env"').found
    assert "not a regular file" in only_mistake(tmp_path, HELLO + 'environment_file = "."').found
    (tmp_path / ".env").write_text(f"AB={'x' * 4095}")
    assert only_mistake(tmp_path, HELLO + 'environment_file = ".env"').found == "4097 bytes"
    for wrong in ("[]", "7", '["a", 1]', '""'):
        assert "a list of such paths" in only_mistake(tmp_path, HELLO + f"environment_file = {wrong}").allowed
