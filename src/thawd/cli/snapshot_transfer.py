"""The commands ``thawd snapshot push``, ``pull``, ``gc`` and ``key``, and ``verify --store``: a store of chunks.

A store is named by the path of a folder, or by the URL of a bucket or of a repository in a registry:
``s3://bucket/prefix``, ``gs://…``, ``az://…`` or ``oci://host/repository``.
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
from thawd.cli.options import Finite, check_writable, config_option, data_folder, examples, load
from thawd.cli.output import print_text

if TYPE_CHECKING:
    from thawd.resources import RemoteBucket
    from thawd.stores.chunk_places import ChunkPlace
    from thawd.transfer.chunk_downloads import ChunkSource
    from thawd.transfer.receiving import Record
    from thawd.transfer.sending import Sent
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
        "thawd snapshot push classify s3://models/thawd",
        "thawd snapshot push classify:3 /mnt/shared/snapshots",
        "thawd snapshot push ./answer.img s3://models/thawd",
    )
)
@click.argument("which", metavar="ID|FILE")
@click.argument("store", metavar="STORE")
@click.option("--name", help="Name in the store for the image FILE of a program.  [default: the file's name]")
@click.option("--again", is_flag=True, help="Send all chunks, also those that the store has: they may be damaged.")
@key_option
@config_option
def push(which: str, store: str, name: str | None, again: bool, key_path: Path | None, config_path: Path) -> None:
    """Send the snapshot ID to STORE, for other machines.

    With it travel the bases that it refers to, what init left in its temporary folder, and the virtual environments and
    packages that it uses. What the store has already is not sent again. All is encrypted. The first push makes the
    store's key; other machines need a copy of it, or what `thawd snapshot key` prints.

    A path, such as ./answer.img, sends the image of a program that called `thawd.snapshot.freeze`.
    """
    from thawd.snapshot.store.images import SnapshotStore
    from thawd.transfer import sending, store_keys

    data, place = _opened(store, config_path)
    if os.sep in which:
        _push_program(Path(which), name, place, _key_path(data, key_path), again=again)
        return
    if name is not None:
        fail(f"--name is for the image of a program; for the file {which}, write ./{which}")
    snapshots = SnapshotStore(data / "snapshots")
    snapshot = snapshots.resolve(which)
    key = store_keys.main_key(_key_path(data, key_path))
    sent = sending.send(snapshots, snapshot, place, key, anew=again, progress=_progress)
    _tell_sent(f"{snapshot.id} ({snapshot.name})", sent)


def _push_program(image: Path, name: str | None, place: ChunkPlace, key_path: Path, *, again: bool) -> None:
    from thawd.transfer import programs, store_keys

    name = image.stem if name is None else name
    sent = programs.send_program(image, name, place, store_keys.main_key(key_path), anew=again)
    _tell_sent(f"{sent.key.rpartition('/')[2][:12]} ({name})", sent)


def _tell_sent(what: str, sent: Sent) -> None:
    click.echo(
        f"sent {what}: {_mib(sent.image_bytes)} of memory in {sent.chunks:,} chunks, of which {sent.new_chunks:,} were "
        f"new: {_mib(sent.new_bytes)}"
    )


@click.command(
    epilog=examples("thawd snapshot pull classify s3://models/thawd", "thawd snapshot pull classify:3 /mnt/s")
)
@click.argument("which", metavar="FUNCTION[:VERSION]|FUNCTION/ID")
@click.argument("store", metavar="STORE")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write the image of a program to FILE."
)
@key_option
@config_option
def pull(which: str, store: str, output: Path | None, key_path: Path | None, config_path: Path) -> None:
    """Receive a snapshot from STORE.

    The next `thawd up` thaws the function from it, if the function's code and settings are those of the snapshot.
    Everything is verified: each chunk, the image, and each file of this machine that the process had loaded or mapped.
    If something does not fit, the command says what, and stores nothing; `thawd up` then initialises the function.

    If the function has a container image that this machine lacks, it is fetched from the registry that the function
    names. With --output, receive the image of a program; continue it with `thawd thaw FILE`.
    """
    from thawd.snapshot import engine
    from thawd.snapshot.store.images import SnapshotStore
    from thawd.transfer import programs, receiving, store_keys

    check_writable(output)
    data, place = _opened(store, config_path)
    key = store_keys.read_key(_key_path(data, key_path))
    record = receiving.find(place, key, which)
    source = _source(store, place, data, config_path)
    program = None if engine.unavailable() is not None else Path(engine.program_path())
    if output is not None:
        fetched = programs.receive_program(source, record, output, program=program, progress=_progress)
        click.echo(f"received {output} ({record.body.function}): {_mib(fetched)}")
        return
    snapshots = SnapshotStore(data / "snapshots")
    received = receiving.receive(snapshots, source, record, program=program, progress=_progress)
    snapshot = received.snapshot
    if received.was_there:
        click.echo(f"{snapshot.id} ({snapshot.name}) is there already")
    else:
        kept = f", of which this machine had {_mib(received.kept_bytes)}" if received.kept_bytes else ""
        click.echo(f"received {snapshot.id} ({snapshot.name}): {_mib(received.received_bytes)}{kept}")


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=examples("thawd snapshot run answer s3://models/thawd --verbose < input.txt"),
)
@click.argument("which", metavar="NAME")
@click.argument("store", metavar="STORE")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@key_option
@config_option
def run(which: str, store: str, arguments: tuple[str, ...], key_path: Path | None, config_path: Path) -> None:
    """Continue a program from its snapshot in STORE, while the snapshot arrives.

    The program starts when the first parts of its image are there. Memory that it uses is fetched first and the rest
    afterwards; an access to what is not there yet waits. If the store fails meanwhile, the program is killed, and this
    command says why. It needs FUSE and the right to mount; otherwise the whole image is fetched first.
    """
    from thawd.snapshot import engine
    from thawd.transfer import program_runs, receiving, store_keys

    if (why := engine.unavailable()) is not None:
        fail(why)
    data, place = _opened(store, config_path)
    key = store_keys.read_key(_key_path(data, key_path))
    record = receiving.find(place, key, which)
    thaw = Path(engine.program_path())
    source = _source(store, place, data, config_path)
    sys.exit(program_runs.run_program(source, record, arguments, program=thaw, key=key, progress=_progress))


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
    if place.frees_chunks:
        click.echo("the registry frees the space of chunks that no snapshot needs when it collects garbage")
        return
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

    data = data_folder(config_path)
    main = store_keys.main_key(_key_path(data, key_path))
    if function is None:
        click.echo(main.text(), nl=False)
    else:
        click.echo(store_keys.FunctionKey(function, main.function_key(function)).text(), nl=False)


def list_store(store: str, key_path: Path | None, config_path: Path, *, as_json: bool) -> None:
    """Print the snapshots of a store that the key opens, the last sent first; others are counted."""
    from thawd.transfer import receiving, store_keys

    data, place = _opened(store, config_path)
    found = store_keys.read_key(_key_path(data, key_path))
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

    data, place = _opened(store, config_path)
    path = _key_path(data, key_path)
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


def _opened(store: str, config_path: Path) -> tuple[Path, ChunkPlace]:
    """Return the data folder and the store of chunks."""
    from thawd.transfer import store_layout

    where = _where(store)
    if (why := store_layout.missing_library(where)) is not None:
        fail(why)
    return data_folder(config_path), store_layout.place_at(where)


def _where(store: str) -> Path | RemoteBucket:
    """Return the folder, or the bucket or repository that a URL names."""
    from thawd.config.findings import Findings
    from thawd.config.store_urls import REGISTRY, read_bucket_url, read_registry_url
    from thawd.resources import RemoteBucket

    if "://" not in store:
        return Path(store)
    findings = Findings("the command line", document={})
    read = read_registry_url if store.startswith(f"{REGISTRY}://") else read_bucket_url
    fields = read(store, findings, path=("STORE",), environ=os.environ)
    if fields is None:
        fail("; ".join(map(str, findings.problems())))
    return RemoteBucket(name="STORE", **fields)


def _source(store: str, place: ChunkPlace, data: Path, config_path: Path) -> ChunkSource:
    """Return the chunks of a store; those that this machine keeps are not fetched."""
    from thawd.config.settings import ServerSettings
    from thawd.transfer.chunk_cache import cache_for
    from thawd.transfer.chunk_downloads import ChunkSource

    server = load(config_path).server if config_path.exists() else ServerSettings(data=data)
    return ChunkSource(place, cache_for(_where(store), data, limit_bytes=server.chunk_cache_max_mb << 20))


def _key_path(data: Path, given: Path | None) -> Path:
    return data / _KEY_FILE if given is None else given


def _progress(line: str) -> None:
    click.echo(f"    {line}", err=True)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"
