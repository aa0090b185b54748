"""Frozen by test_snapshot_disk: executes commands, line by line, in the original and in each copy.

Each line on standard input is a JSON string of Python. It is evaluated, or executed if it is not an expression, in the
namespace of the lines before it. The answer is one line: the representation of the value, or the error. Uses only the
standard library.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

names: dict[str, Any] = {"os": os, "sys": sys, "FOLDER": os.environ["TMPDIR"]}


def read_line() -> bytes:
    """Read a line unbuffered: what a copy has not read must be in its own pipe, not in memory."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            os._exit(0)
        line += more
    return line


def freeze(image: str) -> str:
    """Write the image. Return whether this process is the original or a thawed copy."""
    from thawd.snapshot import engine

    outcome = engine.freeze(image, disk=names["FOLDER"])
    return "thawed" if outcome.restored else "frozen"


def enter_disk(at: str, own: str, lower: str | None) -> None:
    """Give this fork its own folder."""
    from thawd.snapshot import engine

    engine.enter_disk(at, own, lower)


def carry_out(text: str) -> str:
    """Evaluate or execute Python text."""
    try:
        try:
            code = compile(text, "<told>", "eval")
        except SyntaxError:
            exec(compile(text, "<told>", "exec"), names)
            return "None"
        return repr(eval(code, names))
    except Exception:
        return "error: " + traceback.format_exc().strip().splitlines()[-1]


def main() -> None:
    """Execute commands until standard input ends."""
    names.update(freeze=freeze, enter_disk=enter_disk)
    while True:
        answer = carry_out(json.loads(read_line()))
        os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
