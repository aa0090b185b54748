"""Backs up and restores a cluster: what its machines share in PostgreSQL, and each machine's own state.

A backup is a folder:

- ``shared/``: the tables of the cluster's database (`thawd.stores.cluster.saved_tables`);
- ``machines/NAME/``: a backup of the machine's own state, as `thawd.server.backup` makes it, without the events that
  are in ``shared/``;
- ``keys/``: on request, the authority and the key of the cluster;
- ``manifest.json``: versions, and size and checksum of every file. It has a checksum of its own.

Each event that was accepted before the backup began is in it. The machines' states are copied first, and the database
after them, in one snapshot. An event that ended in between is in its machine's state only, and perhaps runs again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from thawd import __version__
from thawd.cluster import credentials, own_state
from thawd.cluster.links import Credentials, Links
from thawd.config import Settings
from thawd.errors import StoreError, ThawdError
from thawd.resources import StoreUrl
from thawd.server import backup as backups
from thawd.server.assembly.cluster import credentials_of
from thawd.server.assembly.cluster_state import machine_name
from thawd.server.assembly.registered import address_of
from thawd.server.backup_files import (
    MANIFEST,
    FileSum,
    Say,
    explained,
    require_whole_files,
    staged_beside,
    sums_in,
    write_private,
)
from thawd.stores import backup
from thawd.stores.cluster import saved_tables, schema
from thawd.stores.cluster.saved_tables import Saved

KIND = "cluster"
FORMAT = 1
_SHARED, _MACHINES, _KEYS, _STATE = "shared", "machines", "keys", "thawd.db"


class ClusterManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The list of a backup's contents. It is stored in the backup as ``manifest.json``.

    Attributes:
        kind: ``cluster``.
        format: format of the backup, 1.
        thawd: version of thawd that made the backup.
        made: time when the backup was complete, ISO 8601.
        saved: the tables of the database.
        machines: names of the machines whose own state is in the backup.
        away: names of machines that were not alive.
        has_keys: whether the cluster's keys are in the backup.
        files: size and checksum of every file, by its path in the backup.
        digest: SHA-256 of this manifest with an empty digest.
    """

    kind: str
    format: int
    thawd: str
    made: str
    saved: Saved
    machines: list[str]
    away: list[str]
    has_keys: bool
    files: dict[str, FileSum]
    digest: str = ""


class _Beginning(msgspec.Struct):
    """What manifests of all formats and kinds have."""

    format: int
    thawd: str
    kind: str = ""


async def make(settings: Settings, folder: Path, *, with_keys: bool, say: Say) -> ClusterManifest:
    """Write a backup; the machines may go on. All machines that are alive must answer.

    Args:
        settings: the configuration of this machine, which has a database and no list of machines.
        folder: folder of the backup. Either it does not exist yet, or it is empty.
        with_keys: whether the cluster's keys are saved, too.
        say: called with a line about each step.

    Raises:
        StoreError: a file or the database cannot be used, or a machine does not answer; the incomplete backup is
            removed.
    """
    url, own = _state_of(settings), _name_of(settings)
    with staged_beside(folder, [settings.server.data]) as staged:
        backups.require_state(settings)
        with explained(staged):
            for name in (_SHARED, _MACHINES):
                (staged / name).mkdir(mode=0o700)
        alive, gone = saved_tables.known_machines(url)
        addresses = {each.name: address_of(each) for each in alive if each.name != own}
        folders = {name: staged / _MACHINES / name for name in sorted({own, *addresses})}
        for name, place in folders.items():
            say(f"the own state of the machine {name}")
            with explained(place):
                place.mkdir(mode=0o700)
                if name == own:
                    backups.copy_into(settings, place)
                else:
                    await _fetch(settings, own, name, addresses[name], place)
        say("the database")
        saved = saved_tables.save(url, staged / _SHARED, on_snapshot=partial(_drop_copied, list(folders.values())))
        with explained(staged):
            if with_keys:
                _save_keys(settings, staged / _KEYS)
            return _describe(staged, saved, list(folders), [name for name in gone if name != own], has_keys=with_keys)


def _state_of(settings: Settings) -> StoreUrl:
    if settings.server.state is None or settings.cluster is None or settings.cluster.machines:
        raise StoreError(
            "this is for a cluster whose machines find each other in a database: thawd.toml needs `state` in [server], "
            "and [cluster] without a list of machines. `thawd backup` saves what one machine has"
        )
    schema.require_library(settings.server.state)
    return settings.server.state


def _name_of(settings: Settings) -> str:
    assert settings.cluster is not None
    return settings.cluster.name or machine_name(settings.server.data)


async def _fetch(settings: Settings, own: str, name: str, address: tuple[str, int] | None, place: Path) -> None:
    """Write the own state of another machine to a folder.

    Raises:
        StoreError: it cannot be fetched, or has arrived damaged.
    """
    if address is None:
        raise StoreError(f"the machine {name} has no address at which it could be asked for its own state")
    links = Links(_credentials(settings, own), name, *address)
    try:
        await own_state.receive(links, place)
    except ThawdError as error:
        raise StoreError(
            f"there is no backup: {error.message}. All machines that are alive must answer, and they answer only to a "
            f"machine that is one of them: {own} must run, too"
        ) from None
    finally:
        links.close()
    require_whole_files(place, _read_own(place).files)


def _credentials(settings: Settings, own: str) -> Credentials:
    assert settings.cluster is not None
    issuer = None if settings.cluster.key else credentials.Credentials(settings.server.data)
    return credentials_of(settings.cluster, own, issuer)


