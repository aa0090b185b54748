"""Republishes functions when code, container images or configuration change, for ``thawd up --watch``.

Editors replace files, tools replace whole folders, and a changed configuration may add functions whose code is in other
folders. So before each reload two new watches are set up: one for the code folders and everything in them, and one for
the parents of these folders and of the configuration file. The second one notices when a code folder or the
configuration file is replaced by renaming. So it does for files of environment variables. It also watches the files of
container images, and the names in the store of images: a name that a function uses may get another image.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from watchfiles import Change, DefaultFilter, awatch

from thawd.config import Settings
from thawd.errors import ImageError
from thawd.oci import image_lookup, references
from thawd.oci.image_store import Images
from thawd.stores.ignored_files import NAME as IGNORED_FILES
from thawd.stores.ignored_files import IgnoredFiles
from thawd.telemetry.console import complain, has_printed, say

_DEBOUNCE_MS = 400
_STEP_MS = 20
_MOST_NAMED = 3
_TRY_AGAIN_S = 1.0
_ADVISED_AT = 2
# A file is a copy of the server's output if it ends with this many lines of it; in such a file, they take these bytes.
_OUTPUT_LINES = 3
_OUTPUT_LEAST_BYTES = 40
_OUTPUT_MOST_BYTES = 1 << 14
# Nobody directs output into such a file.
_NEVER_OUTPUT = frozenset({".py", ".js", ".mjs", ".cjs", ".toml", ".json", ".so"})


# Programs write such files: process ids, logs, locks, databases.
_WRITTEN = re.compile(r"\.(pid|log|out|lock|tmp|db|sqlite3?)(-(wal|shm|journal))?(\.\d+)?$|^nohup\.out$")


class CodeWatcher:
    """Calls `reload` after each change of code, container images or configuration, and once at the start.

    A change of a file that is in no package counts as none: the data folder, caches, hidden folders, editors' files,
    and what ``.thawdignore`` names. So is a file into which another program copies what the server prints, as in
    ``thawd up --watch | tee up.log``: each line about a republication would be a change.

    The watches are set up before `reload` is called, so no change is missed.

    Args:
        settings: returns the current configuration.
        reload: publishes what has changed, and gets a text that names the changed files; never raises.
        suffix: the end of the names of files that count; empty: all.
        announces: whether to print each change before `reload` is called.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        reload: Callable[[str], Awaitable[object]],
        *,
        suffix: str = "",
        announces: bool = True,
    ) -> None:
        self._settings = settings
        self._reload = reload
        self._suffix = suffix
        self._announces = announces
        self._changed = ""
        self._written: Counter[str] = Counter()

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
        is_code = _CodeFilter(settings)
        changed: dict[str, Change] = {}
        places = _places(settings)
        named = _NamedImages(settings)
        stop = asyncio.Event()

        async def watch(paths: set[Path], wanted: Callable[[Change, str], bool], *, recursive: bool) -> None:
            async for changes in awatch(
                *paths,
                watch_filter=wanted,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                stop_event=stop,
                recursive=recursive,
                ignore_permission_denied=True,
            ):
                for change, path in changes:
                    changed.setdefault(path, change)
                stop.set()

        def is_wanted(change: Change, path: str) -> bool:
            return path.endswith(self._suffix) and is_code(change, path)

        def is_place(_: Change, path: str) -> bool:
            # A server writes names of its own into the store's index when it publishes.
            is_named = Path(path) in places or (Path(path) == named.index and named.have_changed())
            return is_named and path.endswith(self._suffix)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch(_code_folders(settings), is_wanted, recursive=True))
            tasks.create_task(watch({place.parent for place in places | named.places}, is_place, recursive=False))
            await asyncio.sleep(0)  # lets each task run to its first await; by then it has set up its watch
            await self._reload(self._changed)
        self._changed = named_files(changed, settings)
        if self._changed and self._announces:
            say(f"{self._changed} changed, building …")
            self._advise(changed, settings)

    def _advise(self, changed: Mapping[str, Change], settings: Settings) -> None:
        """Say how to leave out a file that a program seems to write, when it has changed for the second time."""
        for path in changed:
            if _WRITTEN.search(Path(path).name) is None or Path(path) == settings.path:
                continue
            self._written[path] += 1
            if self._written[path] == _ADVISED_AT:
                say(
                    f"thawd: {_relative(Path(path), settings)} counts as code, so each change of it makes a new "
                    "version and a new snapshot; if it is none, "
                    f"add {Path(path).name} to {IGNORED_FILES} in the code folder"
                )


