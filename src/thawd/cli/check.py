"""The command ``thawd check``: validate the configuration."""

from __future__ import annotations

from pathlib import Path

import click

from thawd.cli.options import config_option, examples, load

_OPTIONAL = ("queue", "schedule")
"""Resources that the summary mentions only if some are declared."""


@click.command(epilog=examples("thawd check -c staging/thawd.toml"))
@config_option
def check(config_path: Path) -> None:
    """Check the configuration and print every mistake.

    For each mistake, the command prints the file, the key path, the value found and the allowed values. The exit status
    is 1 if there is a mistake.
    """
    settings = load(config_path)
    counts = {
        "function": len(settings.functions),
        "bucket": len(settings.buckets) + len(settings.remote_buckets),
        "route": len(settings.routes),
        "queue": sum(map(len, settings.sources.values())),
        "schedule": len(settings.schedules),
        "table": len(settings.tables),
    }
    summary = ", ".join(
        f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items() if count or name not in _OPTIONAL
    )
    click.echo(f"{config_path}: no mistakes; {summary}")
