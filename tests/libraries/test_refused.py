"""Libraries that hold something no copy could have: the freeze is refused with the reason, and the process
continues."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.libraries.frozen import PROGRAMS, freeze

REASONS = {
    "loader_workers": "the process has a child process",
    "process_pool": "the process has a child process",
    "shared_memory": "the process has a child process",  # from the resource tracker, which Python starts with it
    "http_server": "a listening socket cannot be frozen, since copies cannot all listen on its port",
}
REASONS_WITHOUT_WAY_OUT = {
    "onnx_telemetry": "unless ORT_DISABLE_TELEMETRY=1 is set",
    "joblib_processes": "the process has a child process",
}

NOTHING_HELD = 77  # exit status with which programs/refused.py reports that


@pytest.mark.parametrize("case", REASONS)
def test_a_process_is_refused_for_what_a_library_holds_and_frozen_once_it_is_let_go(image: Path, case: str) -> None:
    copies = freeze(image, "refused", case)
    assert REASONS[case] in image.with_suffix(".errors").read_text()
    ended = copies.run("one")
    assert (ended.status, ended.said) == (0, "pass\n"), ended.errors


@pytest.mark.parametrize("case", REASONS_WITHOUT_WAY_OUT)
def test_a_refused_process_goes_on_to_its_end(image: Path, tmp_path_factory: pytest.TempPathFactory, case: str) -> None:
    command = [sys.executable, "-B", PROGRAMS / "refused.py", image, case]
    home = tmp_path_factory.mktemp("home")
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HOME": str(home)})
    if ended.returncode == NOTHING_HELD:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    assert REASONS_WITHOUT_WAY_OUT[case] in ended.stderr
