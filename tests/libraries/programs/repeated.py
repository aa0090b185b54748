"""Freezes a process that uses one library and from which many copies are thawed. Each copy prints its answers.

A program makes an object with `answer` and passes it to `main`. `main` computes some answers and freezes. Each thawed
copy computes all answers, in the main thread and in a new thread, beginning with those that were not computed before
the freeze. It prints them as one line of JSON. With ``--cold`` one process that was never frozen does the same.

It runs in the frozen process: besides what the program itself imports, it uses only the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

BEFORE = (0, 1)  # inputs answered before the freeze, so that everything is loaded
NUMBERS = (2, 3, 0, 1)
THREAD_DEADLINE_S = 120.0


class Program(Protocol):
    """What a program provides."""

    def answer(self, number: int) -> Any:
        """Return the result for input `number`: lists, dicts, strings and numbers, the same in each process."""


@dataclass
class Options:
    """How a program was started.

    Attributes:
        image: path of the image; None if this process is not frozen.
        threads: threads of the library's own pools.
        address: address of the server that the program connects to, in the program's format.
        certificate: path of the server's certificate; empty if it has none.
    """

    image: Path | None
    threads: int
    address: str
    certificate: str = ""


connections: list[Any] = []
"""Names that the server has for the connections that this process has used since it was thawed or started."""


def name() -> str:
    """Return the name of this process, which is different in each copy."""
    return os.environ["COPY"]


def main(prepare: Callable[[Options], Program]) -> None:
    """Run the program made by `prepare`. Does not return in the original."""
    options = parsed_options()
    program = prepared(prepare, options) if options.image is None else frozen(prepare, options)
    connections.clear()
    answers = {"main": answers_of(program), "thread": in_a_thread(lambda: answers_of(program))}
    finish = getattr(program, "finish", None)
    if finish is not None:
        finish()
    print(json.dumps({"answers": answers, "connections": connections}), flush=True)


def prepared(prepare: Callable[[Options], Program], options: Options) -> Program:
    """Return the program after its first answers, with everything loaded."""
    program = prepare(options)
    for number in BEFORE:
        program.answer(number)
    return program


def frozen(prepare: Callable[[Options], Program], options: Options) -> Program:
    """Freeze, and return the program in a thawed copy. Does not return in the original."""
    from thawd import snapshot
    from thawd.snapshot.connections import Openings

    openings = Openings()  # the platform's runtime does the same during the init phase
    openings.watch()
    program = prepared(prepare, options)
    openings.stop()
    outcome = snapshot.freeze(str(options.image), any_port=openings.any_port())
    if not outcome.restored:
        print(f"frozen {outcome.image_bytes}", flush=True)
        while True:
            signal.pause()
    return program


def answers_of(program: Program) -> dict[int, Any]:
    """Return all answers."""
    return {number: program.answer(number) for number in NUMBERS}


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Run `work` in a new thread and return its result.

    Raises:
        AssertionError: it raised an exception, which is printed, or took too long.
    """
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(THREAD_DEADLINE_S)
    assert results, "the thread did not answer"
    return results[0]


def parsed_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("image", nargs="?", type=Path, help="path of the image")
    parser.add_argument("--cold", action="store_true", help="answer without a freeze")
    parser.add_argument("--threads", type=int, default=1, help="threads of the library's own pools")
    parser.add_argument("--address", default="", help="address of the server to connect to")
    parser.add_argument("--certificate", default="", help="path of the server's certificate")
    options = parser.parse_args()
    if options.cold == (options.image is not None):
        parser.error("give either an image or --cold")
    return Options(options.image, options.threads, options.address, options.certificate)
