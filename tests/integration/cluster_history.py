"""A history of what clients of a cluster were told while its machines failed, and a checker of that history.

The handler counts how many invocations run at the same time on all machines: each one holds a lock on a file of its
own, which ends with its process. Whoever begins last sees all others.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CODE = """
import fcntl, os, time, uuid
FOLDER = os.environ["HISTORY"]

def append(name, text):
    file = os.open(f"{FOLDER}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text}\\n".encode())
    os.close(file)

def is_locked(path):
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)

def handler(event, context):
    own = f"{FOLDER}/slots/{uuid.UUID(bytes=os.urandom(16))}"
    file = os.open(own, os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        paths = [entry.path for entry in os.scandir(f"{FOLDER}/slots")]
        append("running", 1 + sum(is_locked(path) for path in paths if path != own))
        append("runs", f"{context.aws_request_id} {event['n']}")
        time.sleep(event["s"])
    finally:
        os.unlink(own)
        os.close(file)
    return event
"""


@dataclass
class History:
    """What clients sent and were told.

    Attributes:
        accepted: numbers of events that were accepted.
        answered: numbers of requests that were answered.
        refused: numbers of events and requests that were refused, so they must not run.
        unknown: numbers of events and requests of which the client does not know whether they run.
    """

    folder: Path
    accepted: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    answers: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        (self.folder / "slots").mkdir(parents=True)

    def send(self, url: str, number: int, *, is_event: bool, sleep_s: float) -> bool:
        """Send an event or a request, and note the answer. Returns whether it was accepted or answered."""
        request = urllib.request.Request(
            f"{url}/2015-03-31/functions/app/invocations",
            data=json.dumps({"n": number, "s": sleep_s}).encode(),
            headers={"X-Amz-Invocation-Type": "Event" if is_event else "RequestResponse"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
                failed = answer.headers.get("X-Amz-Function-Error")
                where = self.unknown if failed else self.accepted if is_event else self.answered
                told = str(answer.status)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            is_refusal = error.code in (429, 503) and "unknown" not in text
            where, told = self.refused if is_refusal else self.unknown, str(error.code)
        except ConnectionRefusedError:
            where, told = self.refused, "refused"
        except OSError as error:
            is_refusal = isinstance(getattr(error, "reason", None), ConnectionRefusedError)
            where, told = self.refused if is_refusal else self.unknown, type(error).__name__
        with self._lock:
            where.add(number)
            self.answers[f"{'event' if is_event else 'request'} {told}"] += 1
        return where is self.accepted or where is self.answered

    def runs(self) -> Counter[int]:
        """How often each number began to run."""
        return Counter(int(line.split()[1]) for line in self._lines("runs"))

    def most_at_once(self) -> int:
        """The most invocations that ran at the same time on all machines."""
        return max(map(int, self._lines("running")), default=0)

    def _lines(self, name: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text().splitlines()
        return []

    def mistakes(self, rows: list[Any], *, limit: int) -> list[str]:
        """Everything in this history that must not happen.

        Args:
            rows: the numbers in the table to which events lead, one for each row.
            limit: the concurrency limit.
        """
        runs, counts, found = self.runs(), Counter(rows), []
        if self.most_at_once() > limit:
            found.append(f"{self.most_at_once()} invocations ran at the same time, the limit is {limit}")
        found += [f"event {n} was accepted and has {counts[n]} rows" for n in sorted(self.accepted) if counts[n] != 1]
        found += [f"row of {n}, which was refused" for n in sorted(self.refused & counts.keys())]
        found += [f"{n} was refused and ran" for n in sorted(self.refused & runs.keys())]
        found += [f"request {n} was answered and ran {runs[n]} times" for n in sorted(self.answered) if runs[n] != 1]
        return found


def environment(history: History) -> str:
    """The function's environment variables for thawd.toml."""
    return f'environment = {{HISTORY = "{os.fspath(history.folder)}"}}'
