"""Claims about `thawd.cli.program`, the outermost command."""

from __future__ import annotations

import signal

from click.testing import CliRunner

from thawd.cli.program import main


def test_a_command_that_a_program_calls_leaves_the_programs_signals_as_they_are() -> None:
    before = signal.getsignal(signal.SIGPIPE)
    assert CliRunner().invoke(main, ["--help"]).exit_code == 0
    assert signal.getsignal(signal.SIGPIPE) is before
