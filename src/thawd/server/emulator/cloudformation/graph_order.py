"""Runs a function for each node of a dependency graph, after the nodes it depends on, several at the same time."""

from __future__ import annotations

import graphlib
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

_AT_ONCE = 8


def walk(
    needs: Mapping[str, Iterable[str]], work: Callable[[str], None], *, stop: threading.Event, goes_on: bool = False
) -> dict[str, Exception]:
    """Run `work` for each node, after it has run for the nodes that this node needs.

    Args:
        needs: the nodes, each with the nodes that it needs. Needed nodes that are not keys are ignored.
        work: called with a node, in a thread.
        stop: once it is set, no more calls begin.
        goes_on: whether work continues after a failure with the nodes that do not need the failed ones.

    Returns:
        The failures, by node.
    """
    known = {node: [one for one in wanted if one in needs] for node, wanted in needs.items()}
    sorter = graphlib.TopologicalSorter(known)
    sorter.prepare()
    failures: dict[str, Exception] = {}
    if not needs:
        return failures
    with ThreadPoolExecutor(min(_AT_ONCE, len(needs)), thread_name_prefix="stack") as pool:
        running: dict[Future[None], str] = {}
        while sorter.is_active() or running:
            may_begin = not stop.is_set() and (goes_on or not failures)
            if may_begin:
                for node in sorter.get_ready():
                    running[pool.submit(work, node)] = node
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                node = running.pop(future)
                error = future.exception()
                if error is None:
                    sorter.done(node)
                elif isinstance(error, Exception):
                    failures[node] = error
                else:
                    raise error
    return failures


def without_cycles(needs: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """The same graph without those edges that would close a cycle."""
    found: dict[str, set[str]] = {}
    for node, wanted in needs.items():
        found[node] = set()
        for one in sorted(wanted):
            if not _reaches(found, one, node):
                found[node].add(one)
    return found


def _reaches(needs: Mapping[str, Iterable[str]], start: str, end: str) -> bool:
    seen, left = set(), [start]
    while left:
        node = left.pop()
        if node == end:
            return True
        if node not in seen:
            seen.add(node)
            left += needs.get(node, ())
    return False


def turned(needs: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return the graph with reversed edges: each node with the nodes that need it."""
    found: dict[str, set[str]] = {node: set() for node in needs}
    for node, wanted in needs.items():
        for one in wanted:
            if one in found:
                found[one].add(node)
    return found
