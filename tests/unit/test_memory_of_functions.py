"""A server may have ten thousand functions: what each takes in memory before its first request, and what it shares."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.execution_fakes import House, version_of
from thawd.control.function_records import Family, VersionRecord, assigned, decode, encode, without
from thawd.environments.starts.origin import Origin
from thawd.environments.version import Variables, variables_of
from thawd.resources import LATEST, Function
from thawd.scheduling.function_entries import FunctionEntry
from thawd.scheduling.keep_alive import policy_of
from thawd.telemetry.metrics import FunctionMetrics

FUNCTIONS = 400
# CPython 3.11: 3,859 bytes.
MOST_BYTES = 4600


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def bytes_of_each(make: Callable[[int], object]) -> float:
    kept = [make(number) for number in range(20)]  # what all functions share is made now
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    kept += [make(number) for number in range(20, 20 + FUNCTIONS)]
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    return (after - before) / FUNCTIONS


@pytest.mark.usefixtures("traced")
async def test_a_function_that_waits_for_its_first_request_takes_little_memory() -> None:
    house = House()

    def make(number: int) -> object:
        name = f"function-{number}"
        pool = house.pool(name, snapshot=False)
        function = pool.version.function
        variables = Variables(of(function, root=f"/packages/{number}"))
        record = VersionRecord(function, "python3.11", "", 0, "")
        entry = FunctionEntry(function, FunctionMetrics())
        entry.latest.pool = pool
        return entry, variables, Family(name, declared=True, versions={LATEST: record}), Origin(pool.version)

    assert bytes_of_each(make) < MOST_BYTES


def of(function: Function, *, root: str) -> dict[str, str]:
    return variables_of(function, task_root=Path(root), python_version="3.11.7", buckets={}, own={"PATH": "/bin"})


def test_variables_behave_like_the_dictionary_that_they_were_made_from() -> None:
    given = of(version_of().function, root="/packages/1")
    made = Variables(given)
    assert dict(made) == given
    assert list(made.items()) == list(given.items())
    assert (made == Variables(given), made == Variables({**given, "TZ": "other"})) == (True, False)
    assert ("TZ" in made, "NO" in made, made.get("NO"), len(made)) == (True, False, None, len(given))


def test_empty_settings_of_a_function_cannot_change_those_of_another() -> None:
    one, other = Family("one"), Family("other")
    with pytest.raises(TypeError):
        one.tags["a"] = "b"  # type: ignore[index]
    one.tags = assigned(one.tags, "a", "b")
    assert (one.tags, other.tags) == ({"a": "b"}, {})
    assert decode(encode(one), Family) == one
    one.tags = without(one.tags, "a")
    assert decode(encode(one), Family) == Family("one")


def test_policies_that_learn_belong_to_one_function_and_fixed_ones_are_shared() -> None:
    assert policy_of("histogram", 60.0) is not policy_of("histogram", 60.0)
    assert policy_of("fixed", 60.0) is policy_of("fixed", 60.0)
    assert policy_of("fixed", 60.0).windows() != policy_of("fixed", 61.0).windows()
