"""Clusters of real thawds, for tests: several servers with one configuration, each with its own data folder."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.integration.conftest import Project, Running, eventually
from tests.ports import quiet_port

KEY = "a-key-that-is-only-for-tests"

CODE = """
import os, time
MACHINE = os.environ["PWD"].split("/.thawd/")[0].rpartition("/")[2]
calls = 0
def handler(event, context):
    global calls
    calls += 1
    if "file" in event:
        with open(event["file"], "a") as file:
            file.write(context.aws_request_id + "\\n")
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.005)
    if "fail" in event:
        raise ValueError(event["fail"])
    print("on", MACHINE)
    return {
        "machine": MACHINE,
        "calls": calls,
        "request_id": context.aws_request_id,
        "custom": context.client_context and context.client_context.custom,
        "trace": os.environ.get("_X_AMZN_TRACE_ID"),
        "bytes": len(event.get("data", "")),
    }
"""
"""The handler of functions in these clusters. It says on which machine it runs, and can wait for a file."""
FLOW = """
import os, time
from app import MACHINE
from thawd import streaming

@streaming.handler
def handler(event, stream, context):
    stream.write(MACHINE.encode())
    while not os.path.exists(event["gate"]):
        time.sleep(0.005)
    for _ in range(40):
        stream.write(bytes(range(256)) * 1000)
"""
"""The handler of a function that streams."""


def machine(
    root: Path, name: str, addresses: Mapping[str, str], config: str, *, options: str = "", server: str = ""
) -> Project:
    """Make the folder of one machine.

    Args:
        root: folder of all machines.
        name: name of the machine.
        addresses: the addresses of all machines.
        config: what follows ``[server]`` and ``[cluster]`` in thawd.toml, the same on all machines.
        options: further lines of ``[cluster]``.
        server: further lines of ``[server]``.
    """
    project = Project(root / name)
    project.root.mkdir()
    project.code(CODE)
    project.code(FLOW, "flow.py")
    listed = ", ".join(f'{each} = "{address}"' for each, address in addresses.items())
    project.config(
        f'{server}[cluster]\nname = "{name}"\nkey = "{KEY}"\nmachines = {{ {listed} }}\n{options}\n'
        + textwrap.dedent(config)
    )
    return project


@contextlib.contextmanager
def cluster(
    root: Path, names: str, config: str, *, options: str = "", server: str = ""
) -> Iterator[dict[str, Running]]:
    """Run machines with these one-letter names on this machine's loopback address, until the end of the block.

    When this returns, each of them knows all others.
    """
    addresses = {name: f"127.0.0.1:{quiet_port()}" for name in names}
    with contextlib.ExitStack() as stack:
        projects = {name: machine(root, name, addresses, config, options=options, server=server) for name in names}
        running = {name: stack.enter_context(project.up()) for name, project in projects.items()}
        for each in running.values():
            until_alive(each, names)
        yield running


def until_alive(running: Running, names: str) -> None:
    """Wait until a machine regards exactly these machines as alive."""

    def alive() -> bool:
        machines = running.status()["cluster"]["machines"]
        return {name for name, machine in machines.items() if machine["alive"]} == set(names)

    eventually(alive, what=f"{names} alive")


def machines_of(running: Running) -> dict[str, dict[str, object]]:
    """The machines of the cluster as one of them knows them."""
    found: dict[str, dict[str, object]] = running.status()["cluster"]["machines"]
    return found


def registered(root: Path, name: str, state: str, config: str, *, options: str = "", server: str = "") -> Project:
    """Make the folder of a machine that finds the others in a database.

    Args:
        root: folder of all machines.
        name: name of the machine.
        state: URL of the database.
        config: what follows ``[server]`` and ``[cluster]`` in thawd.toml, the same on all machines.
        options: further lines of ``[cluster]``.
        server: further lines of ``[server]``.
    """
    project = Project(root / name)
    project.root.mkdir()
    project.code(CODE)
    project.config(
        f'state = "{state}"\n{server}[cluster]\nname = "{name}"\nkey = "{KEY}"\n{options}\n' + textwrap.dedent(config)
    )
    return project
