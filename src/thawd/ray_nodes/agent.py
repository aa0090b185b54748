"""The agent of a node: a detached actor of Ray, which keeps one thawd running there.

Ray restarts it on its node as often as it ends. Its answers are JSON documents, so that agents and supervisors of
different versions of thawd understand each other. It never runs a function, and no invocation passes through it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from thawd.errors import ThawdError
from thawd.ray_nodes.keeper import Keeper, Place
from thawd.ray_nodes.options import PROJECT, Options


class Agent:
    """The agent of a node.

    Args:
        options: JSON document of `Options`.
        node: id of the node.
        address: IP address of the node.
    """

    def __init__(self, options: bytes, node: str, address: str) -> None:
        from thawd.ray_nodes.ray_library import living_nodes

        given = msgspec.json.decode(options, type=Options)
        folder = Path(given.folder) if given.folder else Path.cwd() / PROJECT
        self._keeper = Keeper(given, Place(node, address, folder, alive=living_nodes))

    def report(self) -> bytes:
        """Return the JSON document of an `AgentReport`."""
        return msgspec.json.encode(self._keeper.report)

    def invite(self) -> tuple[str, str] | None:
        """Return where a machine can join, and a token; None: it cannot at the moment."""
        try:
            return self._keeper.invite()
        except (ThawdError, OSError, ValueError, LookupError):
            return None

    def view(self) -> bytes:
        """Return all machines as thawd here knows them; empty: it does not answer."""
        try:
            return self._keeper.view()
        except (OSError, ValueError):
            return b""

    def admit(self, address: str, token: str) -> None:
        """See `Keeper.admit`."""
        self._keeper.admit(address, token)

    def make_cluster(self) -> None:
        """Let the thawd here make the cluster."""
        self._keeper.admit()

    def stop(self, drain: bool) -> None:
        """See `Keeper.stop`."""
        self._keeper.stop(drain=drain)
