"""The room of a `Room`, called directly: which function may overtake, which must yield, and what it may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.execution_fakes import FakeEnvironment, FakeSpawner, turns, version_of
from thawd.errors import NoRoomError
from thawd.scheduling import room as module
from thawd.scheduling.room import Room

NOW_S = 1000.0


class Occupant:
    """A function that wants room, urgently or not. `idle` lists since when its idle environments are idle."""

    def __init__(self, name: str, *, urgent: bool = False, **function: Any) -> None:
        self.version = version_of(name, **function)
        self.account: object = self
        self.urgent = urgent
        self.wants = True
        self.idle: list[float] = []
        self.on_grow: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None

    def wants_room(self) -> bool:
        return self.wants

    def is_urgent(self) -> bool:
        return self.urgent

    def idle_longest_since_s(self) -> float | None:
        return min(self.idle, default=None)

    def end_oldest_idle(self) -> None:
        self.idle.remove(min(self.idle))
        self.on_end()

    def grow(self) -> None:
        self.on_grow()


def a_room(*occupants: Occupant, max_environments: int = 8, memory_mb: int = 10_000, patience_s: float = 1.0) -> Room:
    room = Room(
        FakeSpawner(),  # type: ignore[arg-type]
        functions={occupant.version.function.name: occupant.version.function for occupant in occupants},
        memory_mb=memory_mb,
        max_environments=max_environments,
        patience_s=patience_s,
    )
    for occupant in occupants:
        room.join(occupant)
    return room


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test sets; `now_s` is its time."""
    clock = SimpleNamespace(now_s=NOW_S)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


# Overtaking: `first` waits in line, the room it waits for was just freed, and `second` asks before the offer to `first`


def second_may_have(
    first: Occupant, second: Occupant, *, held: int = 0, max_environments: int = 8, memory_mb: int = 10_000
) -> bool:
    """Return whether `second` gets room while `first` waits for room.

    Args:
        held: number of environments of another unreserved function, 100 MiB each.
    """

    async def work() -> bool:
        other, whole = Occupant("other", memory_mb=100), Occupant("whole", memory_mb=memory_mb)
        room = a_room(other, first, second, whole, max_environments=max_environments, memory_mb=memory_mb)
        # Given that everything is taken, so that `first` waits
        assert room.reserve(whole)
        own = first.version.function.reserved_concurrency or 0
        room._count[first] = own  # a function with reserved concurrency waits when its share, or the memory, is used up
        assert not room.reserve(first)
        room._count[first] = 0 if first.version.function.name == "served" else own
        # When the room that `whole` held is freed, except for `held` others
        room.release(whole)
        room._count[other] = held
        room._used_mb = held * 100
        return room.reserve(second)

    return asyncio.run(work())


def test_who_comes_later_gets_room_where_there_is_enough_for_both() -> None:
    assert second_may_have(Occupant("a", memory_mb=600), Occupant("b", memory_mb=300), memory_mb=1000)


@pytest.mark.parametrize(("second_mb", "has_room"), [(400, True), (401, False)])
def test_nobody_takes_the_memory_that_one_before_it_waits_for(second_mb: int, has_room: bool) -> None:
    first, second = Occupant("a", memory_mb=600), Occupant("b", memory_mb=second_mb)
    assert second_may_have(first, second, memory_mb=1000) is has_room


@pytest.mark.parametrize(("held", "has_room"), [(1, True), (2, True), (3, False)])
def test_nobody_takes_the_place_that_one_before_it_waits_for(held: int, has_room: bool) -> None:
    assert second_may_have(Occupant("a"), Occupant("b"), held=held, max_environments=4) is has_room


def test_memory_that_others_hold_counts_in_whether_there_is_enough_for_both() -> None:
    first, second = Occupant("a", memory_mb=500), Occupant("b", memory_mb=400)
    assert second_may_have(first, second, held=1, memory_mb=1000)
    first, second = Occupant("a", memory_mb=500), Occupant("b", memory_mb=400)
    assert not second_may_have(first, second, held=2, memory_mb=1000)


