"""The commands ``thawd cluster backup`` and ``thawd cluster restore``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from thawd.cli.exits import fail, warn
from thawd.cli.options import config_option, examples, load
from thawd.errors import ThawdError

_folder = click.argument("folder", type=click.Path(path_type=Path))


@click.command("backup", epilog=examples("thawd cluster backup /backups/monday", "thawd cluster backup x --keys"))
@_folder
@click.option(
    "--keys",
    "with_keys",
    is_flag=True,
    help="Also save the cluster's authority and key. Whoever can read the backup can then be any machine.",
)
@config_option
def backup(folder: Path, with_keys: bool, config_path: Path) -> None:
    """Back up the whole cluster into FOLDER, from any of its machines.

    FOLDER must be new or empty. The machines may keep running, and all that run must answer. The backup contains what
    the machines share in the database (events with their copies, dead letters, the progress of schedules and streams),
    and the state that each machine has for itself (see `thawd backup`). It does not contain tables and buckets of
    functions, logs, or snapshots.
    """
    from thawd.server import cluster_backup as backups

    settings = load(config_path)
    try:
        manifest = asyncio.run(backups.make(settings, folder, with_keys=with_keys, say=click.echo))
    except ThawdError as error:
        fail(error.message)
    size_mb = sum(each.size for each in manifest.files.values()) / 1e6
    rows = manifest.saved.tables["event_copies"].rows
    click.echo(
        f"{folder}: {', '.join(manifest.machines)}; {rows:,} events in the database; {size_mb:.1f} MB; "
        f"`thawd cluster restore {folder}` restores them"
    )
    for name in manifest.away:
        warn(
            f"the machine {name} does not run, so the backup has none of its own state; its events are in the database"
        )


@click.command(
    "restore",
    epilog=examples("thawd cluster restore /backups/monday", "thawd cluster restore /backups/monday --machine a"),
)
@_folder
@click.option("--machine", metavar="NAME", help="Restore the own state of this machine, instead of the database.")
@click.option(
    "--replace",
    is_flag=True,
    help="With --machine: replace existing files. The old files are kept, renamed to names that end in "
    ".before-restore-TIME.",
)
@config_option
def restore(folder: Path, machine: str | None, replace: bool, config_path: Path) -> None:
    """Restore the backup of a cluster in FOLDER. No machine may run.

    Without --machine, the database is restored, in one transaction. It must have no rows of thawd. With --machine, the
    own state of a machine is restored into the data folder of this one, which has that name from then on. Do this on
    each machine that takes the place of one in the backup. The command checks the whole backup before it changes
    anything.

    Events that waited or ran when the backup was made run once machines start, also on machines that are new. Schedules
    continue as after a time without a server.
    """
    from thawd.server import cluster_backup as backups

    if replace and machine is None:
        raise click.UsageError("--replace needs --machine: a restore replaces no rows of a database")
    settings = load(config_path)
    try:
        if machine is None:
            manifest = backups.restore_shared(settings, folder, say=click.echo)
        else:
            manifest = backups.restore_machine(settings, folder, machine, replace=replace, say=click.echo)
    except ThawdError as error:
        fail(error.message)
    what = "the database" if machine is None else f"the own state of {machine}"
    click.echo(f"restored {what} from the backup that thawd {manifest.thawd} made at {manifest.made}")
    if machine is None:
        rows = manifest.saved.tables["event_copies"].rows
        click.echo(f"{rows:,} events run when a machine starts; --machine restores the own state of a machine")
