"""The commands ``thawd snapshot …``: list, inspect, verify, lint, remove, send and receive snapshots.

The commands work whether or not a server runs: a snapshot in use is locked, so that it cannot be removed by mistake.
This module formats the output; the snapshot store decides which snapshots can be removed. Large modules are imported
inside the commands, so that ``--help`` does not wait for their import.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli import snapshot_transfer
from thawd.cli.exits import EXIT_FAILED, VerbGroup, warn
from thawd.cli.options import config_option, examples, load
from thawd.cli.output import print_text
from thawd.errors import ResourceNotFoundException, StoreError, ThawdError
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.snapshot.lint.rule_texts import Finding
    from thawd.snapshot.store.images import Snapshot, SnapshotStore

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group(
    name="snapshot",
    cls=VerbGroup,
    epilog=examples(
        "thawd snapshot list",
        "thawd snapshot inspect classify        # which data makes it large",
        "thawd snapshot lint classify           # which state a thaw would break",
        "thawd snapshot rm --unused",
    ),
)
def group() -> None:
    """List, inspect, verify, lint, remove, send and receive snapshots.

    A snapshot is named by its ID, by the first digits of its ID, or by FUNCTION or FUNCTION:VERSION if only one
    snapshot matches. thawd removes a snapshot automatically if it has not been used for server.snapshots_max_age_s
    seconds, and the least recently used ones if all together are larger than server.snapshots_max_mb. Removing one by
    hand is safe: the function is frozen again when it is next published.
    """


@group.command("list")
@click.option("--store", metavar="STORE", help="Instead, list the snapshots of a store of chunks.")
@snapshot_transfer.key_option
@_json_option
@config_option
def list_(store: str | None, key_path: Path | None, as_json: bool, config_path: Path) -> None:
    """List all snapshots, the most recently used first."""
    if store is not None:
        snapshot_transfer.list_store(store, key_path, config_path, as_json=as_json)
        return
    _list_here(load(config_path), config_path, as_json=as_json)


def _list_here(settings: Settings, config_path: Path, *, as_json: bool) -> None:
    store = _store(settings)
    snapshots = store.snapshots()
    if as_json:
        click.echo(json.dumps([_document(snapshot) for snapshot in snapshots], indent=2))
        return
    if not snapshots:
        how = (
            f'{config_path} has snapshots = "off"; with "auto", `thawd up` takes snapshots'
            if settings.server.snapshots == "off"
            else "`thawd up` takes a snapshot of each function that it publishes, unless the function has "
            "snapshot = false; if one is missing, `thawd status` shows why"
        )
        click.echo(f"no snapshots in {store.folder}; {how}")
        return
    print_text([_row(snapshot) for snapshot in snapshots], key_name="id")
    total = sum(snapshot.stored_bytes for snapshot in snapshots)
    count = len(snapshots)
    click.echo(f"{count} snapshot{'' if count == 1 else 's'}, {_mib(total)} on disk in {store.folder}")
    for snapshot in snapshots:
        if snapshot.problem is not None:
            warn(snapshot.problem)


@group.command()
@click.argument("which", metavar="ID|PATH")
@click.option("--full", is_flag=True, help="Print all rows of long tables, not only ten, and all memory mappings.")
@_json_option
@config_option
def inspect(which: str, full: bool, as_json: bool, config_path: Path) -> None:
    """Show the contents of a snapshot or an image file.

    The output shows which parts of the memory are the largest, the memory mappings, threads and file descriptors, and
    the machine on which the process was frozen. An argument that contains a slash, or that names a file in the current
    folder, is the PATH of an image. For a PATH, no configuration is needed.
    """
    from thawd.snapshot.inspect import reader as images

    is_path = "/" in which or Path(which).is_file()
    snapshot = None if is_path else _store(load(config_path)).resolve(which)
    try:
        described = images.describe(images.read(which if snapshot is None else snapshot.path))
    except images.ImageError as error:
        warn(str(error))
        sys.exit(EXIT_FAILED)
    if as_json:
        document = {"snapshot": snapshot and _document(snapshot), "image": described}
        click.echo(json.dumps(document, indent=2))
        return
    if snapshot is not None:
        _print_origin(snapshot)
    click.echo(images.text(described, rows=None if full else 10), nl=False)
    if snapshot is not None and snapshot.problem is not None:
        warn(snapshot.problem)


@group.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--store", metavar="STORE", help="Instead, check all snapshots of a store of chunks.")
@snapshot_transfer.key_option
@_json_option
@config_option
def verify(ids: tuple[str, ...], store: str | None, key_path: Path | None, as_json: bool, config_path: Path) -> None:
    """Check that snapshots are undamaged.

    Each snapshot ID (every snapshot if none is named) is read completely, compared with its SHA-256 checksum, and
    decoded. If a snapshot is damaged, or cannot be used for another reason, the command prints the reason, and the exit
    status is 1.
    """
    if store is not None:
        if ids or as_json:
            raise click.UsageError("with --store, name no ID, and no --json")
        snapshot_transfer.verify_store(store, key_path, config_path)
        return
    _verify_here(_store(load(config_path)), ids, as_json=as_json)


def _verify_here(store: SnapshotStore, ids: tuple[str, ...], *, as_json: bool) -> None:
    snapshots = [store.resolve(text) for text in dict.fromkeys(ids)] if ids else store.snapshots()
    documents = []
    for snapshot in snapshots:
        try:
            with _progress(snapshot) as progress:
                problems = store.verify(snapshot, progress=progress)
        except ResourceNotFoundException:
            if ids:
                raise
            continue  # the server removed this snapshot while earlier ones were read
        except StoreError as error:
            problems = (str(error),)
        documents.append({**_named(snapshot), "sound": not problems, "problems": list(problems)})
        if not as_json:
            click.echo(f"{snapshot.id}  {snapshot.name}  {'not sound' if problems else 'sound'}")
        for problem in problems:
            warn(problem)
    if as_json:
        click.echo(json.dumps(documents, indent=2))
    elif not documents:
        click.echo(f"no snapshots in {store.folder}")
    if not all(document["sound"] for document in documents):
        sys.exit(EXIT_FAILED)


@group.command()
@click.argument("functions", nargs=-1, metavar="[FUNCTION]...")
@_json_option
@config_option
def lint(functions: tuple[str, ...], as_json: bool, config_path: Path) -> None:
    """Search functions for state that will be wrong after a thaw.

    Each FUNCTION (every function if none is named) is initialised in a process of its own, with its configured
    interpreter, as for a snapshot. No server is needed. The command then searches that process for seeded random
    generators, connections, threads, credentials and times that init stored, and more;
    docs/reference/snapshot-lint.md explains every rule. The exit status is 1 if there is a warning.
    """
    import asyncio

    import msgspec

    from thawd import config
    from thawd.environments.runtime_programs import python_of
    from thawd.publishing import lint_command

    settings = load(config_path)
    for name in functions:
        if name not in settings.functions:
            raise ResourceNotFoundException(f"there is no function {name!r}; {did_you_mean(name, settings.functions)}")
    found = {}
    for name in functions or settings.functions:
        function = settings.functions[name]
        found[name] = asyncio.run(
            lint_command.lint(
                msgspec.structs.replace(function, python=python_of(function, settings.runtimes)),
                folder=config_path.absolute().parent,
                data=settings.server.data,
                buckets=settings.buckets,
                own=config.process_environment(),
                progress=lambda line: click.echo(f"    {line}", err=True),
            )
        )
    if as_json:
        click.echo(json.dumps({name: [one._asdict() for one in some] for name, some in found.items()}, indent=2))
    else:
        for name, some in found.items():
            click.echo(f"{name}: {_counted(some)}")
            for one in some:
                click.echo(f"\n  {one.rule} {one.level}: {one.where}: {one.what}\n      {one.why}\n      {one.way_out}")
    if any(one.level == "warning" for some in found.values() for one in some):
        sys.exit(EXIT_FAILED)


def _counted(found: list[Finding]) -> str:
    warnings = sum(one.level == "warning" for one in found)
    notes = len(found) - warnings
    if not found:
        return "nothing found"
    return f"{warnings} warning{'' if warnings == 1 else 's'}, {notes} note{'' if notes == 1 else 's'}"


@group.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--unused", is_flag=True, help="Remove all snapshots that are not in use, and files of unfinished ones.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Remove all snapshots, and leftover files of unfinished ones. A snapshot in use, and a base that it needs, "
    "are kept; the exit status is then 1.",
)
@config_option
def rm(ids: tuple[str, ...], unused: bool, everything: bool, config_path: Path) -> None:
    """Remove snapshots that are not in use.

    A snapshot that a running server uses is kept. A function without a snapshot is frozen again when it is next
    published.
    """
    if [bool(ids), unused, everything].count(True) != 1:
        raise click.UsageError("choose snapshots by ID, with --unused or with --all: exactly one of the three")
    store = _store(load(config_path))
    failed = False
    if ids:
        chosen: dict[str, Snapshot] = {}
        for text in ids:
            try:
                snapshot = store.resolve(text)
                chosen[snapshot.sha256] = snapshot
            except ThawdError as error:
                warn(str(error))
                failed = True
        doomed = list(chosen.values())
    else:
        if left := store.tidy():
            click.echo(f"removed {left} unfinished file{'' if left == 1 else 's'}")
        doomed = [snapshot for snapshot in store.snapshots() if everything or not snapshot.in_use]
        if not doomed:
            click.echo(f"nothing to remove in {store.folder}")
    bases = {snapshot.base for snapshot in doomed}
    # A base can be removed only after the snapshots that refer to it, so bases come last.
    for snapshot in sorted(doomed, key=lambda snapshot: snapshot.sha256 in bases):
        try:
            store.remove(snapshot)
            click.echo(f"removed {snapshot.id} ({snapshot.name}), {_mib(snapshot.stored_bytes)}")
        except ThawdError as error:
            warn(str(error))
            failed = True
    if failed:
        sys.exit(EXIT_FAILED)


for _command in (
    snapshot_transfer.push,
    snapshot_transfer.pull,
    snapshot_transfer.run,
    snapshot_transfer.gc,
    snapshot_transfer.key,
):
    group.add_command(_command)


def _store(settings: Settings) -> SnapshotStore:
    from thawd.snapshot.store.images import SnapshotStore

    return SnapshotStore(settings.server.data / "snapshots")


@contextlib.contextmanager
def _progress(snapshot: Snapshot) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if standard error is a terminal."""
    if not sys.stderr.isatty() or snapshot.sidecar is None:
        yield lambda done_bytes: None
        return
    with click.progressbar(length=snapshot.sidecar.image_bytes, label=snapshot.id, file=sys.stderr) as bar:
        yield lambda done_bytes: bar.update(done_bytes - bar.pos)


