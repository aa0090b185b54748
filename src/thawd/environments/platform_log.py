"""The lines that the platform itself writes to a function's log: START, END, REPORT and others, or their JSON form.

Source: AWS Lambda developer guide, "Log-level filtering", for the level of each event; "Lambda Telemetry API Event
schema reference", for the record of each event.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from thawd.environments.version import Version
from thawd.telemetry.logs.writer import LogStream

_encode = msgspec.json.Encoder().encode
_LEVELS = {"DEBUG": 0, "INFO": 1, "WARN": 2}


@dataclass(slots=True)
class StartTimes:
    """How long an environment took to start, for the invocation that waited for the start.

    Attributes:
        duration_ms: from the request for the start until the environment was ready, milliseconds.
        restored: whether it was restored from a snapshot; False: it ran init.
        billed_restore_ms: the part of a restore that Lambda bills, milliseconds; 0 if it was not restored.
    """

    duration_ms: float
    restored: bool
    billed_restore_ms: float


@dataclass(slots=True)
class InvocationOutcome:
    """The result of an invocation, for the log.

    Attributes:
        request_id: the invocation's request id.
        duration_ms: time in the handler, milliseconds.
        memory_mib: peak memory, MiB.
        status: ``success``, ``error`` or ``timeout``.
        error_type: AWS's name for what ended the environment during the invocation; empty when nothing did.
        message: describes for people what ended the environment; empty when nothing did.
        start: how long its environment took to start; None when the invocation did not wait for a start.
        batch_size: number of invocations that ran together, this one included; None if the handler takes no lists.
    """

    request_id: str
    duration_ms: float
    memory_mib: int
    status: str
    error_type: str
    message: str
    start: StartTimes | None
    batch_size: int | None = None

    @property
    def billed_ms(self) -> int:
        """Billed duration, milliseconds: handler and init phase (not a restore), rounded up.

        Source: Lambda pricing since August 2025.
        """
        start = self.start
        if start is None or start.restored:
            return math.ceil(self.duration_ms)
        return math.ceil(self.duration_ms + start.duration_ms)


class PlatformLog:
    """Writes the platform's lines as text, which is Lambda's default."""

    def __init__(self, version: Version, stream: LogStream) -> None:
        self._version = version
        self._stream = stream

    def init_start(self, initialization: str) -> None:
        """The init phase of a process begins; `initialization` is ``AWS_LAMBDA_INITIALIZATION_TYPE``."""
        self._stream.line(f"INIT_START Runtime Version: {self._version.runtime_title}")

    def init_report(self, initialization: str, duration_ms: float, *, error_type: str = "") -> None:
        """The init phase has ended. The text log gets a line only for a failure."""
        if error_type:
            status = "timeout" if error_type == "Sandbox.Timedout" else f"error\tError Type: {error_type}"
            self._stream.line(f"INIT_REPORT Init Duration: {duration_ms:.2f} ms\tPhase: init\tStatus: {status}")

    def extension(self, name: str, *, state: str, events: Sequence[str]) -> None:
        """An extension runs in the environment; `state` and `events` use AWS's names."""
        self._stream.line(f"EXTENSION\tName: {name}\tState: {state}\tEvents: [{', '.join(events)}]")

    def restore_start(self) -> None:
        """The restore of a process from a snapshot begins."""
        self._stream.line(f"RESTORE_START Runtime Version: {self._version.runtime_title}")

    def restore_report(self, duration_ms: float) -> None:
        """A process has been restored from a snapshot."""
        self._stream.line(f"RESTORE_REPORT Restore Duration: {duration_ms:.2f} ms")

    def start(self, request_id: str) -> None:
        """An invocation begins."""
        self._stream.line(f"START RequestId: {request_id} Version: {self._version.number}")

    def done(self, outcome: InvocationOutcome) -> None:
        """An invocation has ended."""
        request_id = outcome.request_id
        if outcome.status == "timeout":
            self._stream.line(f"{_now_text()} {request_id} {outcome.message}")
        elif outcome.message:
            self._stream.line(f"RequestId: {request_id} Error: {outcome.message}")
        more = ""
        if outcome.start is not None or outcome.batch_size is not None or outcome.status != "success":
            more = f"{_start_text(outcome.start)}{_batch_text(outcome.batch_size)}{_status_text(outcome)}"
        self._stream.line(
            f"END RequestId: {request_id}",
            f"REPORT RequestId: {request_id}\tDuration: {outcome.duration_ms:.2f} ms\t"
            f"Billed Duration: {outcome.billed_ms} ms\tMemory Size: {self._version.function.memory_mb} MB\t"
            f"Max Memory Used: {outcome.memory_mib} MB\t{more}",
        )


