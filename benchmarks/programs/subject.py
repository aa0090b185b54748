"""A process under measurement: loads a workload, answers one inference, then does what it is told.

    python subject.py WORKLOAD FOLDER [COMMAND]

WORKLOAD is a module beside this one with ``load(folder)``, which returns the inference: a function without arguments
whose result is bytes. The first answer comes when the first inference is done. Then each line on standard input is a
command, COMMAND, if any, being the first; each answer is a line of JSON on standard output. End of input ends it.

    infer          one inference
    freeze PATH    write this process to an image; a copy thawed from it infers at once, answers, and takes commands
    fork           a child infers, answers and ends
    await A B      wait for file A, infer, write the answer to file B; end (for CRIU, which cannot hand pipes over)

Times are those of CLOCK_MONOTONIC, which all processes of a machine share.
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
    """Load, then answer until the input ends."""
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
    # Loaded here, so that a cold start does not pay for what only a freeze needs.
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
    """The next line, empty at the end of the input; there is never more than one on its way."""
    return os.read(0, 4096).decode().strip()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], " ".join(sys.argv[3:]))
