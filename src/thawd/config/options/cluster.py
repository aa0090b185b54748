"""Options of ``[cluster]``, and the environment variables that differ between its machines."""

from __future__ import annotations

import re

from thawd.config import kinds
from thawd.config.options.option import Option

NAME_VARIABLE = "THAWD_MACHINE"
KEY_VARIABLE = "THAWD_CLUSTER_KEY"
ADDRESS_VARIABLE = "THAWD_CLUSTER_ADDRESS"

MACHINE_NAME = kinds.pattern("a name of 1 to 63 lower-case letters, digits and hyphens", r"[a-z0-9-]{1,63}")
# A part of a host name has at most 63 characters, and none is empty (RFC 1035); Python's resolver fails otherwise.
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.?):([0-9]{1,5})")


def _is_address(text: str, *, lowest_port: int = 1) -> bool:
    found = _ADDRESS.fullmatch(text)
    return found is not None and lowest_port <= int(found[2]) < 1 << 16


ADDRESS = kinds.text('a host and a port from 1 to 65535, such as "10.0.0.1:8351" or "[fd00::1]:8351"', _is_address)

CLUSTER = (
    Option(
        "machines",
        kinds.table('a table of names and addresses, such as { a = "10.0.0.1:8351", b = "10.0.0.2:8351" }'),
        "All machines of the cluster, this one included: the name of each, and the address and port at which it "
        "accepts connections of the others. Event sources run on the first one. Without this list, machines find each "
        "other in the database `server.state`.",
        "none",
    ),
    Option(
        "address",
        kinds.text(
            'a host and a port from 0 to 65535, such as "10.0.0.1:8351" or "127.0.0.1:0"',
            lambda text: _is_address(text, lowest_port=0),
        ),
        "Address and port at which this machine accepts connections of the others, if they find each other in the "
        "database. Port 0 chooses a free port. All machines can share a file if the environment variable "
        "`THAWD_CLUSTER_ADDRESS` has the address.",
        '"127.0.0.1:0"',
    ),
    Option(
        "name",
        MACHINE_NAME,
        "Name of this machine. All machines can share a file if the environment variable `THAWD_MACHINE` has the name. "
        "Required with `machines`; otherwise thawd makes a name and keeps it in the data folder.",
        "none",
    ),
    Option(
        "key",
        kinds.text(
            "a text of 16 to 256 printable ASCII characters without spaces",
            re.compile(r"[!-~]{16,256}").fullmatch,
            secret=True,
        ),
        "Secret with which machines prove that they belong to the cluster. It is safer in the environment variable "
        "`THAWD_CLUSTER_KEY` than in this file. Required with `machines`; otherwise `thawd cluster up` makes a key and "
        "certificates, and `thawd cluster join` gets them.",
        "none",
    ),
    Option(
        "placement",
        kinds.choice("spread", "pack"),
        "Where new environments start if several machines are equally good: on the one with the most room, or on the "
        "fullest one that has enough.",
    ),
    Option("zone", kinds.text("a text"), "Zone of this machine. Machines in one zone copy snapshots quickly.", '""'),
    Option(
        "certificate",
        kinds.file(),
        "File with this machine's certificate and private key, in PEM format, for TLS between the machines.",
        "none",
    ),
    Option(
        "authority",
        kinds.file(),
        "File with the certificate of the authority that signed the machines' certificates, in PEM format.",
        "none",
    ),
    Option(
        "unencrypted",
        kinds.flag(),
        "Whether machines send requests over the network without TLS. Everything that listens on the network can then "
        "read and change them.",
    ),
)
