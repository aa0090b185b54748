"""What a function's running invocations need of its concurrency limit, and for how long.

The versions of a function run side by side, and a version that was replaced completes what it runs. Each has its own
timeout and its own number of invocations in an environment, so the settings of the newest version say nothing about
the invocations of the others.
"""

from __future__ import annotations

from typing import NamedTuple

from thawd.resources import Function


class _Kind(NamedTuple):
    """What an invocation's version allows: its timeout, seconds, and its most invocations in one environment."""

    timeout_s: int
    each: int


class Load:
    """The running invocations of a function, over all versions.

    Attributes:
        running: how many there are.
    """

    __slots__ = ("_kinds", "running")

    def __init__(self) -> None:
        self._kinds: dict[_Kind, int] = {}
        self.running = 0

    def add(self, function: Function) -> None:
        """Count an invocation of a version with these settings."""
        kind = _kind_of(function)
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        self.running += 1

    def remove(self, function: Function) -> None:
        """Count an invocation of `add` no longer. The settings must be the same."""
        kind = _kind_of(function)
        self._kinds[kind] -= 1
        if not self._kinds[kind]:
            del self._kinds[kind]
        self.running -= 1

    @property
    def environments(self) -> int:
        """How many environments the invocations need: those of different versions share none."""
        return sum(-(-count // each) for each, count in self._by_each().items())

    @property
    def places(self) -> int:
        """How many further invocations fit into these environments."""
        return sum(-count % each for each, count in self._by_each().items())

    @property
    def longest_timeout_s(self) -> int:
        """The longest timeout of an invocation, seconds; 0: none runs."""
        return max((kind.timeout_s for kind in self._kinds), default=0)

    def environments_with(self, function: Function) -> int:
        """How many environments are needed if an invocation of a version with these settings is added."""
        each = function.most_in_environment
        needs_another = not self._by_each().get(each, 0) % each
        return self.environments + needs_another

    def _by_each(self) -> dict[int, int]:
        """The number of invocations, by the most of them that one environment has at the same time."""
        found: dict[int, int] = {}
        for kind, count in self._kinds.items():
            found[kind.each] = found.get(kind.each, 0) + count
        return found


def _kind_of(function: Function) -> _Kind:
    return _Kind(function.timeout_s, function.most_in_environment)
