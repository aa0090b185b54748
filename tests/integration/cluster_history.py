"""A history of what clients of a cluster were told while its machines failed, and a checker of that history.

The handlers count how many invocations of their function run at the same time on all machines: each one holds a lock
on a file of its own, which ends with its process. Whoever begins last sees all others.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT_S = 1
CODE = """
import fcntl, os, time, uuid
from thawd import streaming
FOLDER = os.environ["HISTORY"]
# An invocation beyond its timeout counts no longer: its own thawd is paused, and others may begin. See limits.Member.
LONGEST_S = 1 + 5
TENANTS = set()

def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)

def append(name, text):
    file = os.open(f"{FOLDER}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text}\\n".encode())
    os.close(file)

def is_running(entry):
    if float(entry.name.partition("-")[0]) < now() - LONGEST_S:
        return False
    try:
        file = os.open(entry.path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)

def run(event, context):
    slots = f"{FOLDER}/slots/{context.function_name}"
    os.makedirs(slots, exist_ok=True)
    own = f"{slots}/{now()}-{uuid.UUID(bytes=os.urandom(16))}"
    file = os.open(own, os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        running = 1 + sum(is_running(entry) for entry in os.scandir(slots) if entry.path != own)
        append("running", f"{context.function_name} {running}")
        append("runs", f"{context.aws_request_id} {event['n']}")
        TENANTS.add(getattr(context, "tenant_id", None))
        time.sleep(event["s"])
    finally:
        os.unlink(own)
        os.close(file)
    append("ends", f"{event['n']} {now()}")

def handler(event, context):
    run(event, context)
    return {**event, "tenants": sorted(map(str, TENANTS))}

@streaming.handler
def flow(event, stream, context):
    for part in range(5):
        stream.write(f"part {part} of {event['n']}, ")
    run(event, context)
    stream.write(f"end of {event['n']}")
"""
ACCEPTED, ANSWERED, REFUSED, UNKNOWN = "accepted", "answered", "refused", "unknown"


@dataclass(frozen=True, slots=True)
class Call:
    """What a client sends.

    Attributes:
        number: identifies it.
        function: the function, perhaps with ``:`` and an alias.
        is_event: whether it is an event and not a request.
        sleep_s: how long the handler sleeps.
        tenant: for the function that separates tenants.
    """

    number: int
    function: str
    is_event: bool
    sleep_s: float
    tenant: str | None = None

    @property
    def path(self) -> str:
        if self.function == "flow":
            return "/2021-11-15/functions/flow/response-streaming-invocations"
        return f"/2015-03-31/functions/{self.function}/invocations"

    @property
    def headers(self) -> dict[str, str]:
        tenant = {} if self.tenant is None else {"X-Amz-Tenant-Id": self.tenant}
        return {"X-Amz-Invocation-Type": "Event" if self.is_event else "RequestResponse"} | tenant

    def is_whole(self, body: bytes) -> bool:
        """Whether an answer is that of this call, complete."""
        if self.function == "flow":
            parts = [f"part {part} of {self.number}, " for part in range(5)] + [f"end of {self.number}"]
            return all(part.encode() in body for part in parts) and b"InvokeComplete" in body
        return self.is_event or json.loads(body)["n"] == self.number


@dataclass(frozen=True, slots=True)
class Told:
    """What a client was told about a call.

    Attributes:
        call: the call.
        machine: the machine that it was sent to.
        outcome: `ACCEPTED`, `ANSWERED`, `REFUSED` (so it must not run) or `UNKNOWN`.
        at_s: when, ``time.monotonic()`` seconds.
    """

    call: Call
    machine: str
    outcome: str
    at_s: float


class Client:
    """Keeps a connection to one machine. For one thread."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._connection: http.client.HTTPConnection | None = None

    def send(self, call: Call) -> tuple[str, str]:
        """Send a call. Returns what it means for the call, and a word that says why."""
        try:
            connection = self._connected()
        except OSError as error:
            return REFUSED, type(error).__name__
        try:
            return self._sent(call, connection)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return UNKNOWN, type(error).__name__

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send another request; returns status and body."""
        connection = self._connected()
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", timeout=60)
            connection.sock = self._connect()
            self._connection = connection
        return self._connection

    def _sent(self, call: Call, connection: http.client.HTTPConnection) -> tuple[str, str]:
        connection.request("POST", call.path, json.dumps({"n": call.number, "s": call.sleep_s}).encode(), call.headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.will_close:
            self.close()
        if answer.status >= 300:
            is_refusal = answer.status in (429, 503) and b"unknown" not in body
            return REFUSED if is_refusal else UNKNOWN, str(answer.status)
        if answer.headers.get("X-Amz-Function-Error"):
            return UNKNOWN, "function error"
        if not call.is_whole(body):
            return UNKNOWN, "broken answer"
        return ACCEPTED if call.is_event else ANSWERED, str(answer.status)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass
class History:
    """What clients sent and were told.

    Attributes:
        folder: folder of the handlers' notes.
        told: all answers, in the order in which they came.
        answers: how often each answer was given.
        accepted: numbers of events that were accepted.
        answered: numbers of requests that were answered.
    """

    folder: Path
    told: list[Told] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    accepted: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ends: dict[int, float] = field(default_factory=dict)
    _read: int = 0

    def __post_init__(self) -> None:
        (self.folder / "slots").mkdir(parents=True)

    def send(self, client: Client, machine: str, call: Call) -> bool:
        """Send a call, and note the answer. Returns whether it was accepted or answered."""
        outcome, why = client.send(call)
        with self._lock:
            self.told.append(Told(call, machine, outcome, time.monotonic()))
            kind = "event" if call.is_event else "stream" if call.function == "flow" else "request"
            self.answers[f"{kind} {outcome}: {why}"] += 1
            if outcome == ACCEPTED:
                self.accepted.add(call.number)
            elif outcome == ANSWERED:
                self.answered.add(call.number)
        return outcome in (ACCEPTED, ANSWERED)

    def runs(self) -> Counter[int]:
        """How often each number began to run."""
        return Counter(int(line.split()[1]) for line in self._lines("runs"))

    def first_ends(self) -> dict[int, float]:
        """When the first run of each number ended, ``time.monotonic()`` seconds. Reads what was added since."""
        with contextlib.suppress(FileNotFoundError), open(self.folder / "ends") as file:
            file.seek(self._read)
            while (line := file.readline()).endswith("\n"):
                number, at_s = line.split()
                self._ends.setdefault(int(number), float(at_s))
                self._read = file.tell()
        return self._ends

    def most_at_once(self) -> Counter[str]:
        """The most invocations of each function that ran at the same time on all machines."""
        most: Counter[str] = Counter()
        for line in self._lines("running"):
            function, running = line.split()
            most[function] = max(most[function], int(running))
        return most

    def _lines(self, name: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text().splitlines()
        return []

    def mistakes(self, rows: list[Any], *, limit: int) -> list[str]:
        """Everything in this history that must not happen.

        Args:
            rows: the rows of the table to which events lead.
            limit: the concurrency limit of each function.
        """
        calls = {told.call.number: told.call for told in self.told}
        refused = {told.call.number for told in self.told if told.outcome == REFUSED}
        runs, counts = self.runs(), Counter(row["n"] for row in rows)
        most = self.most_at_once()
        found = [
            f"{most[name]} of {name} ran at the same time, the limit is {limit}" for name in most if most[name] > limit
        ]
        found += [f"event {n} was accepted and has {counts[n]} rows" for n in sorted(self.accepted) if counts[n] != 1]
        found += [f"row of {n}, which was refused" for n in sorted(refused & counts.keys())]
        found += [f"{n} was refused and ran" for n in sorted(refused & runs.keys())]
        found += [f"request {n} was answered and ran {runs[n]} times" for n in sorted(self.answered) if runs[n] != 1]
        found += [
            f"row of {row['n']} for the tenant {calls[row['n']].tenant} is of {row['tenants']}"
            for row in rows
            if row["tenants"] != [str(calls[row["n"]].tenant)]
        ]
        return found


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One or several faults at the same time.

    Attributes:
        name: what has happened.
        over_s: when the last fault was over: its end, or the kill. ``time.monotonic()`` seconds.
        ready_s: when each machine that must serve again was there again, or `over_s`.
        hit: machines whose events were delayed.
    """

    name: str
    over_s: float
    ready_s: dict[str, float]
    hit: Collection[str]


def recoveries(told: Iterable[Told], ends: dict[int, float], fault: Disturbance) -> dict[str, float | None]:
    """How long after a disturbance everything that it hit succeeded for the first time, seconds. None: it has not yet.

    Args:
        told: what clients were told.
        ends: when the first run of each number ended.
        fault: the disturbance.
    """
    found: dict[str, float | None] = {}
    for machine in fault.ready_s:
        for outcome in (ACCEPTED, ANSWERED):
            found[f"{outcome} at {machine}"] = None
    for each in told:
        since_s, what = fault.ready_s.get(each.machine), f"{each.outcome} at {each.machine}"
        if since_s is not None and what in found and found[what] is None and each.at_s > since_s:
            found[what] = each.at_s - since_s
        if each.outcome == ACCEPTED and each.machine in fault.hit and each.at_s <= fault.over_s:
            ended_s = ends.get(each.call.number)
            if ended_s is None or ended_s > fault.over_s:
                found[f"event {each.call.number}"] = None if ended_s is None else ended_s - fault.over_s
    return found
