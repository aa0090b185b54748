"""`thawd.gateway.http_server.limits`: the number of connections, which one is closed for another, and what they
hold."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from tests.unit.execution_fakes import until
from thawd.gateway.http_server import limits as module
from thawd.gateway.http_server.limits import MOST_CONNECTIONS, ConnectionLimits, Connections, most_connections


class Connection:
    """One connection, as its limits see it. `ended` is set when it is closed to make room or for its bytes."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.deadline_s = math.inf
        self.head_bytes = 0
        self.held_bytes = 0
        self.unread = False
        self.ended = False
        self.expired_at_s: list[float] = []

    def expire(self, now_s: float) -> None:
        self.expired_at_s.append(now_s)

    def has_unread(self) -> bool:
        return self.unread

    def end(self) -> None:
        self.ended = True


def a_server(said: list[str] | None = None, **limits: Any) -> Connections:
    return Connections(ConnectionLimits(**limits), complain=(said if said is not None else []).append)


def admitted(connections: Connections, count: int) -> list[Connection]:
    """Admit `count` connections that are all idle, the first for the longest time."""
    made = [Connection(str(number)) for number in range(count)]
    for connection in made:
        assert connections.admit(connection)
    return made


# Number of connections


@pytest.mark.parametrize(
    ("descriptors", "connections"),
    [(10, 16), (48, 16), (51, 17), (53, 17), (3000, 1000), (1 << 20, MOST_CONNECTIONS), (-1, MOST_CONNECTIONS)],
)
def test_a_third_of_the_descriptors_are_for_connections_within_bounds(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, connections: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module.resource, "getrlimit", lambda what: asked.append(what) or (descriptors, -1))
    assert most_connections() == connections
    assert asked == [module.resource.RLIMIT_NOFILE]


async def test_a_connection_that_is_closed_leaves_room_for_another() -> None:
    connections = a_server(connections=2)
    first, second = admitted(connections, 2)
    connections.leave(first)
    assert len(connections) == 1
    third = Connection()
    assert connections.admit(third)
    assert not any(each.ended for each in (first, second, third))


# Which connection is closed


async def test_room_is_made_by_the_connection_that_has_rested_longest() -> None:
    connections = a_server(connections=4)
    first, second, third, _ = admitted(connections, 4)
    connections.work(first)
    connections.rest(first)  # its idle time begins again, so the second is idle longest now
    assert connections.admit(Connection())
    assert second.ended
    assert connections.admit(Connection())
    assert third.ended
    assert not first.ended
    assert len(connections) == 4


async def test_a_connection_at_work_is_never_closed_for_room() -> None:
    connections = a_server(connections=2)
    for connection in (made := admitted(connections, 2)):
        connections.work(connection)
        connections.work(connection)  # called twice, as for a pipelined request
    assert not connections.admit(Connection())
    assert not any(connection.ended for connection in made)


async def test_a_connection_that_is_gone_neither_rests_nor_stalls() -> None:
    connections = a_server(connections=1)
    gone = Connection()
    connections.rest(gone)
    connections.stall(gone)
    (held,) = admitted(connections, 1)
    connections.work(held)
    assert not connections.admit(Connection())
    assert not gone.ended


async def test_where_hardly_any_connection_rests_the_one_that_has_stalled_longest_goes() -> None:
    connections = a_server(connections=16)
    made = admitted(connections, 16)
    for connection in made[2:]:
        connections.work(connection)
    for connection in (made[5], made[4]):
        connections.stall(connection)
    # Two of sixteen are idle: an eighth, and that many are kept.
    assert connections.admit(newcomer := Connection())
    assert made[5].ended
    assert not made[0].ended
    # Now three are idle, one more than is kept.
    assert connections.admit(Connection())
    assert made[0].ended
    assert not made[4].ended
    assert not newcomer.ended