def test_a_reserved_function_takes_its_own_place_not_that_of_an_unreserved_one_before_it() -> None:
    assert second_may_have(Occupant("a"), Occupant("r", reserved_concurrency=3), held=0, max_environments=4)


def test_a_function_that_waits_for_its_own_share_holds_back_nobody() -> None:
    first, second = Occupant("r", reserved_concurrency=1, memory_mb=600), Occupant("b", memory_mb=600)
    assert second_may_have(first, second, memory_mb=1000)


def test_a_reserved_function_that_waits_for_memory_does_hold_others_back() -> None:
    first, second = Occupant("served", reserved_concurrency=1, memory_mb=600), Occupant("b", memory_mb=600)
    assert not second_may_have(first, second, memory_mb=1000)


async def test_synchronous_requests_wait_only_behind_synchronous_ones() -> None:
    whole, patient, urgent = (
        Occupant("whole", memory_mb=1000),
        Occupant("p", memory_mb=600),
        Occupant("u", memory_mb=600),
    )
    urgent.urgent = True
    room = a_room(whole, patient, urgent, memory_mb=1000)
    assert room.reserve(whole)
    assert not room.reserve(patient)
    room.release(whole)
    assert room.reserve(urgent)


async def test_asynchronous_requests_wait_behind_synchronous_ones_that_came_later() -> None:
    whole, patient, urgent = (
        Occupant("whole", memory_mb=1000),
        Occupant("p", memory_mb=600),
        Occupant("u", memory_mb=600),
    )
    urgent.urgent = True
    room = a_room(whole, patient, urgent, memory_mb=1000)
    assert room.reserve(whole)
    assert not room.reserve(patient)
    assert not room.reserve(urgent)
    room.release(whole)
    assert not room.reserve(patient)
    assert room.reserve(urgent)


async def test_asynchronous_requests_do_not_wait_behind_asynchronous_ones_that_came_later() -> None:
    whole, first, second = Occupant("whole", memory_mb=1000), Occupant("a", memory_mb=600), Occupant("b", memory_mb=600)
    room = a_room(whole, first, second, memory_mb=1000)
    assert room.reserve(whole)
    assert not room.reserve(first)
    assert not room.reserve(second)
    room.release(whole)
    assert not room.reserve(second)
    assert room.reserve(first)


async def test_a_functions_own_wish_for_room_is_no_reason_to_end_its_idle_environment() -> None:
    occupant, other = Occupant("a"), Occupant("b")
    room = a_room(occupant, other, max_environments=1)
    assert room.reserve(occupant)
    assert not room.reserve(occupant)
    assert not room.should_yield(occupant)
    assert not room.reserve(other)
    assert room.should_yield(occupant)


async def test_room_that_comes_free_is_offered_to_synchronous_requests_first() -> None:
    whole, patient, urgent = Occupant("whole", memory_mb=1000), Occupant("p"), Occupant("u", urgent=True)
    room = a_room(whole, patient, urgent, memory_mb=1000)
    offered: list[str] = []
    patient.on_grow, urgent.on_grow = (lambda name=name: offered.append(name) for name in ("p", "u"))
    assert room.reserve(whole)
    assert not room.reserve(patient)
    assert not room.reserve(urgent)
    room.release(whole)
    assert offered == []  # only after the current call
    await turns()
    assert offered == ["u", "p"]


# Making room by ending idle environments


def with_idle(room: Room, occupant: Occupant, *since_s: float) -> None:
    """Give `occupant` environments that are idle, each since one of these times."""
    for at_s in since_s:
        assert room.reserve(occupant)
        occupant.idle.append(at_s)
    occupant.on_end = lambda: room.release(occupant)


