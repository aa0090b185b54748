"""What `thawd cluster ray up` was asked for. It has no secrets: Ray shows it and keeps it."""

from __future__ import annotations

import hashlib

import msgspec

NAMESPACE = "thawd"
"""Ray's namespace of all actors."""
SUPERVISOR = "supervisor"
AGENT = "agent-"
"""Names of agents begin with this. The id of the node follows."""
PROJECT = "project"
"""Folder of the project in a package that was sent to the nodes."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How thawd runs on Ray's nodes.

    Attributes:
        folder: the project's folder on each node; empty: it was sent to the nodes.
        package: what identifies the files that were sent; empty: none were sent.
        config: name of the configuration file in the folder.
        data: folder on each node under which thawd's data folders are.
        resource: custom resource of Ray; nodes that have it run thawd. Empty: all nodes do.
        scales: whether Ray's autoscaler is told how many machines are needed.
        least: lowest number of machines.
        most: highest number of machines.
        idle_s: how long machines must be too many before one is removed, seconds.
    """

    folder: str = ""
    package: str = ""
    config: str = "thawd.toml"
    data: str = "~/.thawd"
    resource: str = ""
    scales: bool = False
    least: int = 1
    most: int = 1000
    idle_s: float = 300.0

    @property
    def generation(self) -> str:
        """What identifies what an agent runs: 16 hexadecimal digits. Agents with another one are replaced."""
        parts = (self.folder, self.package, self.config, self.data, self.resource)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as it describes itself.

    Attributes:
        state: ``waiting`` (for credentials), ``starting``, ``serving``, ``failing``, ``stopping``, ``stopped``.
        why: why it does not serve; empty: it serves, or there is nothing to say.
        machine: name of its thawd in the cluster; empty: not known yet.
        url: URL of its thawd; empty: none runs.
        pid: process id of its thawd; 0: none runs.
        can_invite: whether it can let another machine join the cluster.
        generation: see `Options.generation`.
    """

    state: str
    why: str = ""
    machine: str = ""
    url: str = ""
    pid: int = 0
    can_invite: bool = False
    generation: str = ""
