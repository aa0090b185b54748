"""`thawd.system.threads`: which errors mean that the machine lacks threads or memory."""

from __future__ import annotations

import errno

import pytest

from thawd.errors import NoThreadError, ScarcityError
from thawd.system import threads


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory", "/a/folder/of/modules")],
    ids=["no memory", "no memory for a system call"],
)
def test_too_little_memory_is_told_with_the_way_out(error: Exception) -> None:
    reported = threads.scarcity(error)
    assert type(reported) is ScarcityError
    assert "ulimit -v" in str(reported)


def test_other_errors_are_none() -> None:
    assert isinstance(threads.scarcity(RuntimeError("can't start new thread")), NoThreadError)
    assert threads.scarcity(OSError(errno.ENOSPC, "No space left on device")) is None
    assert threads.scarcity(ImportError("no module named x")) is None
