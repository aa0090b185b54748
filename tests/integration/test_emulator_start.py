"""The emulator's process is started before the server needs it, and does not outlive a server that does not start."""

from __future__ import annotations

import os
from pathlib import Path

from thawd.server.emulator.spawning import EmulatorProcess


def test_a_process_of_the_emulator_that_is_not_used_ends_and_touches_no_folder(tmp_path: Path) -> None:
    process = EmulatorProcess({**os.environ, "HOME": str(tmp_path)}, for_stacks=True)
    assert process.popen.stdin is not None
    process.popen.stdin.close()  # as when the server's process ends
    assert process.popen.wait(60) == 0
    assert list(tmp_path.iterdir()) == []
    assert process.popen.stdout is not None
    process.popen.stdout.close()


def test_a_process_of_the_emulator_serves_the_folder_that_it_is_told(tmp_path: Path) -> None:
    process = EmulatorProcess(os.environ, for_stacks=False)
    process.use(tmp_path / "aws")
    process.discard()  # it is used, so this has no effect
    assert process.popen.stdin is not None
    assert process.popen.stdout is not None
    with process.popen.stdin, process.popen.stdout:
        assert int(process.popen.stdout.readline()) > 0
        assert (tmp_path / "aws").is_dir()
    assert process.popen.wait(60) == 0
