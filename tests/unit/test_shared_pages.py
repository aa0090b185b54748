"""The preparation of memory that copies share: gaps between objects are filled, and nothing in use is freed."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from thawd.runtime import shared_pages

_POOL_BYTES = 16 << 10

pytestmark = pytest.mark.skipif(not shared_pages.free_blocks(), reason="this interpreter reports no free blocks")


def free(block_bytes: int) -> int:
    return dict(shared_pages.free_blocks())[block_bytes]


def object_of(block_bytes: int) -> bytes:
    return bytes(block_bytes - sys.getsizeof(b""))


def test_all_free_blocks_are_filled() -> None:
    made = [object_of(480) for _ in range(10_000)]
    kept = made[::2]
    del made
    assert free(480) >= 4_000
    assert shared_pages.fill_free_blocks() >= 4_000
    assert free(480) <= _POOL_BYTES // 480
    assert len(kept) == 5_000


def test_new_objects_are_on_other_pages_than_old_ones() -> None:
    old = [object_of(480) for _ in range(1_000)][::2]
    shared_pages.fill_free_blocks()
    new = [object_of(480) for _ in range(100)]
    pools = {id(one) // _POOL_BYTES for one in old} & {id(one) // _POOL_BYTES for one in new}
    assert len(pools) <= 1  # only the pool that was in use when the last gap was filled


def test_what_is_printed_meanwhile_is_not_lost_and_nothing_else_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", file=sys.stderr, flush=True)
    shared_pages.free_blocks()
    print("after", file=sys.stderr, flush=True)
    assert capfd.readouterr().err == "before\nafter\n"


def test_an_interpreter_without_a_report_has_nothing_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "_debugmallocstats")
    assert shared_pages.fill_free_blocks() == 0


class _Value:
    pass


def test_local_variables_of_all_callers_are_kept_alive() -> None:
    def outer(call: Callable[[], None]) -> weakref.ref[_Value]:
        value = _Value()
        call()
        return weakref.ref(value)

    assert outer(lambda: None)() is None
    kept: Any = outer(shared_pages.keep_locals)
    assert isinstance(kept(), _Value)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on, counts of names are constant")
def test_looked_up_names_are_no_longer_referred_to() -> None:
    name = sys.intern("a name that only this test " + "looks up")
    before = sys.getrefcount(name)
    assert not hasattr(_Value, name)
    assert sys.getrefcount(name) > before
    shared_pages.forget_lookups()
    assert sys.getrefcount(name) == before
