"""`thawd.invocation`: request ids and trace headers."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

from thawd.invocation import new_request_id, new_trace_header


def test_request_ids_are_random_uuids() -> None:
    for _ in range(500):
        assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", new_request_id())


def test_ids_are_never_given_twice_also_not_to_threads_and_children() -> None:
    with ThreadPoolExecutor(8) as pool:
        given = [*pool.map(lambda _: new_request_id(), range(5000)), *(new_trace_header() for _ in range(5000))]
    assert len(set(given)) == 10_000
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_request_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).decode() not in {*given, *(new_request_id() for _ in range(1000))}
    os.close(read)
    os.close(write)
