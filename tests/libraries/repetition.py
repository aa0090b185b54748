"""Thaws many copies of a program, several at a time, and compares their answers with those of a cold process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.libraries.frozen import COPY_DEADLINE_S, OFFLINE, PROGRAMS, Copies, freeze
from tests.libraries.programs.differences import first_difference

THAWS = 50
AT_ONCE = 8
COLD = "cold"


@dataclass(frozen=True, slots=True)
class Said:
    """The output of one process.

    Attributes:
        name: name of the process: ``cold``, or the name of a copy.
        answers: answers by thread, then by input.
        connections: names that the server has for the connections the process used.
    """

    name: str
    answers: Any
    connections: list[Any]


def compare_many(image: Path, program: str, *options: str, python: str = sys.executable) -> list[Said]:
    """Freeze `program`, thaw `THAWS` copies of it, `AT_ONCE` at a time, and compare every answer.

    Returns:
        The output of the cold process, then that of each copy.

    Raises:
        AssertionError: an answer differs from the cold process's, or a process did not end normally.
    """
    cold = run_cold(program, *options, python=python)
    copies = freeze(image, program, *options, python=python)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        thawed = list(pool.map(lambda number: run_copy(copies, f"copy-{number}"), range(THAWS)))
    for said in thawed:
        difference = first_difference(said.answers, cold.answers, said.name)
        assert difference is None, difference
    return [cold, *thawed]


def run_cold(program: str, *options: str, python: str = sys.executable) -> Said:
    """Run `program` without a freeze."""
    ended = subprocess.run(
        [python, "-B", PROGRAMS / f"{program}.py", "--cold", *options],
        env={**os.environ, **OFFLINE, "COPY": COLD},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COPY_DEADLINE_S,
    )
    assert ended.returncode == 0, f"{program} by itself ended with {ended.returncode}: {ended.stderr[-3000:]}"
    return parsed(COLD, ended.stdout)


def run_copy(copies: Copies, name: str) -> Said:
    """Thaw one copy."""
    ended = copies.run(name)
    assert ended.status == 0, f"{name} ended with {ended.status}: {ended.errors[-3000:]}"
    return parsed(name, ended.said)


def parsed(name: str, said: str) -> Said:
    """Return the line of JSON that a program prints last. Libraries may have printed other lines before it."""
    values = json.loads(said.splitlines()[-1])
    return Said(name, values["answers"], values["connections"])
