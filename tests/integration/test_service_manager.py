"""Claims about a server that a service manager starts: it takes over a socket, and reports its state."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Project

# What systemd does between fork and exec.
START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="http")
os.execv(sys.executable, [sys.executable, "-m", "thawd", "up"])
"""
APP = """
import os
def handler(event, context):
    return {"passed": sorted(name for name in os.environ if name.startswith(("LISTEN_", "NOTIFY_")))}
"""


def start(project: Project, listening: socket.socket, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START, str(listening.fileno())],
        cwd=project.root,
        env={**os.environ, **environ},
        pass_fds=[listening.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_server_takes_over_the_socket_and_reports_its_state(project: Project, tmp_path: Path) -> None:
    project.code(APP)
    project.config('[functions.app]\nhandler = "app.handler"\n[routes]\n"$default" = "app"\n')
    with socket.socket() as listening, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        notices.bind(str(tmp_path / "notify"))
        notices.settimeout(120)
        port = listening.getsockname()[1]
        # The connection is made before the server runs, and waits for it.
        with socket.create_connection(("127.0.0.1", port), 120) as early:
            early.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            process = start(project, listening, NOTIFY_SOCKET=str(tmp_path / "notify"))
            with process:
                try:
                    assert notices.recv(4096).decode().splitlines() == [
                        "READY=1",
                        f"STATUS=serves http://127.0.0.1:{port}",
                    ]
                    answer = b"".join(iter(lambda: early.recv(4096), b""))
                    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"passed": []}
                    process.send_signal(signal.SIGHUP)
                    assert notices.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
                    assert notices.recv(4096).startswith(b"READY=1\n")
                    process.terminate()
                    assert notices.recv(4096) == b"STOPPING=1"
                    assert process.wait(120) == 0
                finally:
                    process.kill()
        # The service manager's socket goes on to accept connections while no server runs.
        socket.create_connection(("127.0.0.1", port), 60).close()


@pytest.mark.parametrize(
    ("kind", "address", "key", "message"),
    [
        (socket.AF_INET, ("0.0.0.0", 0), "", "no key, though other machines can reach 0.0.0.0"),
        # On a loopback address, such a URL accepts a key that everybody knows.
        (
            socket.AF_INET,
            ("0.0.0.0", 0),
            "a-long-secret",
            '"AWS_IAM" without server.access_keys, though other',
        ),
        (socket.AF_UNIX, "socket", "", "not a TCP socket"),
    ],
)
def test_a_socket_that_cannot_be_served_is_refused(
    project: Project, tmp_path: Path, kind: int, address: tuple[str, int] | str, key: str, message: str
) -> None:
    project.code(APP)
    project.config('[functions.app]\nhandler = "app.handler"\nurl = { auth_type = "AWS_IAM" }\n')
    with socket.socket(kind) as listening:
        listening.bind(str(tmp_path / address) if isinstance(address, str) else address)
        listening.listen()
        with start(project, listening, THAWD_KEY=key) as process:
            output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert message in output