def _read_own(place: Path) -> backups.Manifest:
    """The manifest of a machine's own state, which may be of another version of thawd."""
    try:
        return msgspec.json.decode((place / MANIFEST).read_bytes(), type=backups.Manifest)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{place / MANIFEST} cannot be read: {error}") from None


def _drop_copied(places: Sequence[Path], existing: Callable[[Sequence[str]], set[str]]) -> None:
    """Remove the events from the machines' states that are in the database, so that the backup has each event once."""
    for place in places:
        if backup.drop_copied(place / _STATE, existing):
            with explained(place):
                manifest = _read_own(place)
                (place / MANIFEST).unlink()
                manifest = msgspec.structs.replace(manifest, files=sums_in(place))
                write_private(place / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))


def _save_keys(settings: Settings, place: Path) -> None:
    if settings.cluster is not None and settings.cluster.key:
        raise StoreError("the cluster's key is in thawd.toml or in the environment, so there are no keys to save")
    place.mkdir(mode=0o700)
    for name, content in credentials.saved(settings.server.data).items():
        write_private(place / name, content)


def _describe(staged: Path, saved: Saved, machines: list[str], away: list[str], *, has_keys: bool) -> ClusterManifest:
    manifest = ClusterManifest(
        kind=KIND,
        format=FORMAT,
        thawd=__version__,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        saved=saved,
        machines=machines,
        away=away,
        has_keys=has_keys,
        files=sums_in(staged),
    )
    manifest = msgspec.structs.replace(manifest, digest=digest_of(manifest))
    write_private(staged / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    return manifest


def digest_of(manifest: ClusterManifest) -> str:
    """The checksum of a manifest."""
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(manifest, digest=""))).hexdigest()


def check(folder: Path, say: Say) -> ClusterManifest:
    """Read all of a backup, and check that it is whole and that this thawd can restore it.

    Raises:
        StoreError: it is not, or is none.
    """
    say("checking the backup")
    try:
        content = (folder / MANIFEST).read_bytes()
        beginning = msgspec.json.decode(content, type=_Beginning)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"{folder} is not a backup of a cluster ({error}); name a folder that `thawd cluster backup` made"
        ) from None
    if beginning.kind != KIND:
        raise StoreError(
            f"{folder} is the backup of one machine; `thawd restore {folder}` restores it, and `thawd cluster restore` "
            "the folders that `thawd cluster backup` made"
        )
    newer = (
        f"{folder} was made by a newer thawd, {beginning.thawd} (this is {__version__}); restore it with that version"
    )
    if beginning.format > FORMAT:
        raise StoreError(newer)
    try:
        manifest = msgspec.json.decode(content, type=ClusterManifest)
    except msgspec.MsgspecError:
        manifest = None
    if manifest is None or manifest.digest != digest_of(manifest):
        raise StoreError(f"nothing was restored: {folder / MANIFEST} is damaged")
    if max(manifest.saved.migrations, default=0) > len(schema.MIGRATIONS):
        raise StoreError(newer)
    with explained(folder):
        require_whole_files(folder, manifest.files)
        if strangers := sorted(sums_in(folder).keys() - manifest.files.keys() - {MANIFEST}):
            raise StoreError(f"nothing was restored: {folder} has a file that is not of this backup, {strangers[0]}")
    return manifest


def restore_shared(settings: Settings, folder: Path, *, say: Say) -> ClusterManifest:
    """Restore what the machines shared into the database that the configuration names.

    Raises:
        UnknownOutcomeError: it is unknown whether the database has been restored.
        StoreError: nothing was restored: the backup is damaged, or the database is in use or cannot be used.
    """
    url = _state_of(settings)
    manifest = check(folder, say)
    say("loading the database")
    saved_tables.load(url, folder / _SHARED, manifest.saved, with_authority=manifest.has_keys)
    return manifest


def restore_machine(settings: Settings, folder: Path, name: str, *, replace: bool, say: Say) -> ClusterManifest:
    """Restore a machine's own state to the paths that the configuration names. No server may use the data folder.

    Args:
        settings: the configuration of the machine that becomes `name`.
        folder: folder of the backup.
        name: name of a machine in the backup.
        replace: whether existing files are renamed; False: if files exist, nothing is restored.
        say: called with a line about each step.

    Raises:
        StartError: a server uses the data folder.
        StoreError: the backup is damaged, has no such machine, or a file is in the way.
    """
    _state_of(settings)
    assert settings.cluster is not None
    manifest = check(folder, say)
    if name not in manifest.machines:
        raise StoreError(f"{folder} has no machine {name}; it has {', '.join(manifest.machines)}")
    data = settings.server.data
    if settings.cluster.name not in ("", name):
        raise StoreError(
            f"nothing was restored: thawd.toml or THAWD_MACHINE gives this machine the name {settings.cluster.name}, "
            f"not {name}"
        )
    named = data / "machine"
    if named.exists() and machine_name(data) != name and not replace:
        raise StoreError(
            f"nothing was restored: {data} is the data folder of the machine {machine_name(data)}; add --replace to "
            f"make it that of {name}"
        )
    backups.restore(settings, folder / _MACHINES / name, replace=replace, say=say)
    with explained(data):
        named.unlink(missing_ok=True)
        write_private(named, f"{name}\n".encode())
        if manifest.has_keys and not settings.cluster.key:
            credentials.restore(folder / _KEYS, data, name)
            say("this machine has the cluster's keys, and a new certificate")
    return manifest
