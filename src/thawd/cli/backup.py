"""The command ``thawd backup``: copy the server's data into a folder. It works whether or not the server runs."""

from __future__ import annotations

from pathlib import Path

import click

from thawd.cli.exits import fail
from thawd.cli.options import config_option, examples, load
from thawd.errors import ThawdError


@click.command(epilog=examples("thawd backup /backups/monday --buckets"))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--buckets", "with_buckets", is_flag=True, help="Also copy the objects of the buckets.")
@config_option
def backup(folder: Path, with_buckets: bool, config_path: Path) -> None:
    """Back up the server's data into FOLDER.

    FOLDER must be new or empty. The server may keep running. The backup contains the event queue with its dead
    letters, functions created through the API with their code, tables in files, and the configuration file. It does
    not contain remote tables and buckets (declared by URL), logs, or snapshots. After a restore, the server takes new
    snapshots when it publishes the functions.
    """
    from thawd.server import backup as backups

    settings = load(config_path)
    try:
        manifest = backups.make(settings, folder, with_buckets=with_buckets, say=click.echo)
    except ThawdError as error:
        fail(str(error))
    size_mb = sum(copied.size for copied in manifest.files.values()) / 1e6
    click.echo(f"{folder}: {len(manifest.files)} files, {size_mb:.1f} MB; `thawd restore {folder}` restores them")
