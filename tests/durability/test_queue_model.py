"""Compares the queue of events with a simple model, for operations in any order and crashes at any time.

After a crash the leases are gone, and everything else is as it was when the last call returned. THAWD_QUEUE_EXAMPLES is
the number of operation sequences that are tried (default 80). ``make endurance`` sets 2,000.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.memory import MEMORY
from thawd.stores import clock
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth, Event, Flow, NewEvent, as_accepted
from thawd.stores.events.outbox import Outbox
from thawd.stores.events.removals import KEPT_S, Removals
from thawd.stores.events.running_marks import Marks
from thawd.stores.schema import open_state

FUNCTIONS = ("classify", "resize")
START_S = 1_000_000.0
LONGEST_WAIT_S = 300.0
# These tests do not examine syncs. The database is in memory, where syncs cost nothing.
EXAMPLES = int(os.environ.get("THAWD_QUEUE_EXAMPLES", "80"))

ENDS = ("done", "retried", "given back", "buried", "delivered later", "runs on")
Draw = Callable[..., Any]
functions = st.sampled_from(FUNCTIONS)
waits = st.sampled_from([0.0, 1.0, 60.0, 250.0])


@dataclass
class Row:
    """An event as it should be in the queue."""

    id: int
    function: str
    request_id: str
    accepted_at: float
    state: str = "queued"
    at: float = 0.0
    attempts: int = 0
    interruptions: int = 0
    leased: bool = False
    running: bool = False
    outcome: bytes | None = None
    tries: int = 0
    error: str = ""
    condition: str = ""
    removal: int = 0
    removed_at: float = 0.0


@dataclass
class Model:
    """The expected state of the queue."""

    rows: dict[int, Row] = field(default_factory=dict)
    returned: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in FUNCTIONS})
    flow: dict[str, dict[str, int]] = field(default_factory=dict)
    last: int = 0

    def count(self, function: str, what: str) -> None:
        of = self.flow.setdefault(function, {"accepted": 0, "done": 0, "retried": 0, "buried": 0})
        of[what] += 1

    def those(self, state: str, function: str | None = None, *, leased: bool | None = None) -> list[Row]:
        return [
            row
            for row in self.rows.values()
            if row.state == state
            and function in (None, row.function)
            and (leased is None or row.leased == leased)
            and (leased is not False or row.id not in self.returned[row.function])
        ]

    def lease(self, function: str, limit: int, now: float) -> list[Row]:
        returned = self.returned[function]
        if returned:
            taken, self.returned[function] = returned[:limit], returned[limit:]
            found = [self.rows[number] for number in taken]
        else:
            free = self.those("queued", function, leased=False)
            due = sorted((row for row in free if 0 < row.at <= now), key=lambda row: (row.at, row.id))[:limit]
            ready = sorted((row for row in free if row.at == 0), key=lambda row: row.id)
            found = [*sorted(due, key=lambda row: row.id), *ready[: limit - len(due)]]
        for row in found:
            row.leased = True
        return found

    def next_due(self, function: str, now: float) -> float | None:
        if self.returned[function]:
            return now
        return min((max(row.at, now) for row in self.those("queued", function, leased=False)), default=None)

    def crash(self, now: float) -> int:
        interrupted = 0
        for row in self.rows.values():
            if row.running and row.state == "queued":
                row.interruptions += 1
                interrupted += 1
            row.leased = row.running = False
            if row.state not in ("dead", "removed"):
                row.at = row.at if row.at <= now + LONGEST_WAIT_S else now
        self.returned = {name: [] for name in FUNCTIONS}
        return interrupted


class QueueMachine(RuleBasedStateMachine):
    """Applies the same operations to the queue and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START_S
        self._clock = mock.patch.object(clock, "now", lambda: self.now)
        self._clock.start()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="queue-model-", dir=MEMORY))
        self.lives = 0
        self.model = Model()
        self.events: dict[int, Event] = {}

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.open(self.root / "0")

    def open(self, folder: Path) -> int:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.db = open_state(folder / "thawd.db")
        self.marks = Marks(folder / "marks")
        self.queue = EventQueue(self.db, marks=self.marks)
        self.outbox = Outbox(self.db)
        self.dead, self.removals = DeadLetters(self.db), Removals(self.db)
        interrupted: int = self.do(self.queue.recover(longest_wait_s=LONGEST_WAIT_S))
        return interrupted

    def close(self) -> None:
        self.db.close()
        self.marks.close()

    def teardown(self) -> None:
        """Take everything that is left out of the queue; each event must come out once."""
        try:
            if hasattr(self, "db"):
                self.crash()
                self.now += 10 * LONGEST_WAIT_S
                for function in FUNCTIONS:
                    there = self.model.those("queued", function)
                    got = self.do(self.queue.lease(function, limit=1000))
                    assert sorted((each.id, each.attempts, each.interruptions, each.accepted_at) for each in got) == [
                        (row.id, row.attempts, row.interruptions, row.accepted_at)
                        for row in sorted(there, key=lambda row: row.id)
                    ]
                waiting = [each.id for each in self.do(self.outbox.lease(limit=10_000))]
                assert sorted(waiting) == sorted(row.id for row in self.model.those("delivering"))
                self.close()
        finally:
            self._clock.stop()
            self.loop.close()
            shutil.rmtree(self.root)

    # Operations

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        """Do one of the operations that are possible now.

        This is a single rule because Hypothesis would disable most of several rules in each run.
        """
        model, draw = self.model, data.draw
        possible = [self.put, self.time_passes, self.the_process_may_die]
        if model.those("queued", leased=False) or any(model.returned.values()):
            possible += [self.lease_of_each_function] * 2
        if model.those("queued", leased=True):
            possible += [self.a_leased_event_goes_on] * 6
        if model.those("delivering"):
            possible += [self.outcomes_are_leased]
        if model.those("delivering", leased=True):
            possible += [self.outcome_ends] * 3
        if model.those("dead"):
            possible += [self.a_dead_letter_is_dealt_with] * 2
        if model.those("removed"):
            possible += [self.a_removal_is_undone]
        draw(st.sampled_from(possible))(draw)

    def time_passes(self, draw: Draw) -> None:
        self.now += draw(st.sampled_from([0.5, 1.0, 59.0, 200.0]))

    def put(self, draw: Draw) -> None:
        given = draw(st.lists(functions, min_size=1, max_size=4))
        if draw(st.booleans()):
            self.put_at_once([[function] for function in given])
            return
        new = []
        for function in given:
            self.model.last += 1
            number = self.model.last
            new.append(NewEvent(function=function, payload=b"{}", request_id=f"request-{number}"))
            self.model.rows[number] = Row(number, function, f"request-{number}", self.now)
            self.model.count(function, "accepted")
        ids = self.do(self.queue.put(new))
        assert ids == list(range(self.model.last - len(new) + 1, self.model.last + 1))
        for number, event in zip(ids, new, strict=True):
            if draw(st.booleans()):
                self.events[number] = as_accepted(event, number, self.now)
                assert self.queue.take(self.events[number])
                self.model.rows[number].leased = True

    def put_at_once(self, batches: list[list[str]]) -> None:
        """Put events from clients that do not wait for each other."""

        async def all_of_them() -> None:
            await asyncio.gather(
                *(
                    self.queue.put([NewEvent(function=name, payload=b"{}", request_id="together") for name in batch])
                    for batch in batches
                )
            )

        for batch in batches:
            for function in batch:
                self.model.last += 1
                self.model.rows[self.model.last] = Row(self.model.last, function, "together", self.now)
                self.model.count(function, "accepted")
        self.do(all_of_them())

    def lease_of_each_function(self, draw: Draw) -> None:
        limit = draw(st.integers(1, 4))
        for function in FUNCTIONS:
            self.lease(function, limit)

    def lease(self, function: str, limit: int) -> None:
        expected = self.model.lease(function, limit, self.now)
        events = self.do(self.queue.lease(function, limit=limit))
        assert [(e.id, e.function, e.request_id, e.attempts, e.interruptions, e.accepted_at) for e in events] == [
            (row.id, row.function, row.request_id, row.attempts, row.interruptions, row.accepted_at) for row in expected
        ]
        self.events.update((event.id, event) for event in events)

    def a_leased_event_goes_on(self, draw: Draw) -> None:
        row = draw(st.sampled_from(self.model.those("queued", leased=True)))
        how, wait_s, counts, runs = draw(st.tuples(st.sampled_from(ENDS), waits, st.booleans(), st.booleans()))
        if runs and not row.running:
            row.running = True
            self.queue.begins(self.events[row.id])
        if how == "runs on":
            return
        row.leased = False
        if row.running:
            row.running = False
            self.queue.ended(self.events[row.id])
        if how == "done":
            self.is_done(row, follow_up=wait_s > 1.0)
        elif how == "retried":
            self.is_retried(row, self.now + wait_s, counts=counts)
        elif how == "given back":
            self.queue.give_back(self.events[row.id])
            self.model.returned[row.function].append(row.id)
        elif how == "buried":
            self.bury(row, counts=counts, outcome=None)
        else:
            self.is_delivered_later(row, self.now + wait_s, counts=counts)

    def is_done(self, row: Row, *, follow_up: bool) -> None:
        model = self.model
        new = []
        if follow_up:
            model.last += 1
            new = [NewEvent(function=FUNCTIONS[0], payload=b"{}", request_id=f"request-{model.last}")]
            model.rows[model.last] = Row(model.last, FUNCTIONS[0], new[0].request_id, self.now)
            model.count(FUNCTIONS[0], "accepted")
        self.do(self.queue.done([row.id], follow_ups=new))
        model.count(row.function, "done")
        del model.rows[row.id]

    def is_retried(self, row: Row, at: float, *, counts: bool) -> None:
        self.do(self.queue.retry(row.id, at=at, error="again", counts=counts))
        row.at, row.attempts, row.interruptions = at, row.attempts + counts, 0
        if counts:
            self.model.count(row.function, "retried")

    def bury(self, row: Row, *, counts: bool, outcome: bytes | None) -> None:
        self.do(self.queue.dead_letter(row.id, error="bad", condition="Test", counts=counts, outcome=outcome))
        row.state, row.at, row.error, row.condition = "dead", self.now, "bad", "Test"
        row.attempts += counts
        row.outcome = outcome
        self.model.count(row.function, "buried")

    def is_delivered_later(self, row: Row, at: float, *, counts: bool) -> None:
        row.outcome = f"outcome of {row.id}".encode()
        self.do(self.queue.deliver_later(row.id, row.outcome, at=at, error="away", counts=counts))
        row.state, row.at, row.tries = "delivering", at, 0
        row.attempts += counts

    def outcomes_are_leased(self, _draw: Draw) -> None:
        waiting = self.do(self.outbox.lease(limit=10_000))
        due = [row for row in self.model.those("delivering", leased=False) if row.at <= self.now]
        assert sorted((each.id, each.document, each.tries) for each in waiting) == sorted(
            (row.id, row.outcome, row.tries) for row in due
        )
        for row in due:
            row.leased = True

    def outcome_ends(self, draw: Draw) -> None:
        row = draw(st.sampled_from(self.model.those("delivering", leased=True)))
        what = draw(st.sampled_from(["done", "retry", "advance", "bury", "bury and keep"]))
        row.leased = False
        if what == "done":
            self.do(self.queue.done([row.id]))
            self.model.count(row.function, "done")
            del self.model.rows[row.id]
        elif what == "retry":
            self.do(self.outbox.retry(row.id, at=self.now + 5.0, error="away"))
            row.at, row.tries = self.now + 5.0, row.tries + 1
        elif what == "advance":
            row.outcome, row.at, row.tries = b"the rest", self.now, 0
            self.do(self.outbox.advance(row.id, row.outcome))
        else:
            self.bury(row, counts=False, outcome=None if what == "bury" else b"another one")
        self.outbox.ended(row.id)

    def a_dead_letter_is_dealt_with(self, draw: Draw) -> None:
        row = draw(st.sampled_from(self.model.those("dead")))
        what = draw(st.sampled_from(["delete", "remove", "redrive"]))
        if what == "delete":
            assert self.do(self.dead.remove([row.id, 10**9])) == 1
            del self.model.rows[row.id]
            return
        if what == "remove":
            letters = draw(st.sampled_from([[row], self.model.those("dead")]))
            count, removal = self.do(self.removals.remove([*(each.id for each in letters), 10**9]))
            assert (count, removal.removed_at) == (len(letters), self.now)
            for old in self.expired():
                del self.model.rows[old.id]
            for each in letters:
                each.state, each.removal, each.removed_at = "removed", removal.id, self.now
            return
        assert self.do(self.dead.redrive([row.id, 10**9])) == {row.function: 1}
        row.state = "queued" if row.outcome is None else "delivering"
        row.at = row.accepted_at = self.now
        row.attempts = row.interruptions = row.tries = 0

    def expired(self) -> list[Row]:
        return [row for row in self.model.those("removed") if abs(self.now - row.removed_at) >= KEPT_S]

    def a_removal_is_undone(self, draw: Draw) -> None:
        number = draw(st.sampled_from(self.model.those("removed"))).removal
        back = [row for row in self.model.those("removed") if row.removal == number and row not in self.expired()]
        assert self.do(self.removals.undo(number)) == len(back)
        for row in back:
            row.state = "dead"
        assert self.do(self.removals.undo(number)) == 0

    def the_process_may_die(self, draw: Draw) -> None:
        # Only sometimes, because most operations need a leased event.
        if draw(st.sampled_from([False] * 3 + [True])):
            self.now -= draw(st.sampled_from([0.0, 0.0, 3600.0]))  # the clock may be set back while the process is down
            self.crash()

    def crash(self) -> None:
        """Kill the process. The next process opens the same files."""
        self.lives += 1
        next_one = self.root / str(self.lives)
        next_one.mkdir()
        for path in self.folder.iterdir():
            if not path.name.endswith("-shm"):
                shutil.copy(path, next_one / path.name)
        old, old_marks = self.db, self.marks
        expected = self.model.crash(self.now)
        assert self.open(next_one) == expected
        old.close()
        old_marks.close()

    # What callers see of the queue

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        if not hasattr(self, "db"):
            return
        model = self.model
        depths = self.do(self.queue.depth())
        for function in FUNCTIONS:
            leased = len(model.those("queued", function, leased=True))
            assert depths.get(function, Depth()) == Depth(
                queued=len(model.those("queued", function)) - leased,
                leased=leased,
                dead=len(model.those("dead", function)),
                delivering=len(model.those("delivering", function)),
            )
            assert self.do(self.queue.next_due(function)) == model.next_due(function, self.now)
        assert self.do(self.queue.flow()) == {name: Flow(**of) for name, of in model.flow.items()}
        letters = self.do(self.dead.page(limit=1000))
        assert [
            (each.id, each.attempts, each.error, each.condition, each.buried_at, each.has_outcome) for each in letters
        ] == [
            (row.id, row.attempts, row.error, row.condition, row.at, row.outcome is not None)
            for row in sorted(model.those("dead"), key=lambda row: row.id)
        ]


def test_the_queue_does_what_its_model_does() -> None:
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            derandomize=EXAMPLES <= 80,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
