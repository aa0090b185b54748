"""What the leader of a cluster does ends with its lease, and its failure is not hidden by the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.execution_fakes import until
from thawd.server.assembly.registered import Registered
from thawd.stores.cluster import leases
from thawd.stores.cluster.leases import Lease
from thawd.stores.cluster.machines import Identity


class FakeLeases:
    """Leases in a cluster in which this machine leads from the moment that it wants to."""

    membership = None

    def __init__(self) -> None:
        self.held: Lease | None = None

    def lease(self, name: str) -> Lease | None:
        return self.held

    def want(self, name: str, *, on_gained: Callable[[Lease], object], on_lost: Callable[[Lease], object]) -> None:
        self.held = Lease(name, 1, leases.now_s() + 300)

    def give_up(self, name: str) -> None:
        self.held = None


async def test_a_failure_of_the_leaders_work_ends_its_lead_and_is_not_hidden() -> None:
    found = FakeLeases()
    state: Any = SimpleNamespace(machine=Identity("a", ""), leases=found)
    port: Any = None

    async def work() -> None:
        raise ZeroDivisionError

    leading = asyncio.create_task(Registered(state, port, None).lead(work))
    await until(leading.done)
    with pytest.raises(ZeroDivisionError):
        await leading
    assert found.held is None
