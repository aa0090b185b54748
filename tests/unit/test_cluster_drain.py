"""A machine that is being drained: what it still runs, and how long it gives load balancers to notice."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.execution_fakes import Machine, until, within
from thawd.cluster.forwarding import ClusterDispatcher
from thawd.config import ClusterSettings
from thawd.errors import NotMemberError
from thawd.invocation import Result
from thawd.server.assembly import cluster
from thawd.server.assembly.cluster import ClusterSubsystem

KEY = "a-key-that-is-only-for-tests"


async def leaving() -> tuple[Machine, ClusterSubsystem]:
    """A machine that can be drained, whose cluster has no other machine that could run anything."""
    machine = Machine()
    machine.spawner.immediate = True
    machine.dispatcher = dispatcher = ClusterDispatcher(
        machine.room, machine.spawner, machine.metrics, max_waiting=100, spawn_task=machine.spawn_task
    )
    await machine.serve("f")
    addresses = {"a": ("127.0.0.1", 1), "b": ("127.0.0.1", 2)}
    subsystem = ClusterSubsystem(ClusterSettings(name="a", key=KEY, machines=addresses), dispatcher)
    dispatcher.forward = subsystem.router.forward
    subsystem._membership.send_summaries = lambda: None  # type: ignore[method-assign]
    return machine, subsystem


async def test_requests_run_on_a_machine_that_announces_its_drain_if_no_other_can_run_them() -> None:
    machine, subsystem = await leaving()
    announcing = asyncio.get_running_loop().create_task(subsystem.announce(60))
    await until(lambda: subsystem.why_not_ready)
    # Given a load balancer that has not noticed yet
    assert subsystem.why_not is None
    request = machine.ask()
    await until(machine.busy)
    [environment] = machine.busy()
    assert environment.answer is not None
    environment.answer.set_result(Result(b"1"))
    assert (await within(request)).payload == b"1"
    # When the time is over
    announcing.cancel()
    subsystem.hand_over(yes=True)
    # Then it refuses
    with pytest.raises(NotMemberError, match="no other machine could run the request"):
        await within(machine.ask())
    assert subsystem.why_not is not None
    subsystem.hand_over(yes=False)
    assert subsystem.why_not_ready is None


async def test_a_drain_is_announced_until_no_request_comes_or_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, subsystem = await leaving()
    monkeypatch.setattr(cluster, "_QUIET_S", 0.01)
    monkeypatch.setattr(cluster, "_NOTICE_S", 3600.0)
    await within(subsystem.announce(0.0))
    # Requests that keep coming delay the end, but not for ever
    monkeypatch.setattr(cluster, "_QUIET_S", 0.02)
    monkeypatch.setattr(cluster, "_NOTICE_S", 0.05)
    subsystem.router.kept_s = float("inf")
    await within(subsystem.announce(0.0))