def _named(snapshot: Snapshot) -> dict[str, Any]:
    origin = snapshot.sidecar and snapshot.sidecar.origin
    return {
        "id": snapshot.sha256,
        "function": origin and origin.function,
        "version": origin and origin.version,
    }


def _document(snapshot: Snapshot) -> dict[str, Any]:
    """Return everything known about a snapshot, as a JSON document."""
    document = {
        **_named(snapshot),
        "path": str(snapshot.path),
        "stored_bytes": snapshot.stored_bytes,
        "last_used_at": _utc(time.time() if snapshot.in_use else snapshot.last_used_unix_s),
        "in_use": snapshot.in_use,
        "problem": snapshot.problem,
        "disk": snapshot.disk and str(snapshot.disk),
    }
    if (sidecar := snapshot.sidecar) is not None:
        origin = sidecar.origin
        document |= {
            "created_at": _utc(sidecar.created_unix_s),
            "key": origin.key,
            "python": origin.python,
            "kernel": sidecar.kernel,
            "thawd": sidecar.thawd,
            "image_bytes": sidecar.image_bytes,
            "data_bytes": origin.data_bytes,
            "init_ms": origin.init_ms,
            "freeze_ms": origin.freeze_ms,
            "self_test": origin.self_test,
            "self_test_ms": origin.self_test_ms,
        }
    return document


