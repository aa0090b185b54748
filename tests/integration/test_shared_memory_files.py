"""/dev/shm: each environment has a private one with what init left in it, which is removed with the environment.

The projects are outside /tmp, because functions do not see the machine's /tmp.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import test_private_tmp
from tests.integration.conftest import Project, eventually

pytestmark = test_private_tmp.pytestmark
outside = test_private_tmp.outside
SHARED = Path("/dev/shm")

CODE = """
    import os
    from multiprocessing import shared_memory

    with open("/dev/shm/left-%d", "wb") as file:
        file.write(b"by init")
    os.chmod("/dev/shm/left-%d", 0o640)

    def handler(event, context):
        seen = {name: oct(os.stat("/dev/shm/" + name).st_mode & 0o777) for name in sorted(os.listdir("/dev/shm"))}
        open("/dev/shm/handler-%d-" + str(event), "w").close()
        block = shared_memory.SharedMemory(create=True, size=100)
        block.buf[:3] = b"abc"
        again = shared_memory.SharedMemory(block.name)
        return [seen, open("/dev/shm/left-%d").read(), bytes(again.buf[:3]).decode()]
""".replace("%d", str(os.getpid()))
APP = '[functions.f]\nhandler = "app.handler"\nidle_timeout_s = 0\n'


@pytest.fixture
def before() -> Iterator[set[str]]:
    """The files there before the test. Afterwards there may be no others."""
    if not SHARED.is_dir():
        pytest.skip("there is no /dev/shm")
    listed = {path.name for path in SHARED.iterdir()}
    yield listed
    assert {name for name in {path.name for path in SHARED.iterdir()} - listed if str(os.getpid()) in name} == set()


@pytest.mark.parametrize("way", ["thaw", "fork", "cold"])
def test_files_in_shared_memory_are_an_environments_own_and_end_with_it(
    outside: Project, before: set[str], way: str
) -> None:
    outside.code(CODE)
    outside.config(APP + ("snapshot = false\n" if way == "cold" else ""))
    with outside.up(environ={"THAWD_SNAPSHOTS": "auto" if way == "thaw" else "off"}) as server:
        for number in range(2):
            answer, error = server.invoke("f", number)
            assert error is None, answer
            assert answer == [{f"left-{os.getpid()}": "0o640"}, "by init", "abc"]
            eventually(lambda: not any(server.function("f")["environments"].values()), what="its end")
        assert server.function("f")["starts"].keys() == {way}


def test_what_copies_cannot_be_given_is_told(outside: Project, before: set[str]) -> None:
    name = f"folder-{os.getpid()}"
    outside.code(f"import os\nos.mkdir('/dev/shm/{name}')\ndef handler(event, context): return 1\n")
    outside.config(APP)
    with outside.up() as server:
        assert server.invoke("f", 0) == (1, None)
        function = server.function("f")
        assert function["starts"].keys() == {"cold"}
        assert f"init left {name} in /dev/shm" in json.dumps(function), function
