"""Virtual environments made from requirements files, kept by the content of these.

An environment is made once for each combination of requirements, interpreter and platform, by whoever comes first;
all others wait for it. It is complete when its marker is there, which is written last; one without is thrown away.
Installs with the environment's own pip, whose settings are the user's.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import sysconfig
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from thawd.errors import EnvironmentBuildError
from thawd.execution.interpreters import Interpreter

_MARKER = ".thawd-complete"
_LOOK_AGAIN_S = 0.1
_TAIL_LINES = 20
_LONGEST_LINE_BYTES = 1 << 16
_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)
_REFERENCE = re.compile(r"(?:-r|-c|--requirement|--constraint)(?:\s*=\s*|\s+|(?=[^\s=]))(.+)")


async def prepare_environment(
    requirements: Path,
    interpreter: Interpreter,
    root: Path,
    *,
    on_line: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> Path:
    """A virtual environment with the packages of a requirements file; made now, unless it is there.

    A cancelled call kills what it started and leaves no half environment.

    Args:
        requirements: the file, absolute.
        interpreter: what the environment is made from; a virtual environment's own packages are not carried over.
        root: folder of all such environments; made when missing.
        on_line: called with each line of progress, without its end.
        environ: environment variables for pip; None: those of this process.

    Returns:
        Path of the environment's interpreter.

    Raises:
        EnvironmentBuildError: it cannot be made; the message ends with the last lines of output and the way out.
    """
    build = _Build(requirements, interpreter, root, on_line=on_line, environ=environ)
    if build.is_complete():
        return build.python
    async with build.lock() as lock:
        # Another process may have made it while this one waited.
        if not build.is_complete():
            await build.run(lock)
    return build.python
