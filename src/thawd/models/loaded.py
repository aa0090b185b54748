"""The result of a loader: the loaded object, and each step with its duration."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, Iterator, List

from thawd.models.opening import Model


@dataclass
class Step:
    """One step of loading.

    Attributes:
        name: name of the step.
        ms: duration of the step, milliseconds.
        note: choice or outcome of the step; may be empty.
    """

    name: str
    ms: float
    note: str = ""


@dataclass
class Loaded:
    """A model in memory.

    Attributes:
        value: the library's object, for example a session, a module or an estimator.
        model: the opened model; it stays in the cache while this object exists.
        steps: steps of opening and loading, in order.
    """

    value: Any
    model: Model
    steps: List[Step] = field(default_factory=list)

    @property
    def ms(self) -> float:
        """Duration of all steps together, milliseconds."""
        return sum(step.ms for step in self.steps)

    def __str__(self) -> str:
        lines = [f"{step.ms:9.1f} ms  {step.name}{f' ({step.note})' if step.note else ''}" for step in self.steps]
        return "\n".join([*lines, f"{self.ms:9.1f} ms  in total"])


class Stopwatch:
    """Measures the steps of loading a model."""

    def __init__(self, model: Model) -> None:
        self.steps = [Step(name, ms, note) for name, ms, note in model.steps]

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Measure the code inside the ``with`` block as one step. That code can set the step's `note`."""
        step = Step(name, 0.0)
        begun_s = time.perf_counter()
        yield step
        step.ms = (time.perf_counter() - begun_s) * 1000
        self.steps.append(step)


def mapped_bytes(path: str) -> int:
    """How many bytes of a file, or of the files below a folder, are mapped into this process."""
    found = 0
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and (fields[5] == path or fields[5].startswith(path + "/")):
                begin, _, end = fields[0].partition("-")
                found += int(end, 16) - int(begin, 16)
    return found


def mapped_note(path: str) -> str:
    """Text for a step's note: how much of a file or folder is mapped into this process, or that it was read."""
    found = mapped_bytes(path)
    return f"{found / 2**20:.1f} MiB of it mapped, shared with other processes" if found else "read into memory"
