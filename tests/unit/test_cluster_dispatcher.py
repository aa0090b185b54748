"""Requests that were to be forwarded and run here after all."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.execution_fakes import Machine, invocation, until, within
from thawd.cluster.forwarding import ClusterDispatcher, Router
from thawd.cluster.limits import Member
from thawd.cluster.machine_index import MachineIndex
from thawd.errors import TooManyRequestsException
from thawd.invocation import Invocation, Result
from thawd.stores.cluster.concurrency import Share
from thawd.stores.cluster.leases import Lease, now_s


async def test_a_server_that_stops_waits_for_a_request_that_another_machine_has_refused() -> None:
    # Given a request that another machine is asked to run
    machine = Machine()
    machine.spawner.immediate = True
    machine.dispatcher = dispatcher = ClusterDispatcher(
        machine.room, machine.spawner, machine.metrics, max_waiting=100, spawn_task=machine.spawn_task
    )
    await machine.serve("f")
    refused = asyncio.Event()

    async def forward(invocation: Invocation) -> Result | None:
        await refused.wait()
        return None

    dispatcher.forward = forward
    request = machine.ask()
    await asyncio.sleep(0)
    draining = asyncio.get_running_loop().create_task(dispatcher.drain(60))
    await asyncio.sleep(0)
    # When it refuses, and the request runs here
    refused.set()
    await until(machine.busy)
    await asyncio.sleep(0)
    # Then the server waits for its end
    assert not draining.done()
    [environment] = machine.busy()
    assert environment.answer is not None
    environment.answer.set_result(Result(b"1"))
    assert (await within(request)).payload == b"1"
    assert await within(draining) == 0


async def test_a_request_of_a_tenant_that_finds_the_share_used_makes_it_grow() -> None:
    # Requests of tenants run nowhere else, so that only the share of this machine serves them.
    machine = Machine()
    machine.spawner.immediate = True
    machine.dispatcher = dispatcher = ClusterDispatcher(
        machine.room, machine.spawner, machine.metrics, max_waiting=100, spawn_task=machine.spawn_task
    )
    lease = Lease("machine", 7, now_s() + 1000)
    dispatcher.member = Member("a", lambda: lease)
    await machine.serve("f", tenants=True, reserved_concurrency=4)
    dispatcher.forward = Router("a", dispatcher, MachineIndex(silence_s=2.0), key="k", strategy="spread").forward
    # Given a machine whose share is used by others
    dispatcher.member.got({"f": [Share("a", 0, 0, True), Share("b", 4, 0, True)]}, lease)
    with pytest.raises(TooManyRequestsException):
        await dispatcher.invoke(invocation(tenant_id="blue"))
    assert dispatcher.member.claims(dispatcher.families(), lease)["f"].wanted == 1
