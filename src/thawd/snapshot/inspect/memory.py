"""The mappings that an image's operations make, in the order of their addresses.

An operation is one step in which a thaw builds the memory of a copy. `Memory` finds the mapping at an address. Standard
library only, Python 3.9 and later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from thawd.snapshot.inspect.records import Operation


class Memory:
    """The mappings of anonymous memory, files and memory objects, and runs of stored pages that overlap none of these.

    Attributes:
        mappings: in the order of their addresses. If two mappings overlap, `at` finds at most one of them.
        order: for each mapping, the index of its operation.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._set_mappings(
            [index for index, item in enumerate(operations) if item.kind not in ("data", "copy")], operations
        )
        alone = [
            index for index, item in enumerate(operations) if item.kind == "data" and not self._overlaps_a_mapping(item)
        ]
        self._set_mappings([*self.order, *alone], operations)

    def _set_mappings(self, indexes: list[int], operations: Sequence[Operation]) -> None:
        self.order = sorted(indexes, key=lambda index: operations[index].address)
        self.mappings = [operations[index] for index in self.order]
        self._starts = [mapping.address for mapping in self.mappings]

    def at(self, address: int) -> int | None:
        """Index in `mappings` of the mapping at `address`; None if there is none."""
        found = bisect_right(self._starts, address) - 1
        return found if found >= 0 and address < self.mappings[found].end else None

    def span(self, start: int, end: int) -> range | None:
        """Indexes in `mappings` of the mappings that cover `start` to `end`; None if a part is not mapped."""
        first = self.at(start)
        if first is None:
            return None
        last = first
        while self.mappings[last].end < end:
            if last + 1 == len(self.mappings) or self._starts[last + 1] != self.mappings[last].end:
                return None
            last += 1
        return range(first, last + 1)

    def _overlaps_a_mapping(self, item: Operation) -> bool:
        """Whether any of the mappings overlaps `item`."""
        following = bisect_right(self._starts, item.address)
        return self.at(item.address) is not None or (
            following < len(self._starts) and self._starts[following] < item.end
        )
