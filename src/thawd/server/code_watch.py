"""Republishes functions when code, container images or configuration change, for ``thawd up --watch``.

Editors replace files, tools replace whole folders, and a changed configuration may add functions whose code is in
other folders. So before each reload two new watches are set up: one for the code folders and everything in them, and
one for the parents of these folders and of the configuration file. The second one notices when a code folder or the
configuration file is replaced by renaming. It also watches the files of container images, and the names in the store
of images: a name that a function uses may get another image.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from watchfiles import Change, DefaultFilter, awatch

from thawd.config import Settings
from thawd.errors import ImageError
from thawd.oci import image_lookup, references
from thawd.oci.image_store import Images
from thawd.telemetry.console import complain

_DEBOUNCE_MS = 400
_STEP_MS = 50
_TRY_AGAIN_S = 1.0


class CodeWatcher:
    """Calls `reload` after each change of code, container images or configuration, and once at the start.

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
        named = _NamedImages(settings)
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
            # A server writes names of its own into the store's index when it publishes.
            return Path(path) in places or (Path(path) == named.index and named.have_changed())

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch(_code_folders(settings), is_code, recursive=True))
            tasks.create_task(watch({place.parent for place in places | named.places}, is_place, recursive=False))
            await asyncio.sleep(0)  # lets each task run to its first await; by then it has set up its watch
            await self._reload()


class _NamedImages:
    """The images that functions name in the store, and what the names stood for when this object was made.

    Args:
        settings: the configuration.
    """

    def __init__(self, settings: Settings) -> None:
        self._store = Images(settings.server.data / "images")
        self._names: set[str] = set()
        for text in _image_texts(settings):
            if not image_lookup.is_path(text):
                with contextlib.suppress(ImageError):  # a digest, which never changes; or publishing says what is wrong
                    self._names.add(str(references.parse(text)))
        if self._names:
            with contextlib.suppress(OSError), self._store.adding():
                pass  # makes the folder, so that it can be watched
        self._were = self._digests()

    @property
    def index(self) -> Path:
        """The file with the names."""
        return self._store.folder / "index.json"

    @property
    def places(self) -> set[Path]:
        """The same file, if a function names an image in the store."""
        return {self.index} if self._names else set()

    def have_changed(self) -> bool:
        """Whether a name stands for another image now."""
        return self._digests() != self._were

    def _digests(self) -> dict[str, str]:
        with contextlib.suppress(OSError, ImageError):
            return {name: digest for name, digest in self._store.names().items() if name in self._names}
        return {}


def _places(settings: Settings) -> set[Path]:
    """The configuration file, the folders of code, and the files of images."""
    files = (image_lookup.read_from(text, settings.path.parent) for text in _image_texts(settings))
    return {settings.path, *_code_folders(settings), *(file for file in files if file is not None)}


def _code_folders(settings: Settings) -> set[Path]:
    return {function.code for function in settings.functions.values() if function.image is None}


def _image_texts(settings: Settings) -> set[str]:
    return {function.image for function in settings.functions.values() if function.image is not None}
