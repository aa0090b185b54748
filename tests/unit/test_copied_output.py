"""Which changes of files a watching server ignores because they are its own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from thawd.server.code_watch import ends_with_output
from thawd.telemetry.console import complain, say

LINES = [f"main: republished: up.log changed; built {number} ms, init 7 ms" for number in range(5)]


@pytest.fixture
def copied() -> str:
    """What a program that reads the server's standard output has copied; a problem was printed in between."""
    for line in LINES:
        say(line)
        complain(f"thawd: after {line}")
    return "".join(f"{line}\n" for line in LINES)


@pytest.mark.parametrize("end", ["", "main: republ"])
def test_a_file_that_ends_with_the_servers_lines_is_a_copy_of_its_output(tmp_path: Path, copied: str, end: str) -> None:
    file = tmp_path / "up.log"
    file.write_text("an earlier run\n" + copied + end)
    assert ends_with_output(file)


def test_a_copy_of_a_terminals_session_is_a_copy_too(tmp_path: Path, copied: str) -> None:
    file = tmp_path / "typescript"
    file.write_bytes(b"$ thawd up --watch\r\n" + copied.replace("\n", "\r\n").encode())
    assert ends_with_output(file)


def test_standard_error_may_be_copied_too(tmp_path: Path, copied: str) -> None:
    file = tmp_path / "up.log"
    file.write_text("".join(f"{line}\nthawd: after {line}\n" for line in LINES))
    assert ends_with_output(file)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("app.py", "{copied}"),
        ("labels.txt", "{copied}setosa\n"),
        ("labels.txt", "setosa\n"),
        ("labels.txt", ""),
        ("labels.txt", "setosa\nvirginica\nthawd: after nothing of this process\n"),
    ],
)
def test_other_files_are_none(tmp_path: Path, copied: str, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text.format(copied=copied))
    assert not ends_with_output(file)
    assert not ends_with_output(tmp_path / "missing")
