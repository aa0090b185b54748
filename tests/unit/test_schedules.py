"""Running schedules, with a simulated clock: each time once, whatever happens to server and clock."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory import MEMORY
from thawd.errors import StoreError
from thawd.grammar import schedule_expressions
from thawd.resources import Schedule
from thawd.sources.schedules import Schedules, sleep_or
from thawd.stores.database import Database
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.schedules import ScheduleState, ScheduleStore
from thawd.stores.schema import open_state

pytestmark = pytest.mark.in_memory

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp()


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.time = NOON

    def now(self) -> float:
        return self.time

    async def sleep(self, wait_s: float) -> None:
        await asyncio.Event().wait()


class House:
    """A state file, a clock, and a server that can be restarted."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "thawd.db"
        self.clock = Clock()
        self.told: list[str] = []
        self.woken: list[str] = []
        self.paused: frozenset[str] = frozenset()
        self.db: Database = open_state(self.path)
        self.schedules = self.new()

    def new(self) -> Schedules:
        return Schedules(
            ScheduleStore(self.db),
            wake=self.woken.extend,
            report=self.told.append,
            clock=self.clock,
        )

    def restart(self) -> None:
        """Stop the server and start it again."""
        self.db.close()
        self.db = open_state(self.path)
        self.schedules = self.new()

    async def declare(self, *schedules: Schedule) -> None:
        await self.schedules.declare({one.name: one for one in schedules}, paused=self.paused)

    async def run(self, *, at: float) -> list[str]:
        """Set the clock and look once. Return the times of the resulting events, HH:MM."""
        self.clock.time = at
        await self.schedules.catch_up()
        queue = EventQueue(self.db)
        events = await queue.lease("f", limit=2000, now=NOON * 2)
        await queue.done([event.id for event in events])
        return [json.loads(event.payload)["time"][11:16] for event in events]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.db.close()


def schedule(expression: str = "rate(10 minutes)", **changes: object) -> Schedule:
    return Schedule(name="s", function="f", schedule=expression, **changes)  # type: ignore[arg-type]


def minutes(count: float) -> float:
    return NOON + 60 * count


def test_each_time_gives_one_event_whose_form_is_eventbridges(house: House) -> None:
    async def scenario() -> None:
        await house.declare(schedule())
        assert await house.run(at=minutes(9.9)) == []
        house.clock.time = minutes(10.2)
        await house.schedules.catch_up()
        await house.schedules.catch_up()
        [event] = await EventQueue(house.db).lease("f", limit=10, now=NOON * 2)
        document = json.loads(event.payload)
        assert len(document.pop("id")) == 36
        assert document == {
            "version": "0",
            "detail-type": "Scheduled Event",
            "source": "aws.events",
            "account": "000000000000",
            "time": "2026-05-01T12:10:00Z",
            "region": "us-east-1",
            "resources": ["arn:aws:events:us-east-1:000000000000:rule/s"],
            "detail": {},
        }
        assert event.source == "schedule:s"
        assert house.woken == ["f"]
        state = house.schedules.state("s")
        assert state is not None
        assert (state.runs, state.last_run, round(state.last_late_s)) == (1, minutes(10), 12)

    asyncio.run(scenario())


def test_an_input_is_passed_on_as_it_is(house: House) -> None:
    async def scenario() -> None:
        await house.declare(schedule(input=b'{"own": 1}'))
        house.clock.time = minutes(10)
        await house.schedules.catch_up()
        [event] = await EventQueue(house.db).lease("f", limit=10, now=NOON * 2)
        assert event.payload == b'{"own": 1}'

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", []), ("once", ["12:40"]), ("all", ["12:10", "12:20", "12:30", "12:40"])],
)
def test_runs_that_were_missed_are_made_up_for_as_the_schedule_says(
    house: House, missed: str, expected: list[str]
) -> None:
    async def scenario() -> None:
        await house.declare(schedule(missed=missed))
        house.restart()
        house.clock.time = minutes(45)
        await house.declare(schedule(missed=missed))
        assert await house.run(at=minutes(45)) == expected
        assert await house.run(at=minutes(50)) == ["12:50"]
        assert bool(house.told) is (missed != "all")

    asyncio.run(scenario())


