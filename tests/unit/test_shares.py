"""How a concurrency limit is divided among machines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from thawd.cluster.shares import fair_share, split


@given(st.integers(0, 50), st.sets(st.text(), min_size=1, max_size=9))
def test_fixed_shares_add_up_to_the_limit_and_differ_by_one_at_most(limit: int, machines: set[str]) -> None:
    shares = split(limit, machines)
    assert sum(shares.values()) == limit
    assert max(shares.values()) - min(shares.values()) <= 1
    assert split(limit, sorted(machines, reverse=True)) == shares


def test_without_machines_there_are_no_shares() -> None:
    assert split(4, []) == {}


@given(st.integers(0, 50), st.dictionaries(st.text(), st.integers(0, 60), min_size=1, max_size=9))
def test_fair_shares_add_up_to_the_limit_and_nobody_wants_what_another_has_in_vain(
    limit: int, wanted: dict[str, int]
) -> None:
    shares = {machine: fair_share(limit, wanted, machine) for machine in wanted}
    assert sum(shares.values()) == limit
    if sum(wanted.values()) <= limit:
        assert all(shares[machine] >= wanted[machine] for machine in wanted)
    else:
        least = min(shares[machine] for machine in wanted if shares[machine] < wanted[machine])
        assert all(share <= least + 1 for share in shares.values())
