"""A handler that does what its event says, for tests of environments, and helpers to invoke it several times in
parallel."""

from __future__ import annotations

from typing import Any

from .conftest import Running

CODE = """
import os, subprocess, sys, time

COUNTER = 0
ALLOCATE = "b = bytearray({} << 20)\\nfor i in range(0, len(b), 4096): b[i] = 1\\nimport time; time.sleep(30)"
DETACH = "import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nif os.fork(): os._exit(0)\\ntime.sleep(300)"

def handler(event, context):
    global COUNTER
    COUNTER += 1
    action = event.get("do")
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.005)
    if action == "sleep":
        time.sleep(event["s"])
    if action == "memory":
        data = bytearray(event["mib"] << 20)
        for at in range(0, len(data), 4096):
            data[at] = 1
        time.sleep(event.get("s", 0))
    if action == "child memory":
        subprocess.run([sys.executable, "-c", ALLOCATE.format(event["mib"])])
    if action == "fork and return":
        os.fork()
    if action == "fork and stay":
        if os.fork() == 0:
            time.sleep(300)
            os._exit(0)
    if action == "daemon":
        subprocess.Popen([sys.executable, "-c", DETACH]).wait()
    if action == "segfault":
        import ctypes
        ctypes.string_at(0)
    if action == "close":
        os.closerange(3, 100)
    if action == "garbage":
        for fd in range(3, 20):
            try:
                os.write(fd, b"garbage" * 100)
            except OSError:
                pass
    variables = dict(os.environ) if action == "environ" else None
    return {"pid": os.getpid(), "counter": COUNTER, "variables": variables}
"""

FORKED = {"THAWD_SNAPSHOTS": "off"}
"""Environment variables of a server that forks environments instead of thawing them."""


def together(running: Running, count: int) -> list[tuple[Any, str | None]]:
    """Run `count` invocations that have all started before the first one ends."""
    return running.invoke_at_once("app", count, {}, gate=running.project.root / "gate")