@pytest.mark.parametrize("missed", ["skip", "once"])
def test_a_run_that_is_just_due_at_the_start_is_not_missed(house: House, missed: str) -> None:
    async def scenario() -> None:
        await house.declare(schedule(missed=missed))
        house.restart()
        await house.declare(schedule(missed=missed))
        assert await house.run(at=minutes(40.5)) == ["12:40"]

    asyncio.run(scenario())


def test_thousands_of_missed_runs_are_made_up_for_in_portions(house: House) -> None:
    async def scenario() -> None:
        every_minute = schedule("cron(* * * * ? *)", missed="all")
        await house.declare(every_minute)
        assert len(await house.run(at=minutes(1234))) == 1234
        assert await house.run(at=minutes(1234)) == []

    asyncio.run(scenario())


def test_years_of_missed_runs_take_no_time_where_one_is_enough(house: House) -> None:
    async def scenario() -> None:
        every_minute = schedule("cron(* 3 * * ? *)")
        await house.declare(every_minute)
        assert await house.run(at=minutes(10 * 365 * 24 * 60)) == ["03:59"]

    asyncio.run(scenario())


def test_a_clock_that_is_set_back_an_hour_repeats_nothing_and_loses_nothing(house: House) -> None:
    async def scenario() -> None:
        await house.declare(schedule())
        assert await house.run(at=minutes(65)) == ["13:00"]
        for minute in (5, 10, 20, 59, 65):
            assert await house.run(at=minutes(minute)) == []
        house.restart()
        house.clock.time = minutes(5)
        await house.declare(schedule())
        for minute in (5, 20, 65):
            assert await house.run(at=minutes(minute)) == []
        assert await house.run(at=minutes(70)) == ["13:10"]

    asyncio.run(scenario())


def test_a_clock_that_was_years_ahead_does_not_hold_schedules_up_for_years(house: House) -> None:
    async def scenario() -> None:
        await house.declare(schedule())
        assert len(await house.run(at=minutes(10_000_000))) == 1
        assert await house.run(at=minutes(15)) == []
        assert "wrong" in house.told[-1]
        assert await house.run(at=minutes(20)) == ["12:20"]

    asyncio.run(scenario())


def test_event_and_progress_are_stored_together_or_not_at_all(house: House) -> None:
    async def scenario() -> None:
        await house.declare(schedule())
        await house.db.write(lambda connection: (connection.execute("DROP TABLE payloads"), None)[1])
        house.clock.time = minutes(10)
        with pytest.raises(StoreError):
            await house.schedules.catch_up()
        await house.db.write(
            lambda connection: (
                connection.execute("CREATE TABLE payloads (event INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT"),
                None,
            )[1]
        )
        assert await house.run(at=minutes(10)) == ["12:10"]

    asyncio.run(scenario())


def test_what_is_declared_while_nothing_can_be_stored_is_in_force_once_it_can(house: House) -> None:
    async def scenario() -> None:
        await house.declare(schedule())
        house.restart()
        # Given a state file that can be read, but refuses writes
        await house.db.write(
            lambda connection: (
                connection.execute(
                    "CREATE TRIGGER full BEFORE INSERT ON schedules BEGIN SELECT RAISE(ABORT, 'full'); END"
                ),
                None,
            )[1]
        )
        with pytest.raises(StoreError):
            await house.declare(schedule("rate(5 minutes)"))
        # Then the status can be shown nevertheless
        assert house.schedules.next_run("s") is None
        with pytest.raises(StoreError):
            await house.schedules.catch_up()
        await house.db.write(lambda connection: (connection.execute("DROP TRIGGER full"), None)[1])
        assert await house.run(at=minutes(1)) == []
        assert await house.run(at=minutes(6)) == ["12:06"]

    asyncio.run(scenario())