def _row(snapshot: Snapshot) -> dict[str, Any]:
    """Return the snapshot's row in the table of `thawd snapshot list`."""
    sidecar = snapshot.sidecar
    return {
        "id": snapshot.id,
        "function": snapshot.name if sidecar else "?",
        "on disk": _mib(snapshot.stored_bytes),
        "created": _local(sidecar.created_unix_s) if sidecar else "?",
        "last used": "now" if snapshot.in_use else _local(snapshot.last_used_unix_s),
        "init": _took(sidecar.origin.init_ms) if sidecar else "?",
        "freeze": _took(sidecar.origin.freeze_ms) if sidecar else "?",
        "self-test": sidecar.origin.self_test if sidecar else "?",
        "state": _state(snapshot),
    }


def _state(snapshot: Snapshot) -> str:
    if snapshot.problem is not None:
        return "not usable"
    return "in use" if snapshot.in_use else "unused"


def _print_origin(snapshot: Snapshot) -> None:
    """Print when, by which software and from which function a snapshot was taken."""
    click.echo(f"{snapshot.name}, {snapshot.sha256}")
    if (sidecar := snapshot.sidecar) is not None:
        origin = sidecar.origin
        tested = f" in {_took(origin.self_test_ms)}" if origin.self_test_ms is not None else ""
        click.echo(
            f"  taken {_local(sidecar.created_unix_s)} by thawd {sidecar.thawd}, Python {origin.python}, "
            f"kernel {sidecar.kernel}\n"
            f"  init {_took(origin.init_ms)}, freeze {_took(origin.freeze_ms)}, self-test {origin.self_test}{tested}"
        )
    used = "" if snapshot.in_use else f", last used {_local(snapshot.last_used_unix_s)}"
    with_disk = " and what init wrote to its temporary folder" if snapshot.disk else ""
    click.echo(f"  {_state(snapshot)}{used}; memory{with_disk}: {_mib(snapshot.stored_bytes)} on disk\n")


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"


def _took(duration_ms: float) -> str:
    return f"{duration_ms:.0f} ms" if duration_ms < 1000 else f"{duration_ms / 1000:.2f} s"


def _local(unix_s: float) -> str:
    moment = _moment(unix_s)
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else "?"


def _utc(unix_s: float) -> str | None:
    moment = _moment(unix_s)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") if moment else None


def _moment(unix_s: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(unix_s, UTC)
    except (OverflowError, ValueError, OSError):  # `datetime` cannot represent a file time after the year 9999
        return None