class _CodeFilter(DefaultFilter):
    """Lets changes of files pass that are part of functions' packages.

    Args:
        settings: the configuration.
    """

    def __init__(self, settings: Settings) -> None:
        # Not as `ignore_paths`, which would ignore all paths that begin so: .thawdignore, because of the folder .thawd.
        super().__init__()
        self._not_code = {str(path) for path in settings.not_code()}
        self._in_not_code = tuple(f"{path}/" for path in self._not_code)
        self._rules = {str(folder): IgnoredFiles.of(folder) for folder in _code_folders(settings)}

    def __call__(self, change: Change, path: str) -> bool:
        if path in self._not_code or path.startswith(self._in_not_code):
            return False
        is_in_package = super().__call__(change, path) and any(
            self._is_in_package(path[len(folder) + 1 :], rules, is_folder=Path(path).is_dir())
            for folder, rules in self._rules.items()
            if path.startswith(f"{folder}/")
        )
        return is_in_package and not (change is Change.modified and ends_with_output(Path(path)))

    def _is_in_package(self, relative: str, rules: IgnoredFiles | None, *, is_folder: bool) -> bool:
        if relative == IGNORED_FILES:
            return True
        parts = relative.split("/")
        if any(part.startswith(".") for part in (parts if is_folder else parts[:-1])):
            return False  # hidden folders are in no package
        return rules is None or not rules.leave_out_below(relative)


def ends_with_output(path: Path) -> bool:
    """Whether a file ends with the lines that this process printed lately, because a program copies them, as tee."""
    if path.suffix in _NEVER_OUTPUT or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _OUTPUT_MOST_BYTES))
            end = file.read(_OUTPUT_MOST_BYTES)
    except OSError:
        return False
    # A line that is not complete yet may follow.
    lines = end[: end.rfind(b"\n") + 1].splitlines(keepends=True)[-_OUTPUT_LINES:]
    last = b"".join(lines).replace(b"\r\n", b"\n")  # a terminal ends lines so, and script(1) copies what it shows
    return len(last) >= _OUTPUT_LEAST_BYTES and has_printed(last.decode(errors="replace"))


def named_files(changed: Mapping[str, Change], settings: Settings) -> str:
    """The changed files, for people.

    Editors make files that are there only for a moment, so files that do not exist any more are left out, unless only
    such files have changed: then those are named that were not made just before.

    Args:
        changed: the first change that was noticed of each file, by absolute path.
        settings: the configuration. Paths are relative to its file's folder; outside of that, to the folder of code.
    """
    lasting = [path for path in changed if os.path.lexists(path)]
    lasting = lasting or [path for path, change in changed.items() if change != Change.added]
    # The configuration comes first: what it changes, the other files may not explain.
    lasting.sort(key=lambda path: (Path(path) != settings.path, path))
    names = [_relative(Path(path), settings) for path in lasting]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _relative(path: Path, settings: Settings) -> str:
    """The path from the configuration's folder, or else from the innermost folder of code that contains it."""
    # Code of `thawd run` is two folders above the configuration, and the watch reports it with these steps in between.
    path, *folders = (Path(os.path.normpath(each)) for each in (path, settings.path.parent, *_code_folders(settings)))
    for folder in (folders[0], *sorted(folders[1:], key=lambda each: -len(each.parts))):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return os.path.relpath(path, settings.path.parent)


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
    """The configuration file, the folders of code, and the files of environment variables and of images."""
    files = (image_lookup.read_from(text, settings.path.parent) for text in _image_texts(settings))
    variables = (file for files in settings.environment_files.values() for file in files)
    return {settings.path, *_code_folders(settings), *variables, *(file for file in files if file is not None)}


def _code_folders(settings: Settings) -> set[Path]:
    return {function.code for function in settings.functions.values() if function.image is None}


def _image_texts(settings: Settings) -> set[str]:
    return {function.image for function in settings.functions.values() if function.image is not None}
