"""How two machines of a cluster prove to each other that they have the cluster's key, which is never sent.

1. The machine that accepts a connection sends CHALLENGE with a random number, and the oldest and newest version of the
   protocol that it speaks.
2. The other one chooses the newest version that both speak, and sends PROOF: that version, its name, the name of the
   machine that it wants, a random number of its own, and a MAC over all of these.
3. The first one checks the MAC, and sends WELCOME with its own MAC over the same values, which the other one checks.

The MACs of the two sides begin with different words, so that none can be sent back as the other. The key protects the
start of a connection only. What is sent afterwards is protected by mutual TLS (`contexts`), or by nothing if the
configuration says that the network is trusted.

A new field of a frame needs a default and no new version: both sides ignore fields that they do not know. A new kind of
frame, or another meaning of a field, needs a new version. A thawd speaks all versions of the thawds beside which it may
run during an upgrade.
"""

from __future__ import annotations

import hmac
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Protocols(NamedTuple):
    """The oldest and the newest version of the protocol that a machine speaks."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"version {self.oldest}" if self.oldest == self.newest else f"versions {self.oldest} to {self.newest}"


PROTOCOLS = Protocols(1, 1)
"""What this thawd speaks."""


def offered(head: Mapping[str, Any]) -> Protocols:
    """The versions in a CHALLENGE. A machine with an earlier thawd names only one.

    Raises:
        KeyError, TypeError, ValueError: it names none.
    """
    oldest = int(head["protocol"])
    return Protocols(oldest, int(head.get("newest", oldest)))


def chosen(own: Protocols, other: Protocols, machine: str) -> int:
    """The newest version that two machines speak.

    Args:
        own: what this machine speaks.
        other: what the other machine speaks.
        machine: name of the other machine.

    Raises:
        HandshakeError: there is none.
    """
    newest = min(own.newest, other.newest)
    if newest >= max(own.oldest, other.oldest):
        return newest
    older = machine if other.newest < own.oldest else "this machine"
    raise HandshakeError(
        f"{machine} speaks {other} of the protocol between machines, and this machine {own}; they forward no requests "
        f"to each other until {older} has a newer thawd"
    )


class HandshakeError(Exception):
    """The other side is no machine of this cluster, or speaks another version of the protocol."""


def new_nonce() -> str:
    """Return 32 random bytes, in hexadecimal digits."""
    return os.urandom(32).hex()


def mac(key: str, side: str, *, nonces: tuple[str, str], names: tuple[str, str], protocol: int) -> str:
    """Return the MAC with which a machine proves that it has the key.

    Args:
        key: the cluster's key.
        side: ``asks`` or ``answers``: whether the machine opened or accepted the connection.
        nonces: the random numbers of the machine that accepted the connection, and of the other one.
        names: the names of these two machines.
        protocol: the chosen version of the protocol.
    """
    parts = ("thawd cluster", str(protocol), side, *nonces, *names)
    message = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hmac.new(key.encode(), message, "sha256").hexdigest()


def is_mac(found: object, wanted: str) -> bool:
    """Return whether a received MAC is the wanted one; takes the same time whatever differs."""
    return isinstance(found, str) and hmac.compare_digest(found.encode(), wanted.encode())


def contexts(certificate: Path, authority: Path, *, lets_join: bool = False) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS contexts for connections that this machine accepts, and for those that it opens.

    Each side must show a certificate that `authority` has signed. TLS does not compare names in certificates, because
    every machine of the cluster may have the same certificate.

    Args:
        certificate: file with this machine's certificate and its private key, PEM.
        authority: file with the certificate of the authority that signed the machines' certificates, PEM.
        lets_join: whether a connection is accepted without a certificate, so that a machine without one can join.

    Raises:
        OSError: a file cannot be read, or has no certificate or key (`ssl.SSLError`).
    """
    found = []
    for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate)
        context.load_verify_locations(authority)
        found.append(context)
    if lets_join:
        found[0].verify_mode = ssl.CERT_OPTIONAL
    return found[0], found[1]


def is_certified(connection: object, name: str) -> bool:
    """Return whether the other side of a TLS connection has shown a certificate with this machine's name.

    Args:
        connection: an `ssl.SSLObject` or None.
        name: the name.
    """
    certificate = connection.getpeercert() if isinstance(connection, ssl.SSLObject) else None
    fields = [field for part in (certificate or {}).get("subject", ()) for field in part]
    return ("commonName", name) in fields
