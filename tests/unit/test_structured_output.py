"""`thawd.telemetry.structured_output`, `line_writer` and `journal`: what a server prints for machines."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thawd.telemetry import console
from thawd.telemetry.journal import Journal, encoded
from thawd.telemetry.line_writer import LineWriter
from thawd.telemetry.structured_output import ChildOutput, JournalEntries, JsonLines

_ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe: its ends for reading and writing."""
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_a_record_is_one_line_of_json_with_a_time_in_milliseconds(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    lines = JsonLines(writing, writing)
    text = "a\nb \x1b \x7f \x9b1A \udcff"
    lines.write("info", text, {"n": 1, "missing": None, "path": Path("/x")}, at_s=1_700_000_000.0625)
    written = os.read(reading, 10_000)
    assert written.count(b"\n") == 1
    assert not any(byte in written for byte in (b"\x1b", b"\x7f", b"\xc2\x9b"))
    assert json.loads(written) == {
        "time": "2023-11-14T22:13:20.062Z",
        "level": "info",
        "message": text.replace("\udcff", "?"),
        "n": 1,
        "path": "/x",
    }


def test_problems_go_to_standard_error(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    lines = JsonLines(os.open(os.devnull, os.O_WRONLY), writing)
    lines.write("info", "out", {})
    lines.write("warning", "err", {}, is_problem=True)
    assert json.loads(os.read(reading, 10_000))["message"] == "err"


def test_a_reader_that_does_not_read_delays_nobody_and_learns_what_it_missed(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter(most_bytes=200_000)
    lines = JsonLines(writing, writing, writer=writer)
    writer.start()
    written = [lines.write("info", "0 " + "x" * 100_000, {}) is not None]
    while select.select([], [writing], [], 0)[1]:  # the writer fills the pipe with the first line, and then waits
        time.sleep(0.001)
    written += [lines.write("info", f"{number} " + "x" * 10_000, {}) is not None for number in range(1, 200)]
    assert written[0]
    assert not written[-1]
    assert not lines.has_room
    read: list[bytes] = []

    def drain() -> None:
        with os.fdopen(os.dup(reading), "rb") as stream:
            while (line := stream.readline()) and b'"end"' not in line:
                read.append(line)

    draining = threading.Thread(target=drain)
    draining.start()
    deadline = threading.Event()
    while not lines.has_room:
        deadline.wait(0.001)
    lines.write("info", "end", {})
    draining.join()
    records = [json.loads(line) for line in read]
    assert [each["message"].split()[0] for each in records[:-1]] == [str(n) for n in range(sum(written))]
    assert records[-1]["lines"] == written.count(False)
    writer.stop(60)


def test_a_stop_does_not_wait_for_a_reader_that_never_reads(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LineWriter()
    writer.start()
    assert writer.write(writing, b"x" * 500_000)
    writer.stop(0.01)
    assert not writer.write(writing, b"y")  # in this thread it would block for ever
    left = 500_000  # lets the thread end before its descriptor is closed
    while left:
        left -= len(os.read(reading, left))


def test_lines_of_a_pipe_without_a_reader_are_dropped() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    lines = JsonLines(writing, writing)
    assert lines.write("info", "nobody", {}) is None
    os.close(writing)


def test_lines_of_child_processes_become_records() -> None:
    records: list[Any] = []
    output = ChildOutput(lambda level, text, fields: records.append((level, text)))
    program = "import sys; sys.stderr.write('one\\n\\ntwo')"
    subprocess.run([sys.executable, "-c", program], stderr=output.descriptor, check=True)
    output.close(60)
    assert records == [("warning", "one"), ("warning", "two")]


_PROGRAM = """
import logging, sys, threading, warnings
import click
from thawd.telemetry import console
console.use({form!r}, journal={journal!r})
console.say("  function  f   thaw", url="http://x")
console.complain("thawd: f: init failed\\n  File app.py\\n  line")
console.redact_with(lambda text: text.replace("hunter2", "[redacted]"))
console.complain("thawd: the password is hunter2", field="hunter2")
click.echo("thawd: a mistake", err=True)
print("printed"); print("with", "parts", end=""); sys.stdout.flush()
logging.getLogger("asyncio").error("never retrieved", exc_info=ValueError("logged"))
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()
raise KeyError("uncaught")
"""


def _printed(form: str, journal: str | None = None) -> subprocess.CompletedProcess[str]:
    program = _PROGRAM.format(form=form, journal=journal)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_nothing_but_json_comes_out_of_a_process() -> None:
    done = _printed("json")
    out, err = ([json.loads(line) for line in text.splitlines()] for text in (done.stdout, done.stderr))
    assert [(each["level"], each["message"]) for each in out] == [
        ("info", "function f thaw"),
        ("info", "printed"),
        ("info", "with parts"),
    ]
    assert out[0]["url"] == "http://x"
    failed, secret, echoed, logged, warned, thread, uncaught = err
    assert (failed["message"], failed["details"]) == ("f: init failed", "  File app.py\n  line")
    assert (secret["message"], secret["field"]) == ("the password is [redacted]", "[redacted]")
    assert (echoed["level"], echoed["message"]) == ("error", "a mistake")
    assert (logged["message"], logged["logger"]) == ("never retrieved", "asyncio")
    assert logged["traceback"].endswith("ValueError: logged")
    assert "UserWarning: old" in warned["message"]
    assert "ZeroDivisionError" in thread["traceback"]
    assert uncaught["message"] == "something failed inside thawd: KeyError: 'uncaught'"
    assert uncaught["traceback"].startswith("Traceback (most recent call last)")


def test_a_console_of_records_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_sink", JsonLines(1, 2))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not console.is_terminal()
    assert console.coloured("x", "red") == "x"


def test_an_entry_of_the_journal_has_names_and_values() -> None:
    assert encoded({"MESSAGE": "one", "TWO": "a\nb"}) == b"MESSAGE=one\nTWO\n\x03\0\0\0\0\0\0\0a\nb\n"
    with pytest.raises(AssertionError):
        encoded({"_PID": "1"})  # the journal would take it for one of its own


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket in the place of the journal's, and its path."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(path)
        receiving.settimeout(60)
        yield receiving, path


@pytest.fixture
def entries(tmp_path: Path) -> Iterator[JournalEntries]:
    """A sink of entries, for the socket of `journald`."""
    with contextlib.closing(Journal(str(tmp_path / "socket"))) as journal:
        yield JournalEntries(journal, stderr=2)


def _fields(entry: bytes) -> dict[str, str]:
    """Read an entry as the journal does. Source: systemd.io/JOURNAL_NATIVE_PROTOCOL."""
    fields, rest = {}, entry
    while rest:
        name, _, rest = rest.partition(b"\n")
        if b"=" in name:
            name, _, value = name.partition(b"=")
        else:
            size = int.from_bytes(rest[:8], "little")
            value, end, rest = rest[8 : 8 + size], rest[8 + size : 9 + size], rest[9 + size :]
            assert end == b"\n"
        fields[name.decode()] = value.decode()
    return fields


def test_records_become_entries_of_the_journal_with_their_fields(
    journald: tuple[socket.socket, str], entries: JournalEntries
) -> None:
    receiving, _ = journald
    fields = {"function": "f", "status": 500, "version": None, "traceback": "  File x\n    1 / 0"}
    assert entries.write("error", "f GET /d 500", fields, at_s=1_700_000_000.0) is not None
    assert _fields(receiving.recv(10_000)) == {
        "MESSAGE": "f GET /d 500\n  File x\n    1 / 0",
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "thawd",
        "THAWD_FUNCTION": "f",
        "THAWD_STATUS": "500",
        "THAWD_TRACEBACK": "  File x\n    1 / 0",
        "THAWD_TIME": "2023-11-14T22:13:20.000Z",
    }


def test_an_entry_that_is_too_large_for_a_datagram_is_sent_as_a_sealed_file(
    journald: tuple[socket.socket, str], entries: JournalEntries
) -> None:
    receiving, _ = journald
    trace = "x" * 3_000_000
    entries.write("error", "large", {"traceback": trace})
    data, rights, _, _ = receiving.recvmsg(10_000, socket.CMSG_SPACE(4))
    assert data == b""
    (descriptor,) = array.array("i", rights[0][2])
    with os.fdopen(descriptor, "rb") as file:
        assert fcntl.fcntl(file, fcntl.F_GET_SEALS) == _ALL_SEALS
        file.seek(0)
        assert _fields(file.read())["THAWD_TRACEBACK"] == trace


def test_a_journal_that_is_busy_delays_nobody_and_learns_what_it_missed(
    journald: tuple[socket.socket, str], entries: JournalEntries
) -> None:
    receiving, _ = journald
    dropped = 0
    while not dropped:
        dropped += entries.write("info", "x", {}) is None
    dropped += entries.write("info", "x", {}) is None
    receiving.recv(10_000)
    assert entries.write("info", "last", {}) is not None
    last = {}
    while last.get("MESSAGE") != "last":
        last = _fields(receiving.recv(10_000))
    assert last["THAWD_LOST_ENTRIES"] == str(dropped)


def test_entries_go_to_standard_error_while_the_journal_is_away(tmp_path: Path, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    path = tmp_path / "socket"
    with (
        contextlib.closing(Journal(str(path))) as journal,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving,
    ):
        entries = JournalEntries(journal, writing)
        entries.write("info", "one", {})
        entries.write("info", "two", {})
        first, *rest = os.read(reading, 10_000).decode().splitlines()
        assert "systemd's journal takes no entries" in first
        assert rest == ["one", "two"]
        receiving.bind(str(path))
        entries.write("info", "three", {})
        assert _fields(receiving.recv(10_000))["MESSAGE"] == "three"


def test_everything_that_a_process_prints_goes_to_the_journal(journald: tuple[socket.socket, str]) -> None:
    receiving, path = journald
    done = _printed("journald", path)
    assert (done.stdout, done.stderr) == ("", "")
    receiving.setblocking(False)
    entries = []
    while True:
        try:
            entries.append(_fields(receiving.recv(100_000)))
        except BlockingIOError:
            break
    assert [each["PRIORITY"] for each in entries] == ["6", "4", "4", "3", "6", "6", "3", "3", "3", "3"]
    assert entries[1]["MESSAGE"] == "f: init failed\n  File app.py\n  line"
    assert entries[2]["THAWD_FIELD"] == "[redacted]"


def test_without_a_journal_text_goes_to_standard_error_and_a_line_says_so(tmp_path: Path) -> None:
    done = _printed("journald", str(tmp_path / "none"))
    assert done.stdout == ""
    assert done.stderr.startswith(
        f"thawd: there is no journal at {tmp_path}/none; lines go to standard error as text\n"
    )
    assert "  function  f   thaw\n" in done.stderr


def test_a_process_without_standard_streams_writes_into_no_other_file(tmp_path: Path) -> None:
    program = (
        "import os\nos.close(1), os.close(2)\nimport sys\nsys.stdout = sys.stderr = None\n"
        "file = os.open('others', os.O_CREAT | os.O_WRONLY)\nassert file in (1, 2)\n"
        "from thawd.telemetry import console\nconsole.use('json')\n"
        "console.say('a line')\nconsole.complain('a problem')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0
    assert (tmp_path / "others").read_bytes() == b""
