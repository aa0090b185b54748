"""Conditions under which `thawd bench` measures a function on a private server: how environments start, and how many.

A private server is a second thawd server, with an empty data folder, that runs only for the measurement.
"""

from __future__ import annotations

import msgspec

from thawd.bench.measurement_server import Place

ENGINES = ("auto", "cold", "fork", "thaw", "provisioned")
"""How environments start: as configured (auto), each with its own init (cold), forked from a process that has run init
(fork), from the snapshot (thaw), or before the first request (provisioned)."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Argument of the program `thawd.server.measurement.bench`.

    Attributes:
        place: files and folders of the private server.
        function: the function that it serves.
        engine: one of `ENGINES`.
        environments: largest number of environments.
        provisioned: number of environments that the server keeps initialised.
    """

    place: Place
    function: str
    engine: str
    environments: int
    provisioned: int
