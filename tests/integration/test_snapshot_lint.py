"""`thawd snapshot lint`, as users run it before they allow snapshots for a function."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import prestarted

DEADLINE_S = 300
TROUBLED = """
import datetime, random
generator = random.Random(7)
started = datetime.datetime.now()

def handler(event, context):
    return generator.random()
"""
MANY = """
import random
generators = [random.Random(number) for number in range(1000)]

def handler(event, context):
    return 1
"""
SOUND = "def handler(event, context):\n    return 1\n"
HOOKED = """
import socket
from snapshot_restore_py import register_before_snapshot
connection = socket.create_server(("127.0.0.1", 0))

@register_before_snapshot
def close():
    connection.close()

def handler(event, context):
    return 1
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    code = {
        "troubled": TROUBLED,
        "sound": SOUND,
        "hooked": HOOKED,
        "many": MANY,
        "broken": "raise ValueError('no model')\n",
    }
    for name, source in code.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(source)
    (tmp_path / "thawd.toml").write_text(
        "".join(f'[functions.{name}]\ncode = "{name}"\nhandler = "app.handler"\n' for name in code)
    )
    return tmp_path


def lint(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thawd", "snapshot", "lint", *arguments]
    return prestarted.run(command, cwd=project, capture_output=True, text=True, timeout=DEADLINE_S)


def test_a_generator_and_a_time_captured_at_import_are_found_with_the_way_out(project: Path) -> None:
    done = lint(project, "troubled")
    assert done.returncode == 1
    assert "TS001 warning: app.generator" in done.stdout
    assert "app.started" in done.stdout
    assert "after-restore hook" in done.stdout


def test_a_sound_function_passes(project: Path) -> None:
    done = lint(project, "sound")
    assert (done.returncode, done.stdout) == (0, "sound: nothing found\n")


def test_what_a_before_snapshot_hook_closes_is_not_found(project: Path) -> None:
    done = lint(project, "hooked", "--json")
    assert [one for one in json.loads(done.stdout)["hooked"] if one["level"] == "warning"] == []


def test_a_function_that_does_not_load_is_told(project: Path) -> None:
    done = lint(project, "broken")
    assert done.returncode == 1
    assert "broken cannot be checked, because its init phase failed: no model" in done.stderr
    assert "ValueError" in done.stderr, "the traceback is shown"


def test_an_unknown_function_is_told_with_the_known_ones(project: Path) -> None:
    done = lint(project, "other")
    assert done.returncode == 1
    assert "there is no function 'other'; functions: broken, hooked, many, sound, troubled" in done.stderr


def test_a_report_may_be_larger_than_what_a_socket_holds(project: Path) -> None:
    done = lint(project, "many")
    assert done.stdout.count("TS001 warning: app.generators[") == 1000, done.stderr
