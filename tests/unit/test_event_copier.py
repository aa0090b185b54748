"""Copies of events in the cluster's database: what happens to them if their events are not accepted."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from thawd.errors import LeaseLostError
from thawd.stores.cluster import event_copies, leases
from thawd.stores.cluster.copier import EventCopier
from thawd.stores.cluster.leases import Lease
from thawd.stores.events.event_rows import NewEvent


class FakeDatabase:
    """A cluster's database in which the machine loses its lease after it has stored copies once."""

    def __init__(self) -> None:
        self.copies: set[str] = set()

    async def run(self, work: partial[Any], *, patience_s: float) -> None:
        if work.func is event_copies.place:
            if self.copies:
                raise LeaseLostError("cut off")
            self.copies.update(work.keywords["keys"])
        else:
            self.copies.difference_update(work.keywords.get("keys") or work.keywords["ended"])


async def test_events_that_are_refused_leave_no_copies_although_a_part_of_them_was_stored() -> None:
    cluster: Any = FakeDatabase()
    state: Any = None
    lease = Lease("machine:a", 1, leases.now_s() + 60)
    copier = EventCopier(state, cluster, machine="a", membership=lambda: lease, report=print)
    large = NewEvent(function="f", payload=bytes(5 << 20), request_id="r", source="lambda")
    with pytest.raises(LeaseLostError):
        await copier.place([(large, 1.0)] * 3)
    assert not cluster.copies
