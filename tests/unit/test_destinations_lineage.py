"""`thawd.destinations.lineage`: a chain of functions that loops is counted, whatever other trace fields there are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.destinations.lineage import MAX_INVOCATIONS, advance

NAMES = st.text("abcdefgh-_XYZ0189", min_size=1, max_size=64)


def test_two_functions_that_invoke_each_other_are_counted_separately() -> None:
    header: str | None = None
    seen = []
    for _ in range(MAX_INVOCATIONS):
        header, rounds = advance(header, source="ping", target="pong")
        seen.append(rounds)
        header, rounds = advance(header, source="pong", target="ping")
    assert seen == list(range(1, MAX_INVOCATIONS + 1))
    assert rounds == MAX_INVOCATIONS + 1


def test_a_loop_that_is_entered_from_elsewhere_is_counted_too() -> None:
    header, _ = advance(None, source="first", target="ping")
    counts = []
    for source, target in [("ping", "pong"), ("pong", "ping")] * MAX_INVOCATIONS:
        header, rounds = advance(header, source=source, target=target)
        counts.append(rounds)
    assert counts[-1] == MAX_INVOCATIONS + 1
    assert header.count("Lineage=") == 1


@given(st.lists(NAMES, min_size=2, max_size=30))
def test_the_count_is_how_often_the_chain_came_by(chain: list[str]) -> None:
    header: str | None = None
    for index in range(1, len(chain)):
        header, rounds = advance(header, source=chain[index - 1], target=chain[index])
        assert rounds == chain[: index + 1].count(chain[index])


@pytest.mark.parametrize(
    "given_header",
    [
        "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1",
        "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1;Lineage=nonsense",
        "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1;Lineage=1:a:1",
        "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1;Lineage=99999:" + "ab" * 4 + ":9x",
    ],
)
def test_the_rest_of_the_header_stays_and_what_is_no_lineage_begins_a_new_one(given_header: str) -> None:
    header, rounds = advance(given_header, source="one", target="two")
    assert header.startswith("Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1;Lineage=1:")
    assert rounds == 1


def test_an_invocation_without_a_header_gets_one() -> None:
    header, _ = advance(None, source="one", target="two")
    assert re.fullmatch(r"Root=1-[0-9a-f]{8}-[0-9a-f]{24};Parent=[0-9a-f]{16};Sampled=0;Lineage=1:\S+", header)
