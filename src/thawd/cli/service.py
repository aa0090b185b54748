"""The command ``thawd service``: write the files with which thawd runs as a service and is monitored.

The files are in the folder ``service_files`` beside this module, so that an installed thawd has them, too.
"""

from __future__ import annotations

from pathlib import Path

import click

from thawd.cli.exits import fail
from thawd.cli.options import examples
from thawd.system.suggestions import did_you_mean

FILES = Path(__file__).parent / "service_files"
# What each file is for, by its path.
PURPOSES = {
    "systemd/thawd.service": "unit of the server, with a user of its own, hardened",
    "systemd/thawd.socket": "unit of the server's port, which stays open during a restart",
    "nginx/thawd.conf": "nginx in front of thawd, with TLS",
    "caddy/Caddyfile": "Caddy in front of thawd, with TLS",
    "prometheus/prometheus.yml": "configuration of a Prometheus that reads thawd's metrics",
    "prometheus/thawd.rules.yml": "alerts and recorded series",
    "grafana/thawd.json": "dashboard",
}


@click.command(
    epilog=examples(
        "thawd service                                   # list the files",
        "thawd service deploy                            # write them into the folder deploy",
        "thawd service --show systemd/thawd.service      # print one",
    )
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--show", metavar="FILE", help="Print this file, and write none.")
def service(folder: Path | None, show: str | None) -> None:
    """Write files for systemd, nginx, Caddy, Prometheus and Grafana.

    The files are written into FOLDER, which is made if it does not exist. A file there that differs is not
    overwritten. Without FOLDER, the command lists the files.
    """
    if show is not None:
        if folder is not None:
            raise click.UsageError("--show prints a file and writes none; leave out FOLDER")
        if show not in PURPOSES:
            fail(f"there is no file {show!r}; {did_you_mean(show, PURPOSES, what='files')}")
        click.echo((FILES / show).read_text(), nl=False)
    elif folder is not None:
        _write(folder)
    else:
        width = max(map(len, PURPOSES))
        for name, purpose in PURPOSES.items():
            click.echo(f"{name:<{width}}  {purpose}")


def _write(folder: Path) -> None:
    texts = {folder / name: (FILES / name).read_text() for name in PURPOSES}
    differing = [path for path, text in texts.items() if path.exists() and path.read_text() != text]
    if differing:
        fail(
            f"{', '.join(map(str, differing))} {'differs' if len(differing) == 1 else 'differ'} from thawd's, and "
            "nothing was written; name another folder"
        )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        click.echo(f"wrote {path}")
