"""A private server for measurements: one function of a configuration, under conditions that are given. A program.

It serves what it is asked for and nothing else: no queue is read, no schedule runs, no bucket invokes anything; tables
and buckets that the function itself uses are those of the configuration, but for embedded tables in the data folder,
which begin empty. It ends with the process that started it.

    python -m thawd.bench_server CONDITIONS_AS_JSON
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from thawd import config
from thawd.analysis.conditions import Conditions
from thawd.config import Settings
from thawd.errors import ThawdError
from thawd.telemetry.console import complain

_PR_SET_PDEATHSIG = 1
# Lambda lets a request wait as long as its function's init takes.
_WAIT_S = 900.0


def main() -> int:
    """Serve until SIGTERM; the ready file of the conditions tells when."""
    from thawd import server

    conditions = msgspec.json.decode(sys.argv[1], type=Conditions)
    _end_with(conditions.parent)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    environ = {
        name: value for name, value in config.process_environment().items() if name not in config.ENVIRONMENT_VARIABLES
    }
    try:
        settings = config.load(Path(conditions.config), environ=environ)
        settings = under(settings, conditions, Path(conditions.data))
        server.run(settings, environ=environ, watch=False, ready_file=Path(conditions.ready_file), aws="none")
    except ThawdError as error:
        complain(f"thawd: {error}")
        return 1
    return 0


def under(settings: Settings, conditions: Conditions, data: Path) -> Settings:
    """The settings with which `conditions` hold."""
    function = settings.functions[conditions.function]
    engine = conditions.engine
    function = msgspec.structs.replace(
        function,
        snapshot=False if engine == "cold" else function.snapshot if engine == "auto" else True,
        provisioned_concurrency=conditions.provisioned,
        reserved_concurrency=None,
        # None may end because it was idle while others are waited for.
        idle_timeout_s=max(function.idle_timeout_s, 3600.0),
        keep_alive="fixed",
    )
    snapshots = "off" if engine == "fork" else settings.server.snapshots if engine == "auto" else "auto"
    server = msgspec.structs.replace(
        settings.server,
        data=data,
        host="127.0.0.1",
        port=0,
        key=None,
        access_keys={},
        max_environments=conditions.environments,
        memory_mb=conditions.environments * function.memory_mb,
        max_waiting=100_000,
        queue_timeout_s=_WAIT_S,
        grace_s=0.0,
        snapshots=snapshots,
    )
    return msgspec.structs.replace(
        settings,
        server=server,
        functions={function.name: function},
        routes=tuple(route for route in settings.routes if route.function == function.name),
        buckets={name: msgspec.structs.replace(b, notify=()) for name, b in settings.buckets.items()},
        remote_buckets={
            name: msgspec.structs.replace(b, notify=(), notifications=None)
            for name, b in settings.remote_buckets.items()
        },
        tables=_tables(settings, data),
        urls={},
        sources={},
        schedules={},
        provisioned_schedules={},
        set_aside=(settings.server.data,),
    )


def _tables(settings: Settings, data: Path) -> Mapping[str, object]:
    own = settings.server.data
    return {
        name: msgspec.structs.replace(table, path=data / table.path.relative_to(own))
        if table.path is not None and table.path.is_relative_to(own)
        else table
        for name, table in settings.tables.items()
    }


def _end_with(parent: int) -> None:
    """End when the process that started this one does, however it ends. Source: prctl(2), PR_SET_PDEATHSIG."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
