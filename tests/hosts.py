"""Hosts that are network namespaces: each with an address of its own, joined by a bridge in a further namespace.

Only root can make them, with `ip` of iproute2. Nothing of this machine's own network is changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

CLONE_NEWNET = 0x40000000


def why_none() -> str | None:
    """Return why this machine cannot make hosts; None: it can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    for program, package in (("ip", "iproute2"), ("iptables", "iptables")):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: {package})"
    try:
        with hosts(1, Path("/nonexistent"), stem=f"tp{os.getpid() % 1_000_000}"):
            return None
    except subprocess.CalledProcessError as error:
        return f"this machine allows no network namespaces: {error.stderr.decode().strip()}"


@dataclass
class Host:
    """One host.

    Attributes:
        name: name of the namespace.
        address: its address on the bridge.
        hub: namespace of the bridge; the host's port there has the host's name.
    """

    name: str
    address: str
    hub: str
    folder: Path
    _ports: dict[str, int] = field(default_factory=dict)

    def python(self) -> str:
        """Path of a program that runs this interpreter on the host."""
        path = self.folder / f"python-{self.name}"
        path.write_text(f'#!/bin/sh\nexec ip netns exec {self.name} {sys.executable} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def plug(self, *, is_in: bool) -> None:
        """Pull the host's network cable, or put it in."""
        _ip(self.hub, "link", "set", self.name, "up" if is_in else "down")

    def signal_all(self, number: int) -> None:
        """Send a signal to all processes on the host."""
        listed = subprocess.run(["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True)
        own = Path("/run/netns", self.name).stat().st_ino
        for pid in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                process = os.pidfd_open(int(pid))
                try:
                    # Another process may have got the id meanwhile.
                    if Path("/proc", pid, "ns/net").stat().st_ino == own:
                        signal.pidfd_send_signal(process, number)
                finally:
                    os.close(process)

    def drop(self, way: str, *, yes: bool) -> None:
        """Drop, or no longer drop, all that the host has ``sent`` over the network, or all that it ``received``."""
        rule = ("OUTPUT", "-o") if way == "sent" else ("INPUT", "-i")
        command = [
            "ip",
            "netns",
            "exec",
            self.name,
            "iptables",
            "-w",
            "-A" if yes else "-D",
            *rule,
            "net",
            "-j",
            "DROP",
        ]
        subprocess.run(command, check=True, capture_output=True)

    def hears_only(self, other: Host, *, yes: bool) -> None:
        """Drop, or no longer drop, what this host sends to another one. It still receives what the other one sends."""
        _ip(self.name, "route", "add" if yes else "del", "blackhole", f"{other.address}/32")

    def connect(self, port: int) -> socket.socket:
        """Connect to a port on the host's loopback address."""
        return self.opened(lambda: socket.create_connection(("127.0.0.1", port), timeout=300))

    def opened(self, make: Callable[[], T]) -> T:
        """Return what `make` makes on the host: a socket, or a process."""
        found: list[T | OSError] = []

        def enter() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/run/netns/{self.name}") as namespace:
                if libc.setns(namespace.fileno(), CLONE_NEWNET) < 0:
                    found.append(OSError(ctypes.get_errno(), "setns"))
                    return
            try:
                found.append(make())
            except OSError as error:
                found.append(error)

        thread = threading.Thread(target=enter)  # a thread of its own, which keeps the namespace until it ends
        thread.start()
        thread.join()
        if isinstance(found[0], OSError):
            raise found[0]
        return found[0]

    def request(self, url: str, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        """Send a request to a server on the host, and return status and document."""
        port = int(url.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.sock = self.connect(port)
        try:
            connection.request(method, path, body=body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def invoke(self, url: str, function: str, event: Any) -> tuple[int, Any]:
        """Invoke a function through a server on the host, and return status and document."""
        return self.request(url, "POST", f"/2015-03-31/functions/{function}/invocations", json.dumps(event).encode())


def _ip(namespace: str | None, *arguments: str) -> None:
    where = [] if namespace is None else ["-n", namespace]
    subprocess.run(["ip", *where, *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def hosts(count: int, folder: Path, *, stem: str = f"th{os.getpid() % 1_000_000}") -> Iterator[list[Host]]:
    """Make hosts, and remove them at the end of the block.

    Args:
        count: number of hosts, at most 200.
        folder: folder for small files of the tests.
        stem: beginning of the hosts' names, different in each process.

    Raises:
        subprocess.CalledProcessError: this machine does not allow it.
    """
    hub = f"{stem}-hub"
    with contextlib.ExitStack() as stack:

        def namespace(name: str) -> None:
            _ip(None, "netns", "add", name)
            stack.callback(_ip, None, "netns", "delete", name)
            _ip(name, "link", "set", "lo", "up")

        namespace(hub)
        _ip(hub, "link", "add", "bridge", "type", "bridge")
        _ip(hub, "link", "set", "bridge", "up")
        found = []
        for number in range(1, count + 1):
            host = Host(f"{stem}-{number}", f"10.213.7.{number}", hub, folder)
            namespace(host.name)
            _ip(host.name, "link", "add", "net", "type", "veth", "peer", "name", host.name, "netns", hub)
            _ip(hub, "link", "set", host.name, "master", "bridge", "up")
            _ip(host.name, "addr", "add", f"{host.address}/24", "dev", "net")
            _ip(host.name, "link", "set", "net", "up")
            found.append(host)
        yield found