def test_a_place_is_made_by_ending_what_has_been_idle_longest_but_nothing_of_a_reserved_function() -> None:
    reserved, a, b, asking = Occupant("r", reserved_concurrency=1), Occupant("a"), Occupant("b"), Occupant("asking")
    room = a_room(reserved, a, b, asking, max_environments=3)
    with_idle(room, reserved, 1.0)
    with_idle(room, a, 3.0)
    with_idle(room, b, 2.0)
    assert room.reserve(asking)
    assert (reserved.idle, a.idle, b.idle) == ([1.0], [3.0], [])
    assert room.reserve(asking)
    assert not room.reserve(asking)
    assert reserved.idle == [1.0]


def test_memory_is_made_by_ending_idle_environments_of_reserved_functions_too_as_many_as_it_takes() -> None:
    reserved, a, asking = Occupant("r", reserved_concurrency=2), Occupant("a"), Occupant("asking", memory_mb=300)
    room = a_room(reserved, a, asking, memory_mb=512)
    with_idle(room, a, 2.0, 4.0)
    with_idle(room, reserved, 1.0, 3.0)
    assert room.reserve(asking)
    assert (reserved.idle, a.idle) == ([], [4.0])  # 1.0, 2.0 and 3.0 were ended: 128 + 300 MiB fit into 512


def test_no_function_ends_its_own_idle_environment_to_make_room_for_itself() -> None:
    by_count, by_memory = Occupant("a"), Occupant("b", memory_mb=600)
    room = a_room(by_count, max_environments=1)
    with_idle(room, by_count, 1.0)
    assert not room.reserve(by_count)
    room = a_room(by_memory, memory_mb=1000)
    with_idle(room, by_memory, 1.0)
    assert not room.reserve(by_memory)
    assert (by_count.idle, by_memory.idle) == ([1.0], [1.0])


class Crowded(FakeSpawner):
    """A machine that can start no process until `free_after` tries were made."""

    def __init__(self, free_after: int) -> None:
        super().__init__(immediate=True)
        self.free_after = free_after
        self.tries: list[bool] = []

    async def start(self, version: Any, *, provisioned: bool = False, spare: Any = None) -> FakeEnvironment:
        self.tries.append(provisioned)
        if len(self.tries) <= self.free_after:
            raise NoRoomError("Resource temporarily unavailable")
        return await super().start(version, provisioned=provisioned)


@pytest.mark.parametrize(
    ("idle", "free_after", "tries", "left"),
    [
        (9, 0, 1, 9),
        (9, 1, 2, 9),  # a process ended between the first two tries, so no idle environment had to
        (9, 2, 3, 8),  # one idle environment was ended for its process
        (9, 6, 7, 8),
        (9, 7, 8, 7),  # another one is ended after five tries, as the kernel may still be ending the first
        (9, 19, 20, 5),
        (1, 19, 20, 0),  # and it keeps trying after the only one has been ended
        (0, 19, 20, 0),  # or if there was none to end
    ],
)
def test_where_no_process_is_left_idle_environments_are_ended_a_few_tries_apart(
    monkeypatch: pytest.MonkeyPatch, idle: int, free_after: int, tries: int, left: int
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0)
    holder, asking = Occupant("a"), Occupant("b")
    room = a_room(holder, asking, max_environments=20)
    with_idle(room, holder, *map(float, range(idle)))
    room._spawner = spawner = Crowded(free_after)  # type: ignore[assignment]
    asyncio.run(room.start(asking.version, provisioned=True))
    assert spawner.tries == [True] * tries
    assert len(holder.idle) == left


def test_an_environment_that_becomes_idle_during_the_tries_gives_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0)
    holder, asking = Occupant("a"), Occupant("b")
    room = a_room(holder, asking, max_environments=20)

    class Later(Crowded):
        async def start(self, version: Any, *, provisioned: bool = False, spare: Any = None) -> FakeEnvironment:
            if len(self.tries) == 4:
                with_idle(room, holder, 1.0)
            return await super().start(version, provisioned=provisioned)

    room._spawner = spawner = Later(free_after=7)  # type: ignore[assignment]
    asyncio.run(room.start(asking.version))
    assert len(spawner.tries) == 8
    assert holder.idle == []


