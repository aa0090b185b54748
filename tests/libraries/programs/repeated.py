"""Takes one library through a freeze that many copies are thawed from; each copy says what it computed.

A program makes an object with `answer` and hands it to `main`. `main` computes some answers and freezes; each thawed
copy computes all answers, those that nobody has asked for before the freeze first, once in the main thread and once in
a new one, and prints them as one line of JSON. With ``--cold`` the same happens in one process that was never frozen.

It runs in the frozen process: standard library only, besides what the program itself imports.
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

BEFORE = (0, 1)  # inputs answered before the freeze, so that everything is warm
NUMBERS = (2, 3, 0, 1)
THREAD_DEADLINE_S = 120.0


class Program(Protocol):
    """What a program brings."""

    def answer(self, number: int) -> Any:
        """The result for input `number`: lists, dicts, strings and numbers, the same in each process."""


@dataclass
class Options:
    """How a program was started.

    Attributes:
        image: where the image goes; None: this process is not frozen.
        threads: threads of the library's own pools.
        address: of the server that the program connects to, as the program wants it.
        certificate: path of the certificate that the server shows; empty: it shows none.
    """

    image: Path | None
    threads: int
    address: str
    certificate: str = ""


connections: list[Any] = []
"""What the server calls each connection that this process has used since it was thawed (or started)."""


def name() -> str:
    """What this process is called: differs in each copy."""
    return os.environ["COPY"]


def main(prepare: Callable[[Options], Program]) -> None:
    """Run the program around `prepare`; does not return in the original."""
    options = parsed_options()
    program = prepared(prepare, options) if options.image is None else frozen(prepare, options)
    connections.clear()
    answers = {"main": answers_of(program), "thread": in_a_thread(lambda: answers_of(program))}
    finish = getattr(program, "finish", None)
    if finish is not None:
        finish()
    print(json.dumps({"answers": answers, "connections": connections}), flush=True)


def prepared(prepare: Callable[[Options], Program], options: Options) -> Program:
    """The program, with everything warm."""
    program = prepare(options)
    for number in BEFORE:
        program.answer(number)
    return program


def frozen(prepare: Callable[[Options], Program], options: Options) -> Program:
    """The program in a thawed copy; does not return in the original."""
    from thawd import snapshot
    from thawd.snapshot.connections import Openings

    openings = Openings()  # as the platform's runtime does while a function initialises
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
    """All answers."""
    return {number: program.answer(number) for number in NUMBERS}


def in_a_thread(work: Callable[[], Any]) -> Any:
    """What `work` returns in a thread that is made now.

    Raises:
        AssertionError: it raised, which is printed, or took too long.
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
    parser.add_argument("image", nargs="?", type=Path, help="where the image goes")
    parser.add_argument("--cold", action="store_true", help="answer without a freeze")
    parser.add_argument("--threads", type=int, default=1, help="threads of the library's own pools")
    parser.add_argument("--address", default="", help="of the server to connect to")
    parser.add_argument("--certificate", default="", help="that the server shows")
    options = parser.parse_args()
    if options.cold == (options.image is not None):
        parser.error("give either an image or --cold")
    return Options(options.image, options.threads, options.address, options.certificate)
