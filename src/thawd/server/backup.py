"""Backs up and restores a server's data: its state file, tables in files, uploaded code and, optionally, buckets.

The state file is the SQLite database ``thawd.db``. A backup is a folder of ordinary files with a manifest of checksums,
and also contains a copy of ``thawd.toml``, which a restore does not use. A backup can be made while a server runs. The
folder gets its final name only when the backup is complete. A restore checks the whole backup before it changes
anything.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from thawd import __version__
from thawd.config import Settings
from thawd.errors import NothingStored, StoreError
from thawd.server.backup_files import (
    MANIFEST,
    FileSum,
    Say,
    explained,
    files_in,
    require_whole_files,
    staged_beside,
    sums_in,
    write_private,
)
from thawd.server.port_and_folder_locks import lock
from thawd.stores import backup, schema
from thawd.stores.database import APPLICATION_ID
from thawd.stores.tables import sqlite
from thawd.system import folders

FORMAT = 1
SENT_COPY = ".thawd-own-state"
"""Name of a folder in the data folder: a copy of the machine's own state while it is sent to another machine."""
UNFINISHED = "restore-unfinished"
"""Name of a file that exists in the data folder during a restore. It contains the path of the backup."""
_STATE = "thawd.db"
_CONFIGURATION = "thawd.toml"
_SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The list of a backup's contents. It is stored in the backup as ``manifest.json``.

    Attributes:
        format: format of the backup, 1.
        thawd: version of thawd that made the backup.
        schema: version of the state file's schema.
        made: time of the backup, ISO 8601.
        tables: names of the tables in the backup.
        buckets: names of the buckets in the backup.
        files: size and checksum of every file, by its path in the backup.
    """

    format: int
    thawd: str
    schema: int
    made: str
    tables: list[str]
    buckets: list[str]
    files: dict[str, FileSum]


def make(settings: Settings, folder: Path, *, with_buckets: bool, say: Say) -> Manifest:
    """Write a backup; a server may keep running.

    The state file, which contains the queued events, is copied before the buckets. So the backup contains the objects
    that these events are about, except objects that were removed while the backup was made.

    Args:
        settings: the configuration.
        folder: folder of the backup. Either it does not exist yet, or it is empty.
        with_buckets: whether the objects of buckets are copied too.
        say: called with a line about each step.

    Raises:
        StoreError: a file cannot be read or written, or is damaged; the incomplete backup is removed.
    """
    sources = (settings.server.data, *(bucket.path for bucket in settings.buckets.values()))
    with staged_beside(folder, sources) as staged:
        require_state(settings)
        return copy_into(settings, staged, with_buckets=with_buckets, say=say)


def require_state(settings: Settings) -> None:
    """Check that there is something to back up.

    Raises:
        StoreError: there is no state file.
    """
    if not (settings.server.data / _STATE).exists():
        raise StoreError(
            f"there is nothing to back up: {settings.server.data / _STATE} does not exist; `thawd up` creates it"
        )


def copy_into(
    settings: Settings, staged: Path, *, with_buckets: bool = False, say: Say = lambda line: None
) -> Manifest:
    """Write the files of a backup and their manifest into an existing empty folder.

    Raises:
        StoreError: a file cannot be read or written, or is damaged.
    """
    with explained(staged):
        # Code is copied both before and after the state file, so that the backup has all code that the copied state
        # file names. The first copy has code that a deployment removes later. The second copy has code that a
        # deployment added before the state file was copied.
        _copy_code(settings, staged, say)
    _copy_databases(settings, staged, say)
    with explained(staged):
        _copy_code(settings, staged, say)
        _copy_files(settings, staged, with_buckets=with_buckets, say=say)
        manifest = _describe(settings, staged, with_buckets=with_buckets)
        write_private(staged / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    return manifest


def _copy_databases(settings: Settings, staged: Path, say: Say) -> None:
    say("state file: the queue, dead letters, functions, the catalog of objects")
    backup.copy_database(
        settings.server.data / _STATE,
        staged / _STATE,
        application_id=APPLICATION_ID,
        newest_version=len(schema.MIGRATIONS),
    )
    (staged / "tables").mkdir(mode=0o700)
    for name, path in _embedded(settings).items():
        say(f"table {name}")
        try:
            backup.copy_database(
                path,
                staged / "tables" / f"{name}.db",
                application_id=sqlite.APPLICATION_ID,
                newest_version=sqlite.SCHEMA_VERSION,
            )
        except NothingStored:  # the file does not exist, or the server is creating it at this moment
            say(f"table {name}: has no item yet")


def _embedded(settings: Settings) -> dict[str, Path]:
    """Files of the embedded tables, which are those without a URL, by name of the table."""
    return {name: table.path for name, table in settings.tables.items() if table.path is not None}


def _copy_code(settings: Settings, staged: Path, say: Say) -> None:
    """Copy uploaded code that is not in the backup yet. A code file with a given name never changes."""
    code, copied = settings.server.data / "code", staged / "code"
    if not code.is_dir():
        return
    if not copied.exists():
        say("uploaded code")
    copied.mkdir(mode=0o700, exist_ok=True)
    for path in code.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.suffix == ".zip" and not (copied / path.name).exists():
                shutil.copy2(path, copied / path.name)
                (copied / path.name).chmod(0o600)


def _copy_files(settings: Settings, staged: Path, *, with_buckets: bool, say: Say) -> None:
    if settings.path.is_file():
        (staged / _CONFIGURATION).touch(mode=0o600)  # thawd.toml may contain keys
        shutil.copyfile(settings.path, staged / _CONFIGURATION)
    for name, bucket in settings.buckets.items() if with_buckets else ():
        say(f"bucket {name}")
        _copy_tree(bucket.path, staged / "buckets" / name)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy regular files and folders, except those named ``.thawd-…``. A file that is removed meanwhile is left out."""
    target.mkdir(parents=True, mode=0o700)
    for entry in os.scandir(source):
        if entry.name.startswith(".thawd-"):
            continue
        place = target / entry.name
        with contextlib.suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                _copy_tree(Path(entry.path), place)
            elif entry.is_file(follow_symlinks=False):
                shutil.copy2(entry.path, place)


