"""Takes one program through a freeze: prepare, answer, freeze; each thawed copy answers again, uses memory hard,
passes.

A program makes an object with `answer` and `exercise` and passes it to `main`. In the original, `main` computes
answers, freezes, computes more answers, writes all of them to a file beside the image and waits to be killed. In a
thawed copy it computes every answer again and compares. Then it tests the allocators, runs the program's own exercise,
starts processes and threads, answers once more and prints ``pass``. With ``--no-freeze`` one process does all of this,
which shows that the program is correct without a freeze.

It runs in the frozen process: besides what the program itself imports, it uses only the standard library.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import kernel
import memory
from differences import first_difference

BEFORE = (0, 1)  # inputs answered before the freeze, so that everything is loaded
AFTER = (2, 3)  # inputs that the copies get first after the thaw, and the original after the freeze
WORKERS = 2
ENGINES: dict[str, dict[str, bool]] = {
    "as-is": {},
    "copy": {"copy": True},
    "older-kernel": {"pagemap_scan": False, "procmap_query": False},
}
CHURN_STEPS = 120  # for each heap and thread; all together take about one second


class Scenario(Protocol):
    """What a program provides."""

    def answer(self, number: int) -> Any:
        """Return the result for input `number`: lists, dicts, strings and numbers, the same in each process."""

    def exercise(self) -> None:
        """Use features that only this library has. Called only in the copies."""


@dataclass
class Options:
    """How a program was started."""

    image: Path | None
    folder: Path
    threads: int
    engine: str = "as-is"


def main(prepare: Callable[[Options], Scenario]) -> None:
    """Run the program made by `prepare`. Does not return in the original."""
    options = parsed_options()
    workers = ThreadPoolExecutor(WORKERS)
    scenario = prepare(options)
    written = kernel.WrittenBefore()
    heaps = memory.loaded_heaps()
    survivors = [memory.Survivors(heap, workers=workers, seed=seed) for seed, heap in enumerate(heaps)]
    answers = {number: scenario.answer(number) for number in BEFORE}
    if options.image is None:
        answers.update((number, scenario.answer(number)) for number in AFTER)
        written.check()
        check_copy(scenario, answers, survivors, workers)
        print("pass", flush=True)
        return
    from thawd.snapshot import engine

    outcome = engine.freeze(str(options.image), **ENGINES[options.engine])
    answers_path = options.image.with_suffix(".answers")
    if not outcome.restored:
        answers.update((number, scenario.answer(number)) for number in AFTER)
        answers_path.write_text(json.dumps(answers))
        wait_for_the_end(outcome.image_bytes)
    if "again" in outcome.arguments:
        for heap in heaps:
            memory.churn(heap, seed=0, steps=CHURN_STEPS)
        outcome = engine.freeze(str(options.image.with_name("again")), **ENGINES[options.engine])
        if not outcome.restored:
            wait_for_the_end(outcome.image_bytes)
    os.environ.clear()
    os.environ.update(outcome.environment)
    if "unhook" in outcome.arguments:
        kernel.unhook()
    reference = {int(number): answer for number, answer in json.loads(answers_path.read_text()).items()}
    if "skip-kernel" not in outcome.arguments:
        written.check()
    check_copy(scenario, reference, survivors, workers)
    print("pass", *outcome.arguments, os.environ.get("COPY"), flush=True)


def wait_for_the_end(image_bytes: int) -> NoReturn:
    """Print that the image exists, and wait to be killed."""
    print(f"frozen {image_bytes}", flush=True)
    while True:
        signal.pause()


def parsed_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("image", nargs="?", type=Path, help="where the image goes")
    parser.add_argument("--no-freeze", action="store_true", help="check the program alone")
    parser.add_argument("--engine", choices=ENGINES, default="as-is", help="how the engine works")
    parser.add_argument("--threads", type=int, default=1, help="threads of the library's own pools")
    options = parser.parse_args()
    if options.no_freeze == (options.image is not None):
        parser.error("give either an image or --no-freeze")
    folder = options.image.parent if options.image else Path(tempfile.mkdtemp())
    return Options(options.image, folder, options.threads, options.engine)


def check_copy(
    scenario: Scenario, reference: dict[int, Any], survivors: list[memory.Survivors], workers: ThreadPoolExecutor
) -> None:
    """Run all checks in a thawed copy.

    Raises:
        AssertionError: an answer, a byte of memory or a child process is wrong.
    """
    for number in sorted(reference, reverse=True):  # new inputs first
        check_answer(scenario, number, reference)
    for survivor in survivors:
        survivor.check_and_release(workers)
    memory.give_back()
    churn_all([survivor.heap for survivor in survivors], workers)
    scenario.exercise()
    check_processes()
    with ThreadPoolExecutor(WORKERS) as fresh:
        running = [fresh.submit(check_answer, scenario, number, reference) for number in AFTER]
        running += [workers.submit(check_answer, scenario, number, reference) for number in BEFORE]
        for future in running:
            future.result()
    gc.collect()
    memory.give_back()
    for number in reference:
        check_answer(scenario, number, reference)


def churn_all(heaps: list[memory.Heap], workers: ThreadPoolExecutor) -> None:
    """Test every heap from the main thread, old threads and new threads concurrently."""
    with ThreadPoolExecutor(WORKERS) as fresh:
        for seed, heap in enumerate(heaps):
            running = [
                pool.submit(memory.churn, heap, seed=seed * 10 + at, steps=CHURN_STEPS)
                for at, pool in enumerate((workers, workers, fresh, fresh))
            ]
            memory.churn(heap, seed=seed * 10 + 9, steps=CHURN_STEPS)
            for future in running:
                future.result()
            memory.give_back()


def check_answer(scenario: Scenario, number: int, reference: dict[int, Any]) -> None:
    """Answer `number` and compare."""
    answer = json.loads(json.dumps(scenario.answer(number)))
    difference = first_difference(answer, json.loads(json.dumps(reference[number])), f"answer {number}")
    assert difference is None, difference


def check_processes() -> None:
    """Start a program and fork; both must run to their end."""
    said = subprocess.run([sys.executable, "-c", "print(6 * 7)"], stdout=subprocess.PIPE, check=True).stdout
    assert said == b"42\n", said
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            memory.churn(memory.CHeap(), seed=1, steps=CHURN_STEPS)
            gc.collect()
            os._exit(42)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
