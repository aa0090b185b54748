"""How the thawd of a node gets the credentials of its cluster: it makes the cluster, or another machine lets it join.

Tokens are passed from agent to agent, as arguments of Ray's calls. They are never in a command line, an environment
variable, a file or a log, and end after `TOKEN_S`.
"""

from __future__ import annotations

import time
from pathlib import Path

from thawd.cluster import credentials, joining
from thawd.cluster.credentials import Credentials, CredentialsError
from thawd.config import Settings
from thawd.server.assembly.cluster_state import machine_name, recorded_authority

TOKEN_S = 120.0


def need_credentials(settings: Settings) -> bool:
    """Whether the machine must get credentials before it can serve."""
    assert settings.cluster is not None
    return not settings.cluster.key and not credentials.exist(settings.server.data)


def make_cluster(settings: Settings) -> None:
    """Make the credentials of a cluster's first machine.

    Raises:
        CredentialsError: the database has a cluster already.
        StoreError: the database cannot be used.
        OSError: the credentials cannot be stored.
    """
    assert settings.server.state is not None
    if recorded_authority(settings.server.state) is not None:
        raise CredentialsError(
            "the database has a cluster already, and no node of Ray has credentials of it. If its machines are outside "
            "of Ray, pass ADDRESS of one of them with --join and a token in THAWD_JOIN_TOKEN. If they are gone, give "
            "`state` another schema, with ?schema=NAME in its URL"
        )
    credentials.create(settings.server.data, own_name(settings))


def join(settings: Settings, address: str, token: str) -> None:
    """Get credentials from a machine of the cluster.

    Args:
        settings: the configuration.
        address: host and port of that machine for connections of the others.
        token: a token of the cluster.

    Raises:
        CredentialsError: the machine cannot be reached, is of another cluster, or refuses.
        OSError: the credentials cannot be stored.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise CredentialsError(f"the address to join must be a host and a port, such as 10.0.0.1:8351, not {address}")
    name = own_name(settings)
    joining.join((host.strip("[]"), int(port)), token, name=name, data=settings.server.data)


def token_of(data: Path) -> str:
    """Return a token with which another machine may join.

    Raises:
        CredentialsError: this machine has no credentials.
    """
    return Credentials(data).token(valid_s=TOKEN_S, now=time.time())


def own_name(settings: Settings) -> str:
    """Return this machine's name in the cluster.

    Raises:
        StartError: the file with the name cannot be read or written.
    """
    assert settings.cluster is not None
    settings.server.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    return settings.cluster.name or machine_name(settings.server.data)
