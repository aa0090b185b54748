"""Frozen by test_snapshot_disk: carries out what it is told, line by line, in the original and in each copy.

Each line on standard input is a JSON text of Python; it is evaluated, or executed where it is no expression, with what
was defined before it. The answer is one line: the representation of the value, or the error. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

names: dict[str, Any] = {"os": os, "sys": sys, "FOLDER": os.environ["TMPDIR"]}


def read_line() -> bytes:
    """Unbuffered: what a copy has not read must be in its own pipe, not in memory."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            os._exit(0)
        line += more
    return line


def freeze(image: str) -> str:
    """Write the image; says who it is."""
    from thawd.snapshot import engine

    outcome = engine.freeze(image, disk=names["FOLDER"])
    return "thawed" if outcome.restored else "frozen"


def enter_disk(at: str, own: str, lower: str | None) -> None:
    """Have a folder of this fork's own."""
    from thawd.snapshot import engine

    engine.enter_disk(at, own, lower)


def carry_out(text: str) -> str:
    """Evaluate or execute."""
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
    """Until standard input ends."""
    names.update(freeze=freeze, enter_disk=enter_disk)
    while True:
        answer = carry_out(json.loads(read_line()))
        os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
