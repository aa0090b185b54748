"""What `thawd up --log-format` prints: JSON, entries of systemd's journal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from .conftest import DEADLINE_S, ECHO, Project, Running, eventually

CODE = """
def handler(event, context):
    raise ValueError("no " + event["password"])
"""
CONFIG = """
[functions.f]
handler = "app.handler"
[functions.broken]
handler = "nothing.handler"
[routes]
"GET /d" = "f"
"""


def _records(running: Running) -> list[dict[str, Any]]:
    return [json.loads(line) for line in list(running.output)]


def _find(running: Running, **wanted: Any) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        return [each for each in _records(running) if wanted.items() <= each.items()]

    return eventually(found, what=f"a record with {wanted}")[0]


def test_a_server_prints_nothing_but_json_from_its_start_to_its_end(project: Project) -> None:
    project.code(CODE)
    project.config(CONFIG)
    with project.up("--log-format", "json") as running:
        assert _find(running, message=f"thawd serves {running.url}")["url"] == running.url
        assert "see: thawd logs broken" in _find(running, level="warning", message=_FAILED)["details"]
        assert running.invoke("f", {"password": "hunter2"})[1] == "Unhandled"
        record = _find(running, event="invocation", function="f")
        assert record["error_message"] == "no [redacted]"
        assert record["traceback"].startswith('  File "app.py", line 3, in handler')
        assert record["max_memory_used_mb"] > 0
        assert record["billed_ms"] >= 1
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{running.url}/none", timeout=DEADLINE_S)
        assert _find(running, event="request")["source"] == "GET /none"
        running.process.send_signal(signal.SIGHUP)
        _find(running, message="configuration reloaded")
        project.config(CONFIG + "[oops]\n")
        running.process.send_signal(signal.SIGHUP)
        assert "oops" in _find(running, message="the configuration was not reloaded:")["details"]
        project.config(CONFIG)
    assert _records(running)[-1]["message"] == "stopped"


_FAILED = "broken: init failed: Runtime.ImportModuleError: Unable to import module 'nothing': No module named 'nothing'"


@pytest.mark.parametrize("mistake", ["port", "value", "folder", "options"])
def test_a_start_that_fails_says_why_in_json(echo: Project, mistake: str) -> None:
    extra: tuple[str, ...] = ()
    if mistake == "value":
        echo.config('prot = 1\n[functions.app]\nhandler = "app.handler"\n')
        wanted = "1 mistake in the configuration"
    elif mistake == "folder":
        (echo.root / ".thawd").write_text("a file in the way")
        wanted = ".thawd"
    elif mistake == "options":
        extra, wanted = ("--aws", "--aws-real"), "--aws and --aws-real exclude each other"
    else:
        extra, wanted = ("--ready-file", "/none/ready.json"), "the ready file /none/ready.json cannot be written"
    done = echo.command("up", "--log-format", "json", "--port", "0", *extra)
    assert done.returncode != 0
    records = [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]
    assert any(each["level"] == "error" and wanted in each["message"] + each.get("details", "") for each in records)


def test_a_server_whose_output_nobody_reads_serves_and_stops(echo: Project) -> None:
    reading, writing = os.pipe()
    ready = echo.root / "ready.json"
    command = [sys.executable, "-m", "thawd", "up", "--log-format", "json", "--port", "0", "--ready-file", str(ready)]
    process = subprocess.Popen(command, cwd=echo.root, stdout=writing, stderr=writing)
    try:
        os.close(writing)
        eventually(ready.exists)
        url = json.loads(ready.read_text())["url"]
        path = "x" * 4000
        for _ in range(60):
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(f"{url}/{path}", timeout=DEADLINE_S)
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)


def test_a_child_process_of_the_server_prints_json_too(echo: Project) -> None:
    emulated = echo.root / "moto"
    emulated.mkdir()
    # The emulator's process imports this first, and prints what no part of thawd has formatted.
    (emulated / "sitecustomize.py").write_text(
        "import sys\nif 'thawd.server.emulator.moto_program' in ' '.join(sys.orig_argv):\n"
        "    print('raw words', file=sys.stderr)\n"
    )
    with echo.up("--aws", "--log-format", "json", environ={"PYTHONPATH": str(emulated)}) as running:
        assert _find(running, message="raw words")["level"] == "warning"


_JOURNALD = Path("/lib/systemd/systemd-journald")
_WITH_JOURNAL = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/log/journal/$(cat /etc/machine-id)
{journald} & journal=$! server=$journal
trap 'kill $journal $server 2> /dev/null' EXIT
timeout 30 sh -c 'until [ -S /run/systemd/journal/socket ]; do sleep 0.02; done' || exit 77
{python} -m thawd up --log-format journald --port 0 --ready-file ready.json --ready-when published & server=$!
timeout 60 sh -c 'until [ -s ready.json ]; do sleep 0.02; done'
{python} -m thawd invoke f -p '{{"password": "hunter2"}}' > answer || true
kill $server
wait $server
journalctl --sync
journalctl -D /run/log/journal -t thawd -o json > entries
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not _JOURNALD.exists() or shutil.which("unshare") is None,
    reason="needs root, systemd-journald and unshare",
)
def test_a_real_journal_takes_the_entries(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\n')
    script = _WITH_JOURNAL.format(journald=_JOURNALD, python=sys.executable)
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script],
        cwd=project.root,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode == 77 or (done.returncode and "mount" in done.stderr):
        pytest.skip(f"no private journal: {done.stderr}")
    assert done.returncode == 0, done.stderr
    entries = [json.loads(line) for line in (project.root / "entries").read_text().splitlines()]
    (failed,) = [each for each in entries if each.get("THAWD_EVENT") == "invocation"]
    assert (failed["PRIORITY"], failed["THAWD_FUNCTION"], failed["THAWD_ERROR_TYPE"]) == ("3", "f", "ValueError")
    assert 'app.py", line 3, in handler' in failed["THAWD_TRACEBACK"]
    assert "hunter2" not in (project.root / "entries").read_text()
    assert entries[-1]["MESSAGE"] == "stopped"
    assert done.stdout == ""


def test_thawd_run_prints_json_too(echo: Project) -> None:
    (echo.root / "thawd.toml").unlink()
    echo.code(ECHO)
    with echo.up("--log-format", "json", "--port", "0", command=("run", "app.py")) as running:
        _find(running, message=f"thawd serves {running.url}")
    assert len(_records(running)) == len(running.output)
