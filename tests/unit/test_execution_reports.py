"""What the launcher learns from thawd-thaw about the execution of a program."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import sys
from collections.abc import Iterator

import pytest

from thawd.environments.starts.program_execution import error_of


@pytest.fixture
def many_files() -> Iterator[None]:
    """Lets this process have descriptors above 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("the limit of open files is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_error_is_read_from_a_descriptor_above_1024(many_files: None) -> None:
    read, write = os.pipe()
    high = fcntl.fcntl(read, fcntl.F_DUPFD_CLOEXEC, 1500)
    try:
        os.write(write, errno.ENOEXEC.to_bytes(4, sys.byteorder))
        assert error_of(high) == errno.ENOEXEC
        os.close(write)
        assert error_of(high) == 0  # the program was executed
    finally:
        os.close(read)
        os.close(high)
