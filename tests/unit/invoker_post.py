"""An invoker of asynchronous events with a real queue, real destinations, and a dispatcher that a test scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.execution_fakes import within
from thawd.destinations.delivery import Destinations
from thawd.errors import ResourceNotFoundException, ServiceException, ThawdError
from thawd.invocation import Invocation, Result
from thawd.queue.invoker import AsyncInvoker
from thawd.queue.outcome_delivery import Outcomes
from thawd.resources import Bucket, Destination, Function, Table
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth, NewEvent
from thawd.stores.events.outbox import Outbox
from thawd.stores.events.running_marks import Marks
from thawd.stores.schema import open_state
from thawd.stores.tables.access import Tables

TABLE = Destination("table", "out")
BUCKET = Destination("bucket", "out-bucket")
FAILED = Result(b'{"errorType": "E"}', function_error="Unhandled")


class FakeDispatcher:
    """Answers invocations with what the test put into `outcomes`. The last one is repeated.

    Attributes:
        leases: whether invocations get an environment before they wait for `gate`.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.outcomes: list[Result | ThawdError] = [Result(b'{"label": "cat"}')]
        self.got: list[Invocation] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = 0
        self.leases = True
        self.most = 0
        self.broken = ""
        self.share = 64

    def entry(self, name: str) -> Any:
        if name != self.function.name:
            raise ResourceNotFoundException(name)
        return SimpleNamespace(function=self.function)

    def asynchronous(self, name: str, qualifier: str | None) -> Function:
        return self.entry(name).function

    def most_at_once(self, name: str) -> int:
        return 64 if self.entry(name) else 0

    def family(self, name: str) -> Any:
        return SimpleNamespace(at_once_here=lambda most, *, running: min(most, self.share))

    async def invoke(self, invocation: Invocation) -> Result:
        self.got.append(invocation)
        if invocation.request_id == self.broken:
            raise ValueError("a mistake of ours")
        self.running += 1
        self.most = max(self.most, self.running)
        if self.leases:
            invocation.lease_begins()
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, ThawdError):
            raise outcome
        return outcome


class Post:
    """An invoker with a real queue and real destinations."""

    def __init__(
        self,
        folder: Path,
        *,
        queue: Callable[[Any], EventQueue] = EventQueue,
        stores: Callable[..., Any] = Destinations,
        marks: bool = False,
        report: Callable[[str], None] | None = None,
        **function: Any,
    ) -> None:
        self.state = open_state(folder / "thawd.db")
        self.queue = EventQueue(self.state, marks=Marks(folder / "running")) if marks else queue(self.state)
        self.tables = Tables({"out": Table(name="out", path=folder / "out.table")})
        (folder / "bucket").mkdir(exist_ok=True)
        self.bucket = folder / "bucket"
        self.function = Function(name="f", handler="m.f", code=folder, **function)
        self.dispatcher = FakeDispatcher(self.function)
        self.told: list[str] = []
        self.stores = stores(self.tables, {"out-bucket": Bucket(name="out-bucket", path=self.bucket)})
        report = report or self.told.append
        self.outcomes = Outcomes(self.queue, Outbox(self.state), self.stores, report=report)
        self.dead_letters = DeadLetters(self.state)
        self.invoker = AsyncInvoker(
            self.queue,
            self.dispatcher,  # type: ignore[arg-type]
            self.stores,
            self.outcomes,
            retry_wait_s=0.01,
            report=report,
        )

    async def __aenter__(self) -> Post:
        await self.queue.recover()
        started = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self.invoker.run(started))
        await within(started.wait())
        self.invoker.declare(["f"])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert not self.task.done(), "the invoker has ended by itself"
        self.task.cancel()
        await asyncio.wait([self.task])
        self.state.close()
        self.tables.close()

    async def accept(self, payload: bytes = b'{"n": 1}', request_id: str = "id-1") -> None:
        await self.invoker.accept(Invocation("f", payload, 0.0, request_id, asynchronous=True))

    async def settled(self, **depth: int) -> None:
        """Wait until exactly this many events of f are queued, leased and dead."""
        end_s = time.monotonic() + 120
        while True:
            now = (await self.queue.depth()).get("f")
            if (now or Depth()) == Depth(**depth):
                return
            assert time.monotonic() < end_s, now
            await asyncio.sleep(0.002)


class Away(Destinations):
    """Destinations that are unavailable, or refuse, until `back` is set."""

    def __init__(self, tables: Any, buckets: Any) -> None:
        super().__init__(tables, buckets)
        self.back = asyncio.Event()
        self.error: ThawdError = ServiceException("nobody listens")
        self.tries = 0

    async def deliver(self, delivery: Any) -> list[NewEvent]:
        self.tries += 1
        if not self.back.is_set():
            raise self.error
        return await super().deliver(delivery)