def _describe(settings: Settings, staged: Path, *, with_buckets: bool) -> Manifest:
    files = sums_in(staged)
    return Manifest(
        format=FORMAT,
        thawd=__version__,
        schema=len(schema.MIGRATIONS),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        tables=[name for name in settings.tables if f"tables/{name}.db" in files],
        buckets=list(settings.buckets) if with_buckets else [],
        files=files,
    )


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises:
        StoreError: the folder is not a backup, or a newer version of thawd made it.
    """
    try:
        content = (folder / MANIFEST).read_bytes()
        if msgspec.json.decode(content).get("kind"):
            raise StoreError(f"{folder} is the backup of a cluster; `thawd cluster restore {folder}` restores it")
        manifest = msgspec.json.decode(content, type=Manifest)
    except (OSError, AttributeError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"{folder} is not a backup of thawd ({error}); name a folder that `thawd backup` made"
        ) from None
    if manifest.format > FORMAT or manifest.schema > len(schema.MIGRATIONS):
        raise StoreError(
            f"{folder} was made by a newer thawd, {manifest.thawd} (this is {__version__}); restore it with that "
            "version or a later one, or restore a backup that this version made"
        )
    return manifest


def restore(settings: Settings, folder: Path, *, replace: bool, say: Say) -> Manifest:
    """Restore a backup to the paths that the configuration names. No server may be using the data folder.

    Args:
        settings: the configuration.
        folder: folder of the backup.
        replace: whether existing files are renamed, to names that end in ``.before-restore-`` and the time; False: if
            files exist, nothing is restored.
        say: called with a line about each step.

    Raises:
        StartError: a server uses the data folder.
        StoreError: the backup is damaged, a file exists already, or a file cannot be written.
    """
    manifest = read_manifest(folder)
    say("checking the backup")
    with explained(folder):
        require_whole_files(folder, manifest.files)
    places = _places(settings, folder, manifest)
    with lock(settings.server.data) as held:
        for note in held.notes:
            say(note)
        taken = [target for _, target in places if _is_taken(target)]
        if taken and not replace:
            raise StoreError(f"nothing was restored: {_conflicts(taken)}")
        stamp = _stamp(taken)
        unfinished = settings.server.data / UNFINISHED
        with explained(unfinished):
            unfinished.write_bytes(os.fsencode(folder))
            folders.sync(unfinished)
            folders.sync(unfinished.parent)
        for source, target in places:
            with explained(target):
                staged = _stage(source, target)
                if source.name == _STATE:
                    for name in manifest.buckets:
                        backup.adopt_objects(staged, name, _objects(settings.buckets[name].path))
                _put(staged, target, stamp, say)
        with explained(unfinished):
            unfinished.unlink()
            folders.sync(unfinished.parent)
    return manifest


def _conflicts(taken: Sequence[Path]) -> str:
    """Which files are in the way of a restore, and what to do."""
    others = len(taken) - 1
    if not others:
        return f"{taken[0]} exists already; add --replace to rename it"
    counted = "does 1 other file or folder" if others == 1 else f"do {others} other files or folders"
    return f"{taken[0]} exists already, and so {counted}; add --replace to rename them"


def require_whole(data: Path) -> None:
    """Check that no restore into a data folder was interrupted: a part of the backup would be missing from the folder.

    Raises:
        StoreError: a restore was interrupted.
    """
    unfinished = data / UNFINISHED
    if unfinished.exists():
        raise StoreError(
            f"{data}: a restore into this folder was interrupted; finish it with "
            f"`thawd restore --replace {os.fsdecode(unfinished.read_bytes())}`, or remove {unfinished} to start "
            "without the rest of the backup"
        )


def _objects(folder: Path) -> Iterator[tuple[bytes, os.stat_result]]:
    for path in files_in(folder):
        yield os.fsencode(path.relative_to(folder)), path.stat()


def _places(settings: Settings, folder: Path, manifest: Manifest) -> list[tuple[Path, Path]]:
    """Source and target of each file and folder to restore. The state file, with the queued events, comes last."""
    configuration = folder / _CONFIGURATION
    advice = f"compare it with {configuration}" if configuration.is_file() else "add it there, or name another --config"
    for kind, wanted, known in (
        ("embedded table", manifest.tables, _embedded(settings)),
        ("bucket", manifest.buckets, settings.buckets),
    ):
        for name in wanted:
            if name not in known:
                raise StoreError(
                    f"nothing was restored: the backup contains the {kind} {name}, which {settings.path} does not "
                    f"declare; {advice}"
                )
    places = [(folder / "tables" / f"{name}.db", _embedded(settings)[name]) for name in manifest.tables]
    places += [(folder / "buckets" / name, settings.buckets[name].path) for name in manifest.buckets]
    if (folder / "code").is_dir():
        places.append((folder / "code", settings.server.data / "code"))
    return [*places, (folder / _STATE, settings.server.data / _STATE)]


def _is_taken(target: Path) -> bool:
    return any(target.iterdir()) if target.is_dir() else any(path.exists() for path in _with_logs(target))


def _with_logs(target: Path) -> list[Path]:
    """Paths of a database and of the files that SQLite keeps beside it. Not all of these files need exist."""
    return [target.with_name(target.name + suffix) for suffix in ("", *_SQLITE_SUFFIXES)]


def _stage(source: Path, target: Path) -> Path:
    """Copy `source` to a temporary name beside its target."""
    folders.make(target.parent)
    staged = target.with_name(f".thawd-restore-{target.name}")
    shutil.rmtree(staged, ignore_errors=True)
    staged.unlink(missing_ok=True)
    if source.is_dir():
        shutil.copytree(source, staged)
    else:
        shutil.copyfile(source, staged)
        staged.chmod(0o600)
    return staged


def _stamp(taken: Sequence[Path]) -> str:
    """The time as text. If names with this time exist already, a number is added, so that no file is overwritten."""
    now = time.strftime("%Y%m%d-%H%M%S")
    for stamp in itertools.chain([now], (f"{now}-{number}" for number in itertools.count(2))):
        if not any(os.path.lexists(path) for target in taken for path in _with_logs(_aside(target, stamp))):
            return stamp
    raise AssertionError("there is always another number")


def _aside(target: Path, stamp: str) -> Path:
    return target.with_name(f"{target.name}.before-restore-{stamp}")


def _put(staged: Path, target: Path, stamp: str, say: Say) -> None:
    folders.sync_all(staged)
    if _is_taken(target):
        aside = _aside(target, stamp)
        say(f"{target} is renamed to {aside}")
        for path, new in zip(_with_logs(target), _with_logs(aside), strict=True):
            if path.exists():
                path.rename(new)
    elif target.is_dir():
        target.rmdir()
    staged.rename(target)
    say(f"{target} is restored")
    folders.sync(target.parent)
