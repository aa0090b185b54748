"""Runs a server for one measurement. It serves some functions of a configuration, and only requests invoke them.

The server reads no queue, runs no schedule and watches no bucket. It has a data folder of its own. Functions use the
tables and buckets of the configuration. Only a table whose file is in the configured data folder is replaced by an
empty table. The server exits when the process that started it exits.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from thawd import config
from thawd.bench.measurement_server import Place
from thawd.config import Settings
from thawd.errors import ThawdError
from thawd.resources import Function, Table
from thawd.telemetry.console import be_quiet, complain

_PR_SET_PDEATHSIG = 1
# How long a request may wait for an environment: Lambda's longest timeout, so that even a slow init is measured.
_WAIT_S = 900.0


def serve(place: Place, settings_of: Callable[[Settings], Settings]) -> int:
    """Serve until SIGTERM, or until the process that started this one exits. Returns the exit status.

    Args:
        place: configuration file, data folder and ready file of the server.
        settings_of: returns the settings of this server, given the configuration.
    """
    from thawd.server import serving as server
    from thawd.server.ready_file import ReadyFile

    _exit_with(place.parent)
    be_quiet()  # nobody reads lines about single requests
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    environ = {
        name: value for name, value in config.process_environment().items() if name not in config.ENVIRONMENT_VARIABLES
    }
    try:
        configured = config.load(Path(place.config), environ=environ)
        settings = settings_of(configured)
        ready = ReadyFile(Path(place.ready_file), after_publication=True)
        if place.aws != "none":
            key, secret = next(iter(configured.server.access_keys.items()), ("test", "test"))
            environ |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        server.run(settings, environ=environ, watch=False, ready=ready, aws=place.aws)
    except (ThawdError, OSError) as error:
        complain(f"thawd: {error}")
        return 1
    return 0


def alone(
    settings: Settings, functions: Iterable[Function], *, data: Path, environments: int, **changes: Any
) -> Settings:
    """The configuration with only these functions, served on a free port and invoked only by requests.

    Args:
        settings: the configuration.
        functions: the functions to serve; their routes are served too.
        data: the data folder.
        environments: largest number of environments; the memory limit allows this many of the largest function.
        changes: other values for options of the server.
    """
    by_name = {function.name: function for function in functions}
    configured_data = settings.server.data
    server = msgspec.structs.replace(
        settings.server,
        data=data,
        host="127.0.0.1",
        port=0,
        tls=None,
        key=None,
        access_keys={},
        max_environments=environments,
        memory_mb=environments * max(function.memory_mb for function in by_name.values()),
        queue_timeout_s=_WAIT_S,
        grace_s=0.0,
        # With the shared database, this server would take over events of the cluster's machines.
        state=None,
        durability="machine",
        **changes,
    )
    return msgspec.structs.replace(
        settings,
        server=server,
        cluster=None,
        functions=by_name,
        routes=tuple(route for route in settings.routes if route.function in by_name),
        buckets={name: msgspec.structs.replace(bucket, notify=()) for name, bucket in settings.buckets.items()},
        remote_buckets={
            name: msgspec.structs.replace(bucket, notify=(), notifications=None)
            for name, bucket in settings.remote_buckets.items()
        },
        tables={name: _moved(table, configured_data, data) for name, table in settings.tables.items()},
        urls={},
        sources={},
        schedules={},
        provisioned_schedules={},
        set_aside=(configured_data,),
    )


def _moved(table: Table, configured_data: Path, data: Path) -> Table:
    """The table, with its file in the folder `data` if it was in `configured_data`; other tables are unchanged."""
    if table.path is None or not table.path.is_relative_to(configured_data):
        return table
    return msgspec.structs.replace(table, path=data / table.path.relative_to(configured_data))


def _exit_with(parent: int) -> None:
    """Exit when the process that started this one exits for any reason. Source: prctl(2), PR_SET_PDEATHSIG."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
