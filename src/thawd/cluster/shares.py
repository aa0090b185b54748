"""Divides a concurrency limit among machines. Pure.

`split` divides it among a fixed list of machines. `fair_share` divides it by what each machine would use; how machines
change their shares without ever exceeding the limit is the subject of `thawd.cluster.limits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def split(limit: int, machines: Iterable[str]) -> dict[str, int]:
    """Divide a limit among machines as evenly as possible. The shares add up to the limit.

    Args:
        limit: the limit, at least 0.
        machines: names of the machines. All machines must use the same names; the order does not matter.
    """
    names = sorted(set(machines))
    if not names:
        return {}
    each, left = divmod(limit, len(names))
    return {name: each + (place < left) for place, name in enumerate(names)}


def fair_share(limit: int, wanted: Mapping[str, int], machine: str) -> int:
    """Return the share that a machine should have: what it wants, or its part of the limit if all want more than that.

    A machine that wants less than its part leaves the rest to the others. The fair shares add up to the limit.

    Args:
        limit: the limit.
        wanted: how many invocations each machine would run, `machine` included.
        machine: the machine.
    """
    if sum(wanted.values()) <= limit:
        return wanted[machine] + split(limit - sum(wanted.values()), wanted)[machine]
    left, asking = limit, sorted(wanted, key=lambda name: (wanted[name], name))
    for place, name in enumerate(asking):
        share = min(wanted[name], left // (len(asking) - place))
        if name == machine:
            return share
        left -= share
    return 0
