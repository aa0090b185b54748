"""Limits the size of an environment's temporary folder to ``ephemeral_storage_mb``.

While an environment is busy, thawd reads the size of its folder about once a second, or less often if reading takes
long. An ordinary user cannot make the kernel limit the size of a folder, so a write beyond the limit succeeds, and
thawd ends the environment about a second later. Files that init left in the folder count, as on Lambda. Deleted files
that are still open do not count.
"""

from __future__ import annotations

import asyncio
import errno
import time

from thawd.environments.environment import Environment
from thawd.snapshot.disk.temporary_folders import Disks

LOOK_S = 1.0
_MIB = 1 << 20


class StorageWatch:
    """Reads the size of each temporary folder whose environment has run an invocation since the last reading."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        self._used: set[Environment] = set()
        self._any_used = asyncio.Event()

    def began(self, environment: Environment) -> None:
        """Record that an invocation begins in the environment."""
        if not self._used:
            self._any_used.set()
        self._used.add(environment)

    async def run(self) -> None:
        """Until cancelled, end environments whose folders are larger than allowed, or too deep to be measured.

        Raises:
            OSError: a folder could not be read. The others were checked.
        """
        while True:
            await self._any_used.wait()
            await asyncio.sleep(LOOK_S)
            started_s = time.monotonic()
            environments = list(self._used)
            self._used = {environment for environment in environments if environment.busy_since is not None}
            if not self._used:
                self._any_used.clear()
            failure: OSError | None = None
            for environment in environments:
                if not environment.dying and environment.has_folder:
                    try:
                        await self._check(environment)
                    except OSError as error:  # the other environments are checked all the same
                        failure = error
            if failure is not None:
                raise failure
            # Reading the sizes of many files takes long: spend no more than a twentieth of the time on reading.
            await asyncio.sleep(20 * (time.monotonic() - started_s))

    async def _check(self, environment: Environment) -> None:
        limit_mb = environment.version.function.ephemeral_storage_mb
        try:
            own_bytes = await asyncio.to_thread(self._disks.used_bytes, environment.identifier)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            environment.end_because("its temporary folder (/tmp) has paths that are too long to read its size")
            return
        used_bytes = own_bytes + environment.inherited_bytes
        if used_bytes > limit_mb * _MIB and not environment.dying:
            holds = f"its temporary folder (/tmp) holds {used_bytes // _MIB} MB"
            environment.end_because(f"{holds}, more than ephemeral_storage_mb = {limit_mb}")
