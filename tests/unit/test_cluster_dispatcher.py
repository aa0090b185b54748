"""Requests that were to be forwarded and run here after all."""

from __future__ import annotations

import asyncio

from tests.unit.execution_fakes import Machine, until, within
from thawd.cluster.forwarding import ClusterDispatcher
from thawd.invocation import Invocation, Result


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
