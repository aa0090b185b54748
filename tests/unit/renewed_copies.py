"""Runs code in a process that copies itself by the C library's own fork, so that no fork handler of Python runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300


PRELUDE = """
    import ctypes, json, os, sys
    from thawd.snapshot import uniqueness

    OLD_PID = os.getpid()
    _fork = ctypes.PyDLL(None).fork

    def copy(work):
        # What `work` returns in a copy of this process.
        reading, writing = os.pipe()
        pid = _fork()
        if pid == 0:
            try:
                answer = work()
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}"
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as file:
            answer = json.load(file)
        os.waitpid(pid, 0)
        return answer

    def renew():
        return uniqueness.renew(OLD_PID, thread_ids=lambda tid: 0)

    def tell(answer):
        print(json.dumps(answer))
"""


def told(code: str, *, python: str = sys.executable, **variables: str) -> Any:
    """Run `code` in a separate process and return what it reports."""
    done = subprocess.run(
        [python, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(code)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)
