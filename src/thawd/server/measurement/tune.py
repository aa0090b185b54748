"""The program that runs the private server of `thawd tune`, which serves one function at one memory size.

The server serves the function under three names. Under its own name, its environments are kept, to measure warm
invocations. Under the two others, once without and once with a snapshot, an environment is stopped as soon as it is
idle, so that each invocation starts a new one. Each environment gets the CPU share that belongs to the memory size.

    python -m thawd.server.measurement.tune PLAN_AS_JSON
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from thawd.config import Settings
from thawd.cost.tune import COLD, RESTORED, TuneConditions
from thawd.server.measurement.serving import alone, serve

_ENVIRONMENTS = 8


def main() -> int:
    """Serve until SIGTERM. The ready file that the plan names is written when the server is ready."""
    plan = msgspec.json.decode(sys.argv[1], type=TuneConditions)
    return serve(plan.place, lambda settings: settings_of(settings, plan))


def settings_of(settings: Settings, plan: TuneConditions) -> Settings:
    """The configuration with only the planned function, at the planned memory size."""
    function = msgspec.structs.replace(
        settings.functions[plan.function],
        memory_mb=plan.memory_mb,
        provisioned_concurrency=0,
        reserved_concurrency=None,
        keep_alive="fixed",
        idle_timeout_s=3600.0,
        log_format="Text",  # the measurement reads REPORT lines
        application_log_level=None,
        system_log_level=None,
        log_group=None,
        on_success=None,
        on_failure=None,
        dead_letter=None,
    )
    cold = msgspec.structs.replace(function, name=COLD, snapshot=False, idle_timeout_s=0.0)
    restored = msgspec.structs.replace(function, name=RESTORED, snapshot=True, idle_timeout_s=0.0)
    return alone(
        settings,
        [function, cold, restored],
        data=Path(plan.place.data),
        environments=_ENVIRONMENTS,
        cpu_limits=True,
        snapshots="auto",
    )


if __name__ == "__main__":
    sys.exit(main())
