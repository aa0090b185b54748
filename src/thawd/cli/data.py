"""The verbs ``thawd backup`` and ``thawd restore``."""

from __future__ import annotations

from pathlib import Path

import click

from thawd.cli.verbs import config_option, fail, load
from thawd.errors import ThawdError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--buckets", "with_buckets", is_flag=True, help="Copy the objects of the buckets, too.")
@config_option
def backup(folder: Path, with_buckets: bool, config_path: Path) -> None:
    """Write what the server holds into FOLDER, a new one; the server may go on meanwhile.

    That is the queue with its dead letters, functions made through the API and their code, and embedded tables. Tables
    and buckets that lie elsewhere (by URL) are not in it, nor are logs and snapshots: snapshots are made again.
    """
    from thawd.server import backup as backups

    settings = load(config_path)
    try:
        manifest = backups.make(settings, folder, with_buckets=with_buckets, say=click.echo)
    except ThawdError as error:
        fail(str(error))
    size_mb = sum(copied.size for copied in manifest.files.values()) / 1e6
    click.echo(f"{folder}: {len(manifest.files)} files, {size_mb:.1f} MB; `thawd restore {folder}` puts them back")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Move aside what is there, to names that end in .before-restore-TIME.")
@config_option
def restore(folder: Path, replace: bool, config_path: Path) -> None:
    """Put the backup in FOLDER where the configuration says; thawd must not be running.

    The whole backup is checked before anything changes. Events that were queued when it was made run again.
    """
    from thawd.server import backup as backups

    settings = load(config_path)
    try:
        manifest = backups.restore(settings, folder, replace=replace, say=click.echo)
    except ThawdError as error:
        fail(str(error))
    click.echo(f"restored what thawd {manifest.thawd} backed up at {manifest.made}; start with `thawd up`")
