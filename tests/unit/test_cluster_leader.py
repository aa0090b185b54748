"""What the leader of a cluster runs: an error of it is an error of the server, not the silence of all sources."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from thawd.server.assembly.registered import Registered


async def test_an_error_of_what_the_leader_runs_ends_it_while_the_lease_is_held() -> None:
    lease = SimpleNamespace(left_s=60.0)
    leases = SimpleNamespace(lease=lambda name: lease, want=lambda name, **on: None, give_up=lambda name: None)
    state: Any = SimpleNamespace(machine=SimpleNamespace(name="one"), leases=leases)

    async def work() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        async with asyncio.timeout(10) as limit:
            await Registered(state, None, None).lead(work)  # type: ignore[arg-type]
    assert not limit.expired()