def test_two_that_look_at_once_give_one_event(house: House) -> None:
    """This happens after a crash in which the store's answer was lost."""

    async def scenario() -> None:
        await house.declare(schedule())
        other = house.new()
        await other.declare({"s": schedule()}, paused=frozenset())
        house.clock.time = minutes(10)
        await asyncio.gather(house.schedules.catch_up(), other.catch_up())
        assert await house.run(at=minutes(10)) == ["12:10"]

    asyncio.run(scenario())


def test_one_that_rests_misses_nothing(house: House) -> None:
    async def scenario() -> None:
        await house.declare(schedule(missed="all"))
        house.paused = frozenset({"s"})
        await house.declare(schedule(missed="all"))
        assert await house.run(at=minutes(25)) == []
        assert house.schedules.next_run("s") is None
        house.paused = frozenset()
        await house.declare(schedule(missed="all"))
        assert await house.run(at=minutes(29)) == []
        assert await house.run(at=minutes(30)) == ["12:30"]
        await house.declare(schedule(enabled=False))
        assert await house.run(at=minutes(60)) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("missed", ["once", "all"])
def test_one_that_rested_when_the_server_ended_and_is_awake_when_the_next_begins_misses_nothing(
    house: House, missed: str
) -> None:
    async def scenario() -> None:
        await house.declare(schedule(missed=missed, enabled=False))
        house.restart()
        house.clock.time = minutes(55)
        await house.declare(schedule(missed=missed))
        assert await house.run(at=minutes(55)) == []
        # The schedule keeps its rhythm, and times missed from now on are made up for
        assert await house.run(at=minutes(60)) == ["13:00"]
        house.restart()
        await house.declare(schedule(missed=missed))
        assert (await house.run(at=minutes(85)))[-1] == "13:20"

    asyncio.run(scenario())


def test_the_last_time_of_a_busy_season_long_ago_is_found_in_few_steps(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    after = schedule_expressions._Cron.after

    def counted(self: Any, moment: float, *, anchor: float) -> float | None:
        nonlocal steps
        steps += 1
        return after(self, moment, anchor=anchor)

    async def scenario() -> None:
        # Given a schedule for each minute of one month, and half a year without a server
        await house.declare(schedule("cron(* * * 5 ? *)", missed="once"))
        house.restart()
        monkeypatch.setattr(schedule_expressions._Cron, "after", counted)
        await house.declare(schedule("cron(* * * 5 ? *)", missed="once"))
        assert await house.run(at=NOON + 180 * 86_400) == ["23:59"]
        assert steps < 100

    asyncio.run(scenario())


def test_another_definition_begins_anew_and_another_function_does_not(house: House) -> None:
    async def scenario() -> None:
        await house.declare(schedule())
        house.clock.time = minutes(25)
        await house.declare(schedule("rate(30 minutes)"))
        assert await house.run(at=minutes(54)) == []
        assert await house.run(at=minutes(55)) == ["12:55"]
        await house.declare(schedule("rate(30 minutes)", input=b'{"time": "2026-05-01T00:00:00Z"}'))
        assert await house.run(at=minutes(85)) == ["00:00"]
        await house.declare()
        assert await house.run(at=minutes(500)) == []
        assert await ScheduleStore(house.db).load() == {}

    asyncio.run(scenario())


def test_a_single_time_runs_once(house: House) -> None:
    async def scenario() -> None:
        once = schedule("at(2026-05-01T14:30:00)", timezone="Europe/Berlin")
        await house.declare(once)
        assert house.schedules.next_run("s") == minutes(30)
        assert await house.run(at=minutes(30)) == ["12:30"]
        house.restart()
        await house.declare(once)
        assert await house.run(at=minutes(300)) == []
        assert house.schedules.next_run("s") is None

    asyncio.run(scenario())


def test_the_loop_runs_what_comes_due_and_notices_changes(house: House) -> None:
    async def scenario() -> None:
        waits: asyncio.Queue[float] = asyncio.Queue()
        proceed = asyncio.Event()

        class Slept(Clock):
            async def sleep(self, wait_s: float) -> None:
                waits.put_nowait(wait_s)
                await proceed.wait()
                proceed.clear()

        house.clock = Slept()
        house.schedules = house.new()
        running = asyncio.create_task(house.schedules.run())
        assert await waits.get() == 30
        await house.declare(schedule("rate(1 minute)"))
        assert await waits.get() == 30
        house.clock.time = minutes(0.75)
        proceed.set()
        assert await waits.get() == 15
        house.clock.time = minutes(1)
        proceed.set()
        assert await waits.get() == 30
        assert house.woken == ["f"]
        running.cancel()

    asyncio.run(scenario())


def test_progress_that_somebody_else_changed_is_not_overwritten(house: House) -> None:
    async def scenario() -> None:
        store = ScheduleStore(house.db)
        first = ScheduleState("s", "x", 1.0, 1.0)
        assert await store.advance(None, first)
        assert not await store.advance(None, ScheduleState("s", "x", 2.0, 2.0))
        assert await store.load() == {"s": first}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("begins", "expected"),
    [
        # 02:30 does not exist on 2026-03-29, and comes twice on 2026-10-25, first at 00:30 UTC.
        (datetime(2026, 3, 28, tzinfo=UTC), ["28 01:30", "30 00:30"]),
        (datetime(2026, 10, 24, tzinfo=UTC), ["24 00:30", "25 00:30", "26 01:30"]),
    ],
)
def test_a_day_of_23_and_one_of_25_hours(house: House, begins: datetime, expected: list[str]) -> None:
    async def scenario() -> None:
        house.clock.time = begins.timestamp()
        await house.declare(schedule("cron(30 2 * * ? *)", timezone="Europe/Berlin"))
        for step in range(1, 3 * 24 * 2):
            await house.run(at=begins.timestamp() + 1800 * step)
        state = house.schedules.state("s")
        assert state is not None
        assert state.runs == len(expected)

    async def times() -> list[str]:
        house.clock.time = begins.timestamp()
        await house.declare(schedule("cron(30 2 * * ? *)", timezone="Europe/Berlin", missed="all"))
        house.clock.time += 3 * 86_400
        await house.schedules.catch_up()
        events = await EventQueue(house.db).lease("f", limit=10, now=NOON * 2)
        return [json.loads(event.payload)["time"][8:16].replace("T", " ") for event in events]

    asyncio.run(scenario())
    asyncio.run(house.schedules.declare({}, paused=frozenset()))
    assert asyncio.run(times()) == expected


