"""The program that runs the private server of `thawd bench`, which serves one function under given conditions.

The conditions (`thawd.bench.conditions`) say how environments start, and how many there may be.

    python -m thawd.server.measurement.bench CONDITIONS_AS_JSON
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from thawd.bench.conditions import Conditions
from thawd.config import Settings
from thawd.server.measurement.serving import alone, serve


def main() -> int:
    """Serve until SIGTERM. The ready file that the conditions name is written when the server is ready."""
    conditions = msgspec.json.decode(sys.argv[1], type=Conditions)
    return serve(conditions.place, lambda settings: under(settings, conditions))


def under(settings: Settings, conditions: Conditions) -> Settings:
    """Change the settings so that they meet the conditions."""
    function = settings.functions[conditions.function]
    engine = conditions.engine
    function = msgspec.structs.replace(
        function,
        snapshot=False if engine == "cold" else function.snapshot if engine == "auto" else True,
        provisioned_concurrency=conditions.provisioned,
        reserved_concurrency=None,
        # Idle environments must be kept for the whole measurement.
        idle_timeout_s=max(function.idle_timeout_s, 3600.0),
        keep_alive="fixed",
    )
    return alone(
        settings,
        [function],
        data=Path(conditions.place.data),
        environments=conditions.environments,
        max_waiting=100_000,
        snapshots="off" if engine == "fork" else settings.server.snapshots if engine == "auto" else "auto",
    )


if __name__ == "__main__":
    sys.exit(main())
