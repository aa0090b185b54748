"""`thawd.telemetry.logs.selection` and `thawd.cli.times`: which lines of a log are wanted."""

from __future__ import annotations

import re
import time

import click
import pytest

from thawd.cli.log_lines import Layout, LogLine
from thawd.cli.times import moment
from thawd.telemetry.logs.selection import Selection

ONE, TWO = "7010a3f2-0000-4000-8000-000000000001", "8020b4c3-0000-4000-8000-000000000002"
LINES = [
    (b"s1", "INIT_START Runtime Version: python:3.11.7"),
    (b"s1", f"START RequestId: {ONE} Version: $LATEST"),
    (b"s2", f"START RequestId: {TWO} Version: $LATEST"),
    (b"s1", "one prints"),
    (b"s2", "two prints an Error"),
    (b"s1", f"END RequestId: {ONE}"),
    (b"s1", f"REPORT RequestId: {ONE}\tDuration: 1.00 ms"),
    (b"s1", "between invocations"),
    (b"s2", f'{{"type":"platform.report","record":{{"requestId":"{TWO}"}}}}'),
    (b"s2", f'{{"type":"platform.start","record":{{"requestId":"{ONE}"}}}}'),
    (b"s2", "one again"),
]


def _taken(selection: Selection) -> list[str]:
    return [message for stream, message in LINES if selection.take(stream, message.encode())[0]]


def test_the_lines_of_one_request_are_found_by_the_beginning_of_its_id() -> None:
    assert _taken(Selection(request=b"8020")) == [LINES[2][1], "two prints an Error", LINES[8][1]]
    assert _taken(Selection(request=ONE.encode())) == [
        LINES[1][1],
        "one prints",
        LINES[5][1],
        LINES[6][1],
        LINES[9][1],
        "one again",
    ]
    assert _taken(Selection(pattern=re.compile(b"(?i)error"))) == ["two prints an Error"]
    assert len(_taken(Selection())) == len(LINES)
    selection = Selection()
    ids = [selection.take(stream, message.encode())[1].decode() for stream, message in LINES]
    assert ids == ["", ONE, TWO, ONE, TWO, ONE, ONE, "", TWO, ONE, ONE]


def test_a_line_is_printed_in_each_layout() -> None:
    line = LogLine(b"2026-11-20T10:00:01.250Z", b"2026/11/20/[$LATEST]5a1c99", b"caf\xc3\xa9", ONE.encode())
    assert line.shown(Layout.RAW) == "café"
    assert line.shown(Layout.SHORT) == "10:00:01 5a1c café"
    assert line.shown(Layout.LONG) == "2026-11-20T10:00:01.250Z 2026/11/20/[$LATEST]5a1c99 café"
    assert f'"message": "café", "requestId": "{ONE}"' in line.shown(Layout.JSON)
    assert LogLine.at(1_763_632_801_250, b"s", b"m", b"").time == b"2025-11-20T10:00:01.250Z"


def test_times_are_read_as_people_type_them() -> None:
    now = time.time()
    for text, ago_s in (("30s", 30), ("10m", 600), ("1.5h", 5400), ("2 days ago", 172_800), ("5 minutes", 300)):
        assert abs(now - ago_s - moment(text)) < 5, text
    assert moment("2026-11-20T14:30:00Z") == moment("2026-11-20 14:30") == moment("2026-11-20T15:30+01:00")
    assert moment("09:05") % 86_400 == moment("9:05") % 86_400 == 9 * 3600 + 300
    with pytest.raises(click.UsageError, match="10m"):
        moment("yesterday")