STEPS = st.lists(st.tuples(st.integers(-3600, 7200), st.sampled_from(["", "restart", "crash"])), max_size=12)


@settings(deadline=None, max_examples=40)
@given(STEPS)
def test_whatever_clock_and_server_do_each_time_gives_one_event(steps: list[tuple[int, str]]) -> None:
    async def scenario(house: House) -> None:
        latest = NOON
        seen: list[str] = []
        await house.declare(schedule(missed="all"))
        for jump_s, trouble in steps:
            house.clock.time += jump_s
            if trouble == "restart":
                house.restart()
                await house.declare(schedule(missed="all"))
            if trouble == "crash":
                # Another run has handled these times already, and this one does not know it.
                other = house.new()
                await other.declare({"s": schedule(missed="all")}, paused=frozenset())
                await other.catch_up()
            seen += await house.run(at=house.clock.time)
            latest = max(latest, house.clock.time)
        due = [NOON + 600 * number for number in range(1, 1 + int((latest - NOON) // 600))]
        assert seen == [datetime.fromtimestamp(at, UTC).strftime("%H:%M") for at in due]

    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        made = House(Path(folder))
        try:
            asyncio.run(scenario(made))
        finally:
            made.db.close()


@pytest.mark.parametrize("turns", range(6))
def test_a_loop_that_sleeps_ends_when_it_is_cancelled_at_the_moment_of_a_change(turns: int) -> None:
    changed = asyncio.Event()

    async def loop() -> None:
        while True:
            changed.clear()
            await sleep_or(changed, 60, clock=Clock())

    async def scenario() -> None:
        task = asyncio.create_task(loop())
        await asyncio.sleep(0)
        changed.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        was_ended = task.done()
        task.cancel()
        await asyncio.wait([task])
        assert was_ended

    asyncio.run(scenario())
