"""`thawd.grammar.lineage`: a chain of functions that loops is counted, whatever other trace fields there are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.grammar.lineage import MAX_INVOCATIONS, advanced, invocations

NAMES = st.text("abcdefgh-_XYZ0189", min_size=1, max_size=64)


def test_the_first_invocation_of_a_chain_is_number_0_as_on_aws() -> None:
    header = advanced(None, "f")
    assert re.fullmatch(
        r"Root=1-[0-9a-f]{8}-[0-9a-f]{24};Parent=[0-9a-f]{16};Sampled=0;Lineage=1:[0-9a-f]{8}:0", header
    )
    assert re.search(r"Lineage=2:[0-9a-f]{8}:1$", advanced(header, "f"))


def test_two_functions_that_invoke_each_other_are_counted_separately() -> None:
    header: str | None = None
    for before in range(MAX_INVOCATIONS):
        for name in ("ping", "pong"):
            assert invocations(header, name) == before
            header = advanced(header, name)
    assert header is not None
    assert header.count("Lineage=") == 1


@given(st.lists(NAMES, min_size=1, max_size=30))
def test_the_count_is_how_often_the_chain_came_by(chain: list[str]) -> None:
    header: str | None = None
    for index, name in enumerate(chain):
        assert invocations(header, name) == chain[:index].count(name)
        header = advanced(header, name)


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
    assert invocations(given_header, "one") == 0
    header = advanced(given_header, "one")
    assert header.startswith("Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1;Lineage=1:")
