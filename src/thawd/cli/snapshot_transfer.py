"""The commands ``thawd snapshot push``, ``pull``, ``gc`` and ``key``, and ``verify --store``: a store of chunks.

A store is named by the path of a folder, or by the URL of a bucket: ``s3://bucket/prefix``, ``gs://…`` or ``az://…``.
This module formats the output; `thawd.transfer` does the work. No server is needed.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import EXIT_FAILED, fail, warn
from thawd.cli.options import Finite, config_option, examples, load
from thawd.cli.output import print_text

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.stores.chunk_places import ChunkPlace
    from thawd.transfer.receiving import Record
    from thawd.transfer.store_keys import FunctionKey, StoreKey

_KEY_FILE = "snapshots.key"  # that of `thawd.transfer.store_layout`, which --help does not import

key_option = click.option(
    "--key",
    "key_path",
    type=click.Path(path_type=Path),
    help=f"File with the store's key.  [default: {_KEY_FILE} in the data folder]",
)


@click.command(
    epilog=examples(
        "thawd snapshot push classify s3://models/thawd", "thawd snapshot push classify:3 /mnt/shared/snapshots"
    )
)
@click.argument("which", metavar="ID")
@click.argument("store", metavar="STORE")
@click.option("--again", is_flag=True, help="Send all chunks, also those that the store has: they may be damaged.")
@key_option
@config_option
def push(which: str, store: str, again: bool, key_path: Path | None, config_path: Path) -> None:
    """Send the snapshot ID to STORE, for other machines.

    With it travel the bases that it refers to, what init left in its temporary folder, and the virtual environments and
    packages that it uses. What the store has already is not sent again. All is encrypted. The first push makes the
    store's key; other machines need a copy of it, or what `thawd snapshot key` prints.
    """
    from thawd.snapshot.store.images import SnapshotStore
    from thawd.transfer import sending, store_keys

    settings, place = _opened(store, config_path)
    snapshots = SnapshotStore(settings.server.data / "snapshots")
    snapshot = snapshots.resolve(which)
    key = store_keys.main_key(_key_path(settings, key_path))
    sent = sending.send(snapshots, snapshot, place, key, anew=again, progress=_progress)
    click.echo(
        f"sent {snapshot.id} ({snapshot.name}): {_mib(sent.image_bytes)} of memory in {sent.chunks:,} chunks, of which "
        f"{sent.new_chunks:,} were new: {_mib(sent.new_bytes)}"
    )


@click.command(
    epilog=examples("thawd snapshot pull classify s3://models/thawd", "thawd snapshot pull classify:3 /mnt/s")
)
@click.argument("which", metavar="FUNCTION[:VERSION]|FUNCTION/ID")
@click.argument("store", metavar="STORE")
@key_option
@config_option
def pull(which: str, store: str, key_path: Path | None, config_path: Path) -> None:
    """Receive a snapshot from STORE.

    The next `thawd up` thaws the function from it, if the function's code and settings are those of the snapshot.
    Everything is verified: each chunk, the image, and each file of this machine that the process had loaded or mapped.
    If something does not fit, the command says what, and stores nothing; `thawd up` then initialises the function.
    """
    from thawd.snapshot import engine
    from thawd.snapshot.store.images import SnapshotStore
    from thawd.transfer import receiving, store_keys

    settings, place = _opened(store, config_path)
    key = store_keys.read_key(_key_path(settings, key_path))
    record = receiving.find(place, key, which)
    snapshots = SnapshotStore(settings.server.data / "snapshots")
    program = None if engine.unavailable() is not None else Path(engine.program_path())
    received = receiving.receive(snapshots, place, record, program=program, progress=_progress)
    snapshot = received.snapshot
    if received.was_there:
        click.echo(f"{snapshot.id} ({snapshot.name}) is there already")
    else:
        click.echo(f"received {snapshot.id} ({snapshot.name}): {_mib(received.fetched_bytes)}")


@click.command(
    epilog=examples("thawd snapshot gc s3://models/thawd", "thawd snapshot gc s3://models/thawd --max-age-s 2592000")
)
@click.argument("store", metavar="STORE")
@click.option(
    "--max-age-s", type=Finite(min=0.0), help="First remove all snapshots that were sent longer ago, in seconds."
)
@config_option
def gc(store: str, max_age_s: float | None, config_path: Path) -> None:
    """Remove chunks from STORE that no snapshot needs.

    The first run notes which chunks are unused. A run at least a day later removes those of them that are still unused.
    Run it regularly, on one machine. It needs no key.
    """
    from thawd.transfer import upkeep

    _, place = _opened(store, config_path)
    done = upkeep.clean_up(place, max_age_s=max_age_s)
    if done.records:
        click.echo(f"removed {done.records} snapshot{'' if done.records == 1 else 's'}")
    click.echo(f"removed {done.removed:,} chunks, {_mib(done.removed_bytes)}")
    if done.noted:
        click.echo(f"{done.noted:,} chunks are unused; a run after {done.wait_s / 3600:.1f} hours removes them")


@click.command(epilog=examples("thawd snapshot key classify > classify.key"))
@click.argument("function", required=False)
@key_option
@config_option
def key(function: str | None, key_path: Path | None, config_path: Path) -> None:
    """Print the key with which a machine can receive the snapshots of FUNCTION, and no others.

    Save it there as `snapshots.key` in the data folder, with mode 0600. Without FUNCTION, print the main key, with
    which a machine can send, too.
    """
    from thawd.transfer import store_keys

    settings = load(config_path)
    main = store_keys.main_key(_key_path(settings, key_path))
    if function is None:
        click.echo(main.text(), nl=False)
    else:
        click.echo(store_keys.FunctionKey(function, main.function_key(function)).text(), nl=False)


def list_store(store: str, key_path: Path | None, config_path: Path, *, as_json: bool) -> None:
    """Print the snapshots of a store that the key opens, the last sent first; others are counted."""
    from thawd.transfer import receiving, store_keys

    settings, place = _opened(store, config_path)
    found = store_keys.read_key(_key_path(settings, key_path))
    records, problems = receiving.all_records(place, found)
    rows = [_row(record) for record in sorted(records, key=lambda one: -one.body.sent_unix_s)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        print_text(rows, key_name="id")
    else:
        click.echo(f"no snapshots in {place.name}")
    for problem in problems:
        warn(problem)
    if problems:
        sys.exit(EXIT_FAILED)


def _row(record: Record) -> dict[str, Any]:
    body = record.body
    sidecar = body.snapshots[-1].sidecar
    sent_at = datetime.fromtimestamp(body.sent_unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "id": body.sha256[:12],
        "function": f"{body.function}:{sidecar.origin.version}",
        "sent": sent_at,
        "memory": _mib(sum(extent.length for one in body.snapshots for extent in one.extents)),
        "packages": len(body.trees),
        "chunks": len(body.chunks),
        "data folder": body.data,
    }


def verify_store(store: str, key_path: Path | None, config_path: Path) -> None:
    """Read every chunk of a store, and print what is wrong; exits with status 1 if something is."""
    from thawd.transfer import store_keys, upkeep

    settings, place = _opened(store, config_path)
    path = _key_path(settings, key_path)
    found: StoreKey | FunctionKey | None = None
    if key_path is not None or path.exists():
        found = store_keys.read_key(path)
    else:
        warn(f"there is no key at {path}, so only the names of chunks are checked, not their contents")

    def show(name: str, problems: list[str]) -> None:
        click.echo(f"{name}  {'not sound' if problems else 'sound'}")
        for problem in problems:
            warn(problem)

    if upkeep.verify(place, found, on_record=show):
        sys.exit(EXIT_FAILED)


def _opened(store: str, config_path: Path) -> tuple[Settings, ChunkPlace]:
    from thawd.config.findings import Findings
    from thawd.config.store_urls import read_bucket_url
    from thawd.resources import RemoteBucket
    from thawd.transfer import store_layout

    settings = load(config_path)
    where: Path | RemoteBucket = Path(store)
    if "://" in store:
        findings = Findings("the command line", document={})
        fields = read_bucket_url(store, findings, path=("STORE",), environ=os.environ)
        if fields is None:
            fail("; ".join(map(str, findings.problems())))
        where = RemoteBucket(name="STORE", **fields)
    if (why := store_layout.missing_library(where)) is not None:
        fail(why)
    return settings, store_layout.place_at(where)


def _key_path(settings: Settings, given: Path | None) -> Path:
    return settings.server.data / _KEY_FILE if given is None else given


def _progress(line: str) -> None:
    click.echo(f"    {line}", err=True)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"
