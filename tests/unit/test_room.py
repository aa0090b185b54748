"""`thawd.scheduling.room`: room is shared fairly, never lost, never given twice."""

from __future__ import annotations

from tests.unit.execution_fakes import House, ask, environment_of, invocation, turns, warm, within


async def test_no_more_environments_than_the_machine_carries_by_count_and_by_memory() -> None:
    house = House(max_environments=3, memory_mb=1024, immediate=True)
    small, large = house.pool("small"), house.pool("large", memory_mb=512)
    tasks = [ask(small) for _ in range(2)] + [ask(large) for _ in range(2)]
    await turns()
    assert [task.done() for task in tasks] == [True, True, True, False]
    assert house.room._used_mb == 128 + 128 + 512
    small.release(tasks[0].result())
    await turns()
    assert tasks[3].done() is False  # the number of environments would allow it, the memory does not
    small.release(tasks[1].result())
    await within(tasks[3])


async def test_a_function_larger_than_the_machine_still_runs_alone() -> None:
    house = House(memory_mb=256, immediate=True)
    pool = house.pool(memory_mb=1024)
    await within(ask(pool))
    second = ask(pool)
    await turns()
    assert not second.done()
    assert house.room.most_at_once(pool.version.function) == 1
    second.cancel()
    await turns()


async def test_on_a_full_machine_the_longest_idle_environment_of_another_function_makes_room() -> None:
    house = House(max_environments=2)
    first, second, third = house.pool("a"), house.pool("b"), house.pool("c")
    (oldest,) = await warm(house, first)
    (newer,) = await warm(house, second)
    task = ask(third)
    await turns()
    assert oldest.was_killed.is_set()
    assert not newer.was_killed.is_set()
    house.spawner.succeed()
    await within(task)


async def test_the_start_that_room_is_made_for_is_begun_before_the_other_is_killed() -> None:
    """While the kernel ends a process, another process that starts at the same time has to wait for a processor."""
    house = House(max_environments=1)
    first, second = house.pool("a"), house.pool("b")
    (ending,) = await warm(house, first)
    task = ask(second)
    while not house.spawner.under_way:
        assert not ending.was_killed.is_set()
        await turns(1)
    assert not ending.was_killed.is_set()
    await within(ending.was_killed.wait())
    house.spawner.succeed()
    await within(task)


async def test_provisioned_environments_are_not_ended_for_others() -> None:
    house = House(max_environments=1, immediate=True)
    kept, other = house.pool("a", provisioned_concurrency=1), house.pool("b")
    await within(kept.provision())
    task = ask(other)
    await turns()
    assert not task.done()
    assert kept.counts()["idle"] == 1
    task.cancel()
    await turns()


async def test_a_function_without_room_gets_it_when_an_environment_of_another_becomes_idle() -> None:
    house = House(max_environments=1)
    first, second = house.pool("a"), house.pool("b")
    await warm(house, first)
    lease = await first.acquire(invocation("a"))
    task = ask(second)
    await turns()
    assert not house.spawner.under_way
    first.release(lease)
    await turns()
    assert environment_of(lease).was_killed.is_set()
    house.spawner.succeed()
    await within(task)


async def test_a_function_without_any_environment_is_not_starved_by_another_that_always_has_waiters() -> None:
    house = House(max_environments=2, immediate=True, patience_s=0.0)
    greedy, starving = house.pool("greedy"), house.pool("starving")
    leases = [await within(ask(greedy)) for _ in range(2)]
    queue = [ask(greedy) for _ in range(40)]
    await turns()
    task = ask(starving)
    await turns()
    for waiting in queue:
        greedy.release(leases.pop(0))
        await turns()
        if task.done():
            break
        leases.append(await within(waiting))
    assert task.done(), "40 requests of another function, all asked before or after, went before it"
    for waiting in queue:
        waiting.cancel()
    await turns()


async def test_an_idle_environment_is_kept_when_nobody_waits_for_room_any_more() -> None:
    # Given a function that requested room without success, and whose request has been cancelled since
    house = House(max_environments=1)
    first, second = house.pool("a"), house.pool("b")
    (environment,) = await warm(house, first)
    lease = await first.acquire(invocation("a"))
    task = ask(second)
    await turns()
    task.cancel()
    await turns()
    # When the environment becomes idle
    first.release(lease)
    await turns()
    # Then it stays warm
    assert not environment.was_killed.is_set()


