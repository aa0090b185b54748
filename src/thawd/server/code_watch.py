"""Republishes functions when code or configuration changes, for ``thawd up --watch``.

Editors replace files, tools replace whole folders, and a changed configuration may add functions whose code is in
other folders. So before each reload two new watches are set up: one for the code folders and everything in them, and
one for the parents of these folders and of the configuration file. The second one notices when a code folder or the
configuration file is replaced by renaming.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from watchfiles import Change, DefaultFilter, awatch

from thawd.config import Settings
from thawd.telemetry.console import complain

_DEBOUNCE_MS = 400
_STEP_MS = 50
_TRY_AGAIN_S = 1.0


class CodeWatcher:
    """Calls `reload` after each change of code or configuration, and once at the start.

    The watches are set up before `reload` is called, so no change is missed.

    Args:
        settings: returns the current configuration.
        reload: publishes what has changed; never raises.
    """

    def __init__(self, settings: Callable[[], Settings], reload: Callable[[], Awaitable[object]]) -> None:
        self._settings = settings
        self._reload = reload

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                await self._reload_and_watch()
            except ExceptionGroup as group:  # a folder is missing, or the machine has no inotify watches left
                complain(f"thawd: code cannot be watched for changes: {group.exceptions[0]}; thawd tries again")
                await self._until_places_exist()

    async def _until_places_exist(self) -> None:
        """Return once the configuration file and every code folder exist, after at least one pause."""
        while True:
            await asyncio.sleep(_TRY_AGAIN_S)
            if all(place.exists() for place in _places(self._settings())):
                return

    async def _reload_and_watch(self) -> None:
        """Set up the watches, reload, and return when code or configuration has changed since the call."""
        settings = self._settings()
        is_code = DefaultFilter(ignore_paths=[*settings.not_code()])
        places = _places(settings)
        stop = asyncio.Event()

        async def watch(paths: set[Path], wanted: Callable[[Change, str], bool], *, recursive: bool) -> None:
            async for _ in awatch(
                *paths,
                watch_filter=wanted,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                stop_event=stop,
                recursive=recursive,
                ignore_permission_denied=True,
            ):
                stop.set()

        def is_place(_: Change, path: str) -> bool:
            return Path(path) in places

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch(places - {settings.path}, is_code, recursive=True))
            tasks.create_task(watch({place.parent for place in places}, is_place, recursive=False))
            await asyncio.sleep(0)  # lets each task run to its first await; by then it has set up its watch
            await self._reload()


def _places(settings: Settings) -> set[Path]:
    """The configuration file and the folders of code."""
    return {settings.path, *(function.code for function in settings.functions.values())}
