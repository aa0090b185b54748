"""Claims about `thawd.cli.program`, the outermost command."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from thawd.cli.exits import warn
from thawd.cli.program import main


def test_a_command_that_a_program_calls_leaves_the_programs_signals_as_they_are() -> None:
    before = signal.getsignal(signal.SIGPIPE)
    assert CliRunner().invoke(main, ["--help"]).exit_code == 0
    assert signal.getsignal(signal.SIGPIPE) is before


def test_what_another_machine_says_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    warn("b: \x1b]0;x\x07\x9b31m\rc\nsecond line")
    assert capsys.readouterr().err == "thawd: b: \\x1b]0;x\\x07\\x9b31m\\x0dc\nsecond line\n"


def test_a_variable_that_is_not_utf8_is_refused_without_its_value(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def handler(event, context):\n    return 1\n")
    for option, environ in (("X=secret\udcff", {}), ("X", {"X": "secret\udcff"})):
        result = CliRunner(env=environ).invoke(main, ["run", str(tmp_path / "app.py"), "--env", option])
        assert (result.exit_code, "the variable X is not UTF-8" in result.output) == (2, True)
        assert "secret" not in result.output
