"""A private server for `thawd tune`: one function at one memory size, held to the CPU share of that size. A program.

It serves the function three times: as it is configured, to be measured warm; without a snapshot, and with one, in
environments that end as soon as they are idle, so that each invocation has one started. It ends with the process that
started it.

    python -m thawd.tune_server PLAN_AS_JSON
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import msgspec

from thawd import config
from thawd.analysis.tune import COLD, RESTORED, TuneServer
from thawd.config import Settings
from thawd.errors import ThawdError
from thawd.telemetry.console import complain

_PR_SET_PDEATHSIG = 1
# As long as Lambda lets a function run; what is slow at a small size is what is to be seen.
_WAIT_S = 900.0


def main() -> int:
    """Serve until SIGTERM."""
    from thawd import server

    plan = msgspec.json.decode(sys.argv[1], type=TuneServer)
    _end_with(plan.parent)
    environ = {
        name: value for name, value in config.process_environment().items() if name not in config.ENVIRONMENT_VARIABLES
    }
    try:
        settings = settings_of(config.load(Path(plan.config), environ=environ), plan)
        server.run(settings, environ=environ, watch=False, ready_file=Path(plan.ready_file), aws="none")
    except ThawdError as error:
        complain(f"thawd: {error}")
        return 1
    return 0


def settings_of(settings: Settings, plan: TuneServer) -> Settings:
    """The configuration with nothing but the function, at the plan's size."""
    function = msgspec.structs.replace(
        settings.functions[plan.function],
        memory_mb=plan.memory_mb,
        provisioned_concurrency=0,
        reserved_concurrency=None,
        keep_alive="fixed",
        idle_timeout_s=3600.0,
        log_format="Text",  # REPORT lines are read
        application_log_level=None,
        system_log_level=None,
        log_group=None,
        on_success=None,
        on_failure=None,
        dead_letter=None,
    )
    cold = msgspec.structs.replace(function, name=COLD, snapshot=False, idle_timeout_s=0.0)
    restored = msgspec.structs.replace(function, name=RESTORED, snapshot=True, idle_timeout_s=0.0)
    data = Path(plan.data)
    server = msgspec.structs.replace(
        settings.server,
        data=data,
        host="127.0.0.1",
        port=0,
        key=None,
        access_keys={},
        cpu_limits=True,
        max_environments=8,
        memory_mb=8 * function.memory_mb,
        queue_timeout_s=_WAIT_S,
        grace_s=0.0,
        snapshots="auto",
    )
    own = settings.server.data
    return msgspec.structs.replace(
        settings,
        server=server,
        functions={one.name: one for one in (function, cold, restored)},
        routes=(),
        buckets={name: msgspec.structs.replace(b, notify=()) for name, b in settings.buckets.items()},
        remote_buckets={name: msgspec.structs.replace(b, notify=()) for name, b in settings.remote_buckets.items()},
        tables={
            name: msgspec.structs.replace(table, path=data / table.path.relative_to(own))
            if table.path is not None and table.path.is_relative_to(own)
            else table
            for name, table in settings.tables.items()
        },
        urls={},
        sources={},
        schedules={},
        provisioned_schedules={},
        set_aside=(own,),
    )


def _end_with(parent: int) -> None:
    """End when the process that started this one does. Source: prctl(2), PR_SET_PDEATHSIG."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
