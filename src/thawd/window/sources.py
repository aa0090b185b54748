"""What the pages are made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thawd.cluster.overview import SeenMachine
from thawd.gateway.http import Budget
from thawd.gateway.thawd_api.queue import QueueOperations
from thawd.recording.records import Records
from thawd.recording.redaction import Redactor
from thawd.scheduling.dispatcher import Dispatcher


@dataclass(slots=True)
class Sources:
    """What the pages are made from.

    Attributes:
        records: the recorded invocations; None: none are recorded.
        why_none: why none are recorded.
        redactor: replaces secret values in what is shown.
        status: makes the status document.
        queue: the operations on the queue and on dead letters.
        dispatcher: runs invocations from the page Try, and knows versions and aliases.
        logs: folder of the logs.
        flush_logs: writes the log lines that wait to be written.
        wait_s: how long an invocation from a page may wait for an environment, seconds.
        budget: limits the memory for the bodies of requests.
        machines: returns the machines of the cluster; None: this machine runs alone.
    """

    records: Records | None
    why_none: str
    redactor: Redactor
    status: Callable[[], Awaitable[Mapping[str, Any]]]
    queue: QueueOperations
    dispatcher: Dispatcher
    logs: Path
    flush_logs: Callable[[], None]
    wait_s: float
    budget: Budget
    machines: Callable[[], Awaitable[list[SeenMachine]]] | None = None
