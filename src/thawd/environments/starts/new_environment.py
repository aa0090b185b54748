"""Makes the object of an environment whose process is started next, and reports its init phase to its log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from thawd.environments.concurrent_environment import ConcurrentEnvironment
from thawd.environments.environment import Environment
from thawd.environments.init_phase import InitError
from thawd.environments.platform_log import platform_log
from thawd.environments.starts.launcher import Start
from thawd.environments.version import Version
from thawd.invocation import StartKind
from thawd.snapshot.disk.temporary_folders import DiskSnapshot


@contextlib.contextmanager
def reporting_init(version: Version, start: Start, *, drain: Callable[[], None]) -> Iterator[None]:
    """Write the result of the init phase to the log when this block ends."""
    log = platform_log(version, start.stream)
    started_s = time.monotonic()
    try:
        yield
    except InitError as error:
        drain()
        log.init_report(start.initialization, (time.monotonic() - started_s) * 1000, error_type=error.type)
        raise
    log.init_report(start.initialization, (time.monotonic() - started_s) * 1000)


def new_environment(
    version: Version, start: Start, kind: StartKind, *, disk: DiskSnapshot | None = None
) -> Environment:
    """The environment of a process that `Launcher.begin` has prepared and that is started next."""
    kind_of_environment = Environment if version.function.concurrency == 1 else ConcurrentEnvironment
    environment = kind_of_environment(
        version, identifier=start.identifier, kind=kind, stream=start.stream, channels=start.channels
    )
    environment.has_folder = start.folder is not None
    if disk is not None and start.folder is not None and start.folder.lower is not None:
        environment.inherited_bytes = disk.found.stored_bytes
    return environment
