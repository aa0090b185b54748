"""Conditions under which `thawd bench` measures a function on a private server, such as how its environments start.

A private server is a second thawd server, with an empty data folder, that runs only for the measurement.
"""

from __future__ import annotations

import msgspec

from thawd.bench.measurement_server import Place

ENGINES = ("auto", "cold", "fork", "thaw", "provisioned")
"""How environments start: as configured (auto), each by running init (cold), forked from a process that has run init
(fork), thawed from the snapshot (thaw), or started before the load begins (provisioned)."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a measurement; as JSON, the argument of the program `thawd.server.measurement.bench`.

    Attributes:
        place: files and folders of the private server.
        function: the function that it serves.
        engine: one of `ENGINES`.
        environments: largest number of environments at the same time.
        provisioned: number of environments that the server keeps initialised.
    """

    place: Place
    function: str
    engine: str
    environments: int
    provisioned: int
