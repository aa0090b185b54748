"""The command ``thawd restore``: restore a backup."""

from __future__ import annotations

from pathlib import Path

import click

from thawd.cli.exits import fail
from thawd.cli.options import config_option, examples, load
from thawd.errors import ThawdError


@click.command(epilog=examples("thawd restore /backups/monday --replace"))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--replace",
    is_flag=True,
    help="Replace existing files. The old files are kept, renamed to names that end in .before-restore-TIME.",
)
@config_option
def restore(folder: Path, replace: bool, config_path: Path) -> None:
    """Restore the backup in FOLDER; the server must be stopped.

    Files are restored to the paths that the configuration names. The command checks the whole backup before it changes
    anything. Events that were waiting or running when the backup was made run once the server starts, even if they have
    finished since.
    """
    from thawd.server import backup as backups

    settings = load(config_path)
    try:
        manifest = backups.restore(settings, folder, replace=replace, say=click.echo)
    except ThawdError as error:
        fail(str(error))
    click.echo(f"restored the backup that thawd {manifest.thawd} made at {manifest.made}; start with `thawd up`")