@pytest.mark.parametrize("idle", [0, 1, 9])
def test_where_no_process_comes_free_the_start_fails_at_the_twentieth_try(
    monkeypatch: pytest.MonkeyPatch, idle: int
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0)
    holder, asking = Occupant("a"), Occupant("b")
    room = a_room(holder, asking, max_environments=20)
    with_idle(room, holder, *map(float, range(idle)))
    room._spawner = spawner = Crowded(99)  # type: ignore[assignment]
    with pytest.raises(NoRoomError):
        asyncio.run(room.start(asking.version))
    assert spawner.tries == [False] * 20


# Yielding between two requests


def must_yield(
    clock: SimpleNamespace, *, running: bool, waiting: bool, waited_s: float, has_one: bool, patience_s: float = 5.0
) -> bool:
    """Return whether a function must give up its environment for another function.

    Args:
        running: whether the function that has the environment has synchronous requests.
        waiting: whether the waiting function has synchronous requests.
        waited_s: how long the other function has waited, seconds.
        has_one: whether the other function has an environment already.
    """
    occupant, other = Occupant("a", urgent=running), Occupant("b", urgent=waiting)
    room = a_room(occupant, other, max_environments=2, patience_s=patience_s)

    async def work() -> bool:
        assert room.reserve(occupant)
        assert room.reserve(other if has_one else occupant)
        assert not room.reserve(other)
        clock.now_s += waited_s
        return room.must_yield(occupant)

    return asyncio.run(work())


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize(
    ("waited_s", "has_one", "gives_way"), [(5, False, True), (4.9, False, False), (99, True, False)]
)
def test_of_equals_one_without_any_environment_gets_one_once_its_patience_is_over(
    clock: SimpleNamespace, urgent: bool, waited_s: float, has_one: bool, gives_way: bool
) -> None:
    assert must_yield(clock, running=urgent, waiting=urgent, waited_s=waited_s, has_one=has_one) is gives_way


@pytest.mark.parametrize(("waited_s", "has_one", "gives_way"), [(0, False, True), (5, True, True), (4.9, True, False)])
def test_synchronous_requests_get_an_environment_from_asynchronous_ones_without_patience_or_a_second_one_with_it(
    clock: SimpleNamespace, waited_s: float, has_one: bool, gives_way: bool
) -> None:
    assert must_yield(clock, running=False, waiting=True, waited_s=waited_s, has_one=has_one) is gives_way


def test_who_has_just_given_way_goes_to_the_end_of_the_line(clock: SimpleNamespace) -> None:
    occupant, other, third = Occupant("a"), Occupant("b"), Occupant("c")
    room = a_room(occupant, other, third, max_environments=1, patience_s=5.0)

    async def main() -> None:
        assert room.reserve(occupant)
        for waiting in (occupant, other, third):
            assert not room.reserve(waiting)
        clock.now_s += 5
        assert room.must_yield(occupant)
        assert list(room._line) == [other, third, occupant]
        assert room._line[occupant] == clock.now_s

    asyncio.run(main())


def test_who_need_not_give_way_keeps_its_place_in_the_line(clock: SimpleNamespace) -> None:
    occupant, other = Occupant("a"), Occupant("b")
    room = a_room(occupant, other, max_environments=1, patience_s=5.0)

    async def main() -> None:
        assert room.reserve(occupant)
        assert not room.reserve(occupant)
        assert not room.reserve(other)
        clock.now_s += 1
        assert not room.must_yield(occupant)
        assert list(room._line) == [occupant, other]

    asyncio.run(main())


def test_synchronous_requests_never_give_way_to_asynchronous_ones(clock: SimpleNamespace) -> None:
    assert not must_yield(clock, running=True, waiting=False, waited_s=1e6, has_one=False)
