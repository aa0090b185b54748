"""The process of a node's thawd: a child of the agent's process."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_READY = "ready.json"
_LOG = "server.log"
_TAIL_BYTES = 2000
_LOG_BYTES = 10 << 20
_libc = ctypes.CDLL(None)


def environment(initial: Mapping[str, str], *, folder: Path, data: Path, address: str) -> dict[str, str]:
    """Return the environment variables of a node's thawd: those of Ray's node, without what Ray has added.

    No variable of Ray is among them, such as the one with its token: functions can read the environment of thawd's
    process if they run as the same user.

    Args:
        initial: the variables with which the agent's process was started. Later changes are Ray's: it hides GPUs, for
            example, because the agent has reserved none.
        folder: folder of the project.
        data: thawd's data folder.
        address: host and port at which thawd accepts connections of other machines.
    """
    dropped = ("PWD", "OLDPWD", "SPT_NOENV", "PYTHONBREAKPOINT", "THAWD_JOIN_TOKEN", "THAWD_URL")
    kept = {name: text for name, text in initial.items() if not name.startswith("RAY_") and name not in dropped}
    if "PYTHONPATH" in kept:  # Ray has put the folder that it unpacked there, in which names of modules may be shadowed
        entries = [
            each for each in kept.pop("PYTHONPATH").split(os.pathsep) if each and not folder.is_relative_to(each)
        ]
        if entries:
            kept["PYTHONPATH"] = os.pathsep.join(entries)
    return {**kept, "THAWD_DATA": str(data), "THAWD_CLUSTER_ADDRESS": address}


def initial_variables() -> dict[str, str]:
    """Return the environment variables with which this process was started. Source: proc(5), /proc/PID/environ."""
    pairs = (entry.partition(b"=") for entry in Path("/proc/self/environ").read_bytes().split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(text) for name, _, text in pairs}


class ServerProcess:
    """A running thawd.

    When the thread that makes this ends, for example because its process was killed, the kernel sends SIGTERM to thawd,
    which then stops in order: without an agent, nobody would stop it. Source: prctl(2), PR_SET_PDEATHSIG.

    Args:
        config: the configuration file.
        own: folder of the agent's own files, with the log of thawd.
        environ: its environment variables; see `environment`.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, config: Path, own: Path, environ: Mapping[str, str]) -> None:
        self._ready, self._log = own / _READY, own / _LOG
        self._ready.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self._log.stat().st_size > _LOG_BYTES:
                self._log.replace(own / f"{_LOG}.1")
        parent = os.getpid()

        def prepare() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:  # the agent has ended between the fork and the call above
                os._exit(1)

        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._begun_at = os.fstat(log).st_size
            # -P: a file of the project must not replace a module of thawd or of Python.
            command = [sys.executable, "-P", "-m", "thawd", "up", "--quiet"]
            self._process = subprocess.Popen(
                [*command, "--config", str(config), "--ready-file", str(self._ready)],
                cwd=config.parent,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=prepare,  # noqa: PLW1509 - one system call
                start_new_session=True,
            )
        finally:
            os.close(log)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def url(self) -> str:
        """Its URL; empty until it answers."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return str(json.loads(self._ready.read_text())["url"])
        return ""

    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; returns whether it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.ended()

    def terminate(self) -> None:
        """Ask it to stop (SIGTERM): it finishes what it runs, for ``server.grace_s`` seconds at most."""
        self._process.terminate()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()

    def last_words(self) -> str:
        """Return the last line that it printed since its start; empty: none."""
        with contextlib.suppress(OSError), open(self._log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._begun_at, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
            return lines[-1].removeprefix("thawd: ") if lines else ""
        return ""


def end_left_over(data: Path, own: Path) -> None:
    """Ask a thawd of an agent before this one to stop, if it still uses the data folder and has got no signal.

    A thawd that has switched to another user gets none from the kernel when its agent is killed. Any other one has got
    it, and a second signal would end what it runs. Source: prctl(2), PR_SET_PDEATHSIG.

    Args:
        data: its data folder.
        own: folder of the agents' own files.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        pid = int(json.loads((own / _READY).read_text())["pid"])
        descriptor = os.pidfd_open(pid)
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if os.fsencode(f"THAWD_DATA={data}") in variables and _user_of(pid) != os.geteuid():
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        finally:
            os.close(descriptor)


def _user_of(pid: int) -> int:
    """The effective user of a process. Source: proc(5), /proc/PID/status."""
    [line] = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("Uid:")]
    return int(line.split()[2])