async def test_an_idle_environment_of_a_reserved_function_is_kept_when_ending_it_would_help_nobody() -> None:
    """Its place is reserved, so an unreserved function that waits for a place could not use it anyway."""
    house = House(max_environments=2)
    reserved, a, b = house.pool("r", reserved_concurrency=1), house.pool("a"), house.pool("b")
    (environment,) = await warm(house, reserved)
    await warm(house, a)
    busy = await a.acquire(invocation("a"))
    waiting = ask(b)
    lease = await reserved.acquire(invocation("r"))
    await turns()
    reserved.release(lease)
    await turns()
    assert not environment.was_killed.is_set()
    a.release(busy)
    await turns()
    house.spawner.succeed()
    await within(waiting)


async def test_reserved_concurrency_is_set_aside_and_is_a_limit() -> None:
    house = House(max_environments=3, immediate=True)
    shared, reserved = house.pool("s"), house.pool("r", reserved_concurrency=2)
    tasks = [ask(shared) for _ in range(3)]
    await turns()
    assert [task.done() for task in tasks] == [True, False, False]
    others = [ask(reserved) for _ in range(3)]
    await turns()
    assert [task.done() for task in others] == [True, True, False]
    for task in [*tasks, *others]:
        task.cancel()
    await turns()


async def test_two_functions_that_wait_are_both_offered_room_that_comes_free() -> None:
    """An offer to the first can itself free room and offer it to the second. This must cause no error."""
    # Given a place for one unreserved function, held by x; r, idle in its reserved place; large and small, which wait
    house = House(max_environments=2, memory_mb=1000, immediate=True)
    x = house.pool("x")
    reserved = house.pool("r", reserved_concurrency=1, memory_mb=512)
    large, small = house.pool("large", memory_mb=600), house.pool("small", memory_mb=128)
    held = await within(ask(x))
    reserved.release(await within(ask(reserved)))
    tasks = [ask(large), ask(small)]
    await turns()
    assert not any(task.done() for task in tasks)
    # When x's environment dies
    environment_of(held).die()
    x.release(held)
    await turns()
    # Then one of the two has the place, not both, and there was no exception
    assert house.failures == []
    assert [task.done() for task in tasks].count(True) == 1
    first, second = (0, 1) if tasks[0].done() else (1, 0)
    pools = (large, small)
    pools[first].release(tasks[first].result())
    await within(tasks[second])


async def test_room_is_not_given_twice_when_ending_an_idle_environment_offers_it_to_another() -> None:
    house = House(max_environments=2, immediate=True)
    a, b, c = house.pool("a"), house.pool("b"), house.pool("c")
    one, two = await within(ask(a)), await within(ask(b))
    waiting = [ask(c), ask(c), ask(c)]
    await turns()
    a.release(one)
    b.release(two)
    await turns(50)
    alive = [e for e in house.spawner.environments if not e.was_killed.is_set()]
    assert len(alive) <= 2
    for task in waiting:
        task.cancel()
    await turns()
    assert house.failures == []


async def test_a_synchronous_request_does_not_wait_for_a_flood_of_asynchronous_ones() -> None:
    """It does not even wait for the patience time, which is an hour here."""
    house = House(max_environments=1, immediate=True, patience_s=3600.0)
    flooded, asked = house.pool("flooded"), house.pool("asked")
    lease = await within(ask(flooded, asynchronous=True))
    flood = [ask(flooded, asynchronous=True) for _ in range(10)]
    await turns()
    task = ask(asked)
    await turns()
    flooded.release(lease)
    await within(task)
    assert not any(waiting.done() for waiting in flood)
    asked.release(task.result())
    await within(flood[0])
    for waiting in flood[1:]:
        waiting.cancel()
    await turns()


async def test_a_synchronous_request_goes_before_asynchronous_ones_that_have_waited_longer_for_room() -> None:
    house = House(max_environments=1, immediate=True, patience_s=3600.0)
    busy, first, second = house.pool("busy"), house.pool("first"), house.pool("second")
    lease = await within(ask(busy))
    patient = ask(first, asynchronous=True)
    await turns()
    urgent = ask(second)
    await turns()
    busy.release(lease)
    await within(urgent)
    assert not patient.done()
    second.release(urgent.result())
    await within(patient)


async def test_synchronous_requests_keep_their_environment_while_asynchronous_ones_of_another_function_wait() -> None:
    house = House(max_environments=1, immediate=True, patience_s=0.0)
    flooded, other = house.pool("flooded"), house.pool("other")
    lease = await within(ask(flooded))
    patient = ask(other, asynchronous=True)
    await turns()
    for _ in range(3):
        following = ask(flooded)
        await turns()
        flooded.release(lease)
        assert (await within(following)).environment is lease.environment
        lease = following.result()
    assert not patient.done()
    flooded.release(lease)
    await within(patient)
