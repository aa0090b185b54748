"""Under which conditions `thawd bench` measures a function."""

from __future__ import annotations

import msgspec

from thawd.bench.private_start import Place

ENGINES = ("auto", "cold", "fork", "thaw", "provisioned")
"""How environments start: as configured; each by its own init; by fork of a process that has run it; from the snapshot;
ahead of the requests."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What the private server is told.

    Attributes:
        place: where it finds and puts what.
        function: the one function that it serves.
        engine: one of `ENGINES`.
        environments: most at once.
        provisioned: environments kept initialised.
    """

    place: Place
    function: str
    engine: str
    environments: int
    provisioned: int