async def test_a_connection_whose_client_reads_again_is_not_closed_for_having_stalled() -> None:
    connections = a_server(connections=2)
    for connection in (made := admitted(connections, 2)):
        connections.work(connection)
        connections.stall(connection)
    connections.go_on(made[0])
    connections.go_on(made[0])
    assert connections.admit(Connection())
    assert [connection.ended for connection in made] == [False, True]


async def test_where_none_has_stalled_none_is_sought_among_them() -> None:
    connections = a_server(connections=16)
    for connection in admitted(connections, 16):
        connections.work(connection)
    assert not connections.admit(Connection())


async def test_of_the_older_half_those_go_first_whose_clients_have_read_all() -> None:
    connections = a_server(connections=4)
    made = admitted(connections, 4)
    made[0].unread = True
    assert connections.admit(Connection())
    assert [connection.ended for connection in made] == [False, True, False, False]
    for connection in made:
        connection.unread = True
    assert connections.admit(Connection())
    assert [connection.ended for connection in made] == [True, True, False, False]


async def test_the_operator_is_told_once_that_there_is_no_room() -> None:
    said: list[str] = []
    connections = a_server(said, connections=2)
    admitted(connections, 2)
    assert said == []
    for _ in range(3):
        connections.admit(Connection())
    (line,) = said
    assert line.startswith("thawd: 2 connections are open")


# Bytes that connections hold


async def test_unfinished_heads_of_all_connections_together_are_limited_and_the_oldest_goes() -> None:
    connections = a_server(unfinished_bytes=100)
    first, second, third, _ = admitted(connections, 4)
    connections.head_goes_on(first, 30)
    connections.head_goes_on(second, 30)
    connections.head_goes_on(first, 30)  # it began first, although another received bytes last
    connections.head_goes_on(third, 10)
    assert not any(connection.ended for connection in (first, second, third))  # 100 bytes are allowed
    connections.head_goes_on(second, 1)
    assert [connection.ended for connection in (first, second, third)] == [True, False, False]
    assert (first.head_bytes, second.head_bytes) == (0, 31)
    connections.head_goes_on(third, 60)
    assert [connection.ended for connection in (first, second, third)] == [True, True, False]


async def test_a_head_that_is_complete_counts_no_more() -> None:
    connections = a_server(unfinished_bytes=100)
    first, second, third = admitted(connections, 3)
    connections.head_goes_on(first, 60)
    connections.head_is_over(first)
    connections.head_goes_on(second, 60)
    connections.head_goes_on(first, 40)  # its next request, which began after the second's
    connections.head_goes_on(third, 1)
    assert [connection.ended for connection in (first, second, third)] == [False, True, False]


async def test_a_connection_that_is_closed_holds_no_bytes() -> None:
    connections = a_server(unfinished_bytes=100, held_bytes=100)
    first, second = admitted(connections, 2)
    connections.head_goes_on(first, 100)
    assert connections.hold(first, 100)
    connections.leave(first)
    connections.head_goes_on(second, 100)
    assert not second.ended
    assert connections.hold(second, 100)


async def test_what_waits_behind_other_requests_is_limited_over_all_connections() -> None:
    connections = a_server(held_bytes=100)
    first, second = admitted(connections, 2)
    assert connections.hold(first, 60)
    assert connections.hold(first, 40)  # replaces the 60 bytes
    assert connections.hold(second, 60)
    assert not connections.hold(second, 61)
    assert connections.hold(first, 0)
    assert connections.hold(second, 100)


# Time limits


async def test_a_connection_over_its_time_is_told_once_and_the_looking_ends_with_the_last() -> None:
    connections = a_server(head_s=0.04)  # a quarter of the shortest limit passes between two checks
    late, later = admitted(connections, 2)
    late.deadline_s = asyncio.get_running_loop().time() - 1
    await until(lambda: late.expired_at_s)
    connections._sweep()
    assert len(late.expired_at_s) == 1
    assert later.expired_at_s == []
    for connection in (late, later):
        connections.leave(connection)
    connections._sweep()
    assert connections._sweeping is None
