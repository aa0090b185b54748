"""A measured process: it loads a workload, answers one inference, then executes commands.

    python subject.py WORKLOAD FOLDER [COMMAND]

WORKLOAD is a module beside this one. Its ``load(folder)`` returns the inference, a function without arguments that
returns bytes. The process answers first when the first inference is done. Then it executes COMMAND, if one is given,
and after that each line of standard input as a command. Each answer is a line of JSON on standard output. The process
ends when its input ends.

    infer          run one inference and answer
    freeze PATH    write this process to an image; a copy thawed from it runs one inference, answers, and takes commands
    fork           fork; the child runs one inference, answers and ends
    await A B      answer; wait until file A exists, run one inference, write the answer to file B and end (for CRIU,
                   which passes no pipes to a restored process)

Times are readings of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Infer = Callable[[], bytes]
LOOK_EVERY_S = 0.0005


def main(workload: str, folder: str, command: str) -> None:
    """Load the workload, then execute commands until the input ends."""
    infer: Infer = importlib.import_module(workload).load(folder)
    _answer(_inference(infer))
    while command := command or _next_command():
        verb, *arguments = command.split()
        command = ""
        if verb == "infer":
            _answer(_inference(infer))
        elif verb == "freeze":
            _freeze(arguments[0], infer)
        elif verb == "fork":
            _fork(infer)
        elif verb == "await":
            _await(Path(arguments[0]), Path(arguments[1]), infer)
        else:
            sys.exit(f"no command {verb!r}")


def _inference(infer: Infer) -> dict[str, Any]:
    begun_ns = time.monotonic_ns()
    result = infer()
    at_ns = time.monotonic_ns()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "pid": os.getpid(),
        "begun_ns": begun_ns,
        "at_ns": at_ns,
        "result": hashlib.sha256(result).hexdigest(),
        "processor_s": usage.ru_utime + usage.ru_stime,
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
    }


def _freeze(path: str, infer: Infer) -> None:
    # Imported in this function, so that the time of a cold start does not include an import that only a freeze needs.
    from thawd.snapshot import engine

    gc.collect()
    gc.freeze()
    begun_ns = time.monotonic_ns()
    outcome = engine.freeze(path)
    if outcome.restored:
        _answer({**_inference(infer), "restore_ms": outcome.restore_ms})
        return
    took_ms = (time.monotonic_ns() - begun_ns) / 1e6
    gc.unfreeze()
    _answer({"took_ms": took_ms, "park_ms": outcome.park_ms, "scan_ms": outcome.scan_ms, "write_ms": outcome.write_ms})


def _fork(infer: Infer) -> None:
    begun_ns = time.monotonic_ns()
    child = os.fork()
    if child == 0:
        _answer({**_inference(infer), "begun_ns": begun_ns})
        os._exit(0)
    os.waitpid(child, 0)


def _await(trigger: Path, answer: Path, infer: Infer) -> None:
    _answer({"pid": os.getpid()})
    while not trigger.exists():
        time.sleep(LOOK_EVERY_S)
    partial = answer.with_suffix(".partial")
    partial.write_text(json.dumps(_inference(infer)))
    partial.rename(answer)
    os._exit(0)


def _answer(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def _next_command() -> str:
    """Return the next line, or an empty string at the end of the input.

    One read returns exactly one line, because the sender waits for an answer before it sends the next line.
    """
    return os.read(0, 4096).decode().strip()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], " ".join(sys.argv[3:]))