class JsonPlatformLog(PlatformLog):
    """Writes the platform's lines as JSON objects, if the function's system log level includes them."""

    def __init__(self, version: Version, stream: LogStream) -> None:
        super().__init__(version, stream)
        self._least = _LEVELS[version.function.system_log_level or "INFO"]

    def init_start(self, initialization: str) -> None:
        """See `PlatformLog.init_start`."""
        self._write("INFO", "platform.initStart", {"initializationType": initialization, **self._facts()})

    def init_report(self, initialization: str, duration_ms: float, *, error_type: str = "") -> None:
        """See `PlatformLog.init_report`."""
        level = "DEBUG" if initialization == "on-demand" else "INFO"
        status = "timeout" if error_type == "Sandbox.Timedout" else "error" if error_type else "success"
        record: dict[str, Any] = {"initializationType": initialization, "phase": "init", "status": status}
        if error_type:
            level, record["errorType"] = "WARN", error_type
        self._write(level, "platform.initReport", {**record, "metrics": {"durationMs": _ms(duration_ms)}})

    def extension(self, name: str, *, state: str, events: Sequence[str]) -> None:
        """See `PlatformLog.extension`."""
        self._write("INFO", "platform.extension", {"name": name, "state": state, "events": list(events)})

    def restore_start(self) -> None:
        """See `PlatformLog.restore_start`."""
        self._write("INFO", "platform.restoreStart", self._facts())

    def restore_report(self, duration_ms: float) -> None:
        """See `PlatformLog.restore_report`."""
        record = {"status": "success", "metrics": {"durationMs": _ms(duration_ms)}}
        self._write("INFO", "platform.restoreReport", record)

    def start(self, request_id: str) -> None:
        """See `PlatformLog.start`."""
        self._write("INFO", "platform.start", {"requestId": request_id, "version": self._version.number})

    def done(self, outcome: InvocationOutcome) -> None:
        """See `PlatformLog.done`."""
        went_well = outcome.status == "success"
        record: dict[str, Any] = {"requestId": outcome.request_id, "status": outcome.status}
        if outcome.error_type:
            record["errorType"] = outcome.error_type
        metrics: dict[str, float] = {"durationMs": _ms(outcome.duration_ms)}
        self._write("DEBUG" if went_well else "WARN", "platform.runtimeDone", {**record, "metrics": dict(metrics)})
        metrics["billedDurationMs"] = outcome.billed_ms
        metrics["memorySizeMB"] = self._version.function.memory_mb
        metrics["maxMemoryUsedMB"] = outcome.memory_mib
        if outcome.start is not None and outcome.start.restored:
            metrics["restoreDurationMs"] = _ms(outcome.start.duration_ms)
            metrics["billedRestoreDurationMs"] = math.ceil(outcome.start.billed_restore_ms)
        elif outcome.start is not None:
            metrics["initDurationMs"] = _ms(outcome.start.duration_ms)
        if outcome.batch_size is not None:
            metrics["batchSize"] = outcome.batch_size
        self._write("INFO" if went_well else "WARN", "platform.report", {**record, "metrics": metrics})

    def _facts(self) -> dict[str, Any]:
        function = self._version.function
        return {
            "phase": "init",
            "runtimeVersion": self._version.runtime_title,
            "functionName": function.name,
            "functionVersion": self._version.number,
            "instanceMaxMemory": function.memory_mb << 20,
        }

    def _write(self, level: str, kind: str, record: dict[str, Any]) -> None:
        if _LEVELS[level] >= self._least:
            self._stream.line(_encode({"time": _now_text(), "type": kind, "record": record}).decode())


def platform_log(version: Version, stream: LogStream) -> PlatformLog:
    """Return the platform's log in the format that the function's configuration selects."""
    return (JsonPlatformLog if version.function.log_format == "JSON" else PlatformLog)(version, stream)


def _start_text(start: StartTimes | None) -> str:
    if start is None:
        return ""
    if not start.restored:
        return f"Init Duration: {start.duration_ms:.2f} ms\t"
    # Of a restore, Lambda bills only the time that the runtime and the after-restore hooks take. Source: AWS Lambda
    # developer guide, "Monitoring for Lambda SnapStart".
    billed_ms = math.ceil(start.billed_restore_ms)
    return f"Restore Duration: {start.duration_ms:.2f} ms\tBilled Restore Duration: {billed_ms} ms\t"


def _batch_text(size: int | None) -> str:
    return "" if size is None else f"Batch Size: {size}\t"


def _status_text(outcome: InvocationOutcome) -> str:
    if outcome.status == "timeout":
        return "Status: timeout\t"
    return f"Status: error\tError Type: {outcome.error_type}\t" if outcome.error_type else ""


def _ms(duration_ms: float) -> float:
    return round(duration_ms, 3)


def _now_text() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
