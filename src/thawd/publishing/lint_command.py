"""``thawd snapshot lint``: runs one function's init phase and searches its process for what a snapshot would break.

The command needs no server and publishes nothing: the function runs in its own interpreter, from its code folder, and
its process ends after the search.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from thawd.environments.runtime_programs import runs_a_program
from thawd.environments.version import Version, variables_of, variables_of_environment
from thawd.errors import ThawdError
from thawd.publishing.interpreters import find_interpreter, prepare_environment
from thawd.publishing.uv import find_uv
from thawd.resources import Bucket, Function
from thawd.snapshot.lint.rule_texts import Finding
from thawd.wire import frames

_LAST_WORDS_S = 1.0


class LintError(ThawdError):
    """The function could not be checked, because it could not be initialised or thawd makes no snapshots of it."""


async def lint(
    function: Function,
    *,
    folder: Path,
    data: Path,
    buckets: Mapping[str, Bucket],
    own: Mapping[str, str],
    progress: Callable[[str], None],
) -> list[Finding]:
    """Initialise `function` and search its process.

    Args:
        function: the function as declared.
        folder: folder of the configuration file.
        data: the data folder, where virtual environments are kept.
        buckets: declared buckets.
        own: the platform's own environment variables.
        progress: called with lines about steps that take long, and with each line that the function prints.

    Raises:
        LintError: the init phase failed, or the function runs Node or a program in its own code.
        EnvironmentBuildError: there is no working interpreter, or the requirements cannot be installed.
    """
    if function.image is not None:
        raise LintError(
            f"{function.name} cannot be checked: its interpreter is in the image {function.image}. thawd tests each "
            "snapshot of it before it is used"
        )
    if runs_a_program(function):
        raise LintError(
            f"{function.name} cannot be checked: thawd makes no snapshots of functions with runtime {function.runtime}"
        )
    interpreter = find_interpreter(function.python, folder=folder, environ=own)
    python = interpreter.path
    if function.requirements is not None:
        python = await prepare_environment(
            function.requirements,
            interpreter,
            data / "environments",
            on_line=progress,
            environ=own,
            uv=find_uv(),
            function=function.name,
        )
    version_text = ".".join(map(str, interpreter.version))
    variables = variables_of(
        function,
        task_root=function.code,
        python_version=version_text,
        buckets={name: bucket.path for name, bucket in buckets.items()},
        own=own,
    )
    version = Version(
        function=function,
        generation=0,
        python=python,
        python_version=version_text,
        code=str(function.code),
        variables=variables,
    )
    return _search(version, progress)


def _search(version: Version, progress: Callable[[str], None]) -> list[Finding]:
    """Run the init phase and the search in a process of their own, and return the findings."""
    more_variables = variables_of_environment(log_stream="lint", initialization="snap-start", identifier="lint")
    control, their_control = socket.socketpair()
    services, their_services = socket.socketpair()
    lifeline_read, lifeline_write = os.pipe()
    theirs = (their_control.fileno(), their_services.fileno(), lifeline_read)
    try:
        process = subprocess.Popen(
            version.argv("lint", theirs),
            env={**version.variables, **more_variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=theirs,
            cwd=version.code,
            start_new_session=True,
        )
    finally:
        their_control.close()
        their_services.close()
        os.close(lifeline_read)
    received = bytearray()
    # Read meanwhile, because the report may be larger than the socket's buffer.
    reading = threading.Thread(target=_read_all, args=(control, received), daemon=True)
    reading.start()
    try:
        printed, _ = process.communicate(timeout=version.function.init_timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise LintError(
            f"{version.function.name} cannot be checked: its init phase took longer than init_timeout_s, "
            f"{version.function.init_timeout_s} s; raise init_timeout_s in thawd.toml"
        ) from None
    finally:
        os.close(lifeline_write)
        services.close()
        reading.join(_LAST_WORDS_S)
        control.close()
    for line in printed.decode(errors="replace").splitlines():
        progress(line)
    return _findings(version, bytes(received), process.returncode)


def _findings(version: Version, received: bytes, status: int) -> list[Finding]:
    decoder = frames.Decoder()
    decoder.feed(received)
    frame = decoder.take()
    if frame is not None and frame.kind == frames.READY:
        return msgspec.convert(frame.head["findings"], list[Finding])
    said: Any = frame.head["message"] if frame is not None and frame.kind == frames.INIT_ERROR else None
    raise LintError(
        f"{version.function.name} cannot be checked, because its init phase failed: "
        f"{said or f'the process ended with status {status}'}"
    )


def _read_all(control: socket.socket, received: bytearray) -> None:
    """Read until the process has ended; another process that has its end of the channel may keep it open."""
    with contextlib.suppress(OSError):
        while data := control.recv(1 << 18):
            received += data
