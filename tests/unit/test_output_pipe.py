"""The pipe with a process's output: what was written before an answer is in the log before the answer is passed on."""

from __future__ import annotations

import fcntl
import os
from typing import Any, cast

import pytest

from thawd.environments.output import OutputPipe


class _Stream:
    def __init__(self) -> None:
        self.taken = b""

    def output(self, data: bytes) -> None:
        self.taken += data

    def end(self) -> None:
        pass


@pytest.mark.parametrize("ends", [False, True])
def test_all_that_a_larger_pipe_holds_is_read(ends: bool) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(theirs, b"x" * 300_000)
    stream = _Stream()
    pipe = OutputPipe(ours, cast(Any, stream))
    if not ends:
        pipe.drain()
        assert len(stream.taken) == 300_000
    pipe.close()
    assert len(stream.taken) == 300_000
    os.close(theirs)
