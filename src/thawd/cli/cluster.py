"""The commands ``thawd cluster ...``: make, join, show and leave a cluster of machines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli import cluster_ray
from thawd.cli import up as up_module
from thawd.cli.client import fetch, message_of, refusal, request
from thawd.cli.cluster_backup import backup, restore
from thawd.cli.exits import fail
from thawd.cli.options import config_option, examples, load
from thawd.cli.output import print_text
from thawd.errors import ThawdError

if TYPE_CHECKING:
    from thawd.config import Settings


@click.group("cluster")
def group() -> None:
    """Serve a configuration with several machines.

    The machines find each other in a PostgreSQL database, `state` in `[server]`. `[cluster]` has the address of each.
    """


group.add_command(cluster_ray.group)


def _add_serving(prepare: Callable[..., None], parameters: list[click.Parameter], example: str) -> None:
    """Add a command that serves as ``thawd up`` does, after `prepare`.

    Args:
        prepare: gets the path of thawd.toml and the command's own parameters. Its name ends with the command's, and its
            docstring is the help text.
        parameters: the command's own parameters.
        example: an example for the help text.
    """
    own = {parameter.name for parameter in parameters}

    def callback(**values: Any) -> None:
        prepare(**{key: value for key, value in values.items() if key in own or key == "config_path"})
        assert up_module.up.callback is not None
        up_module.up.callback(**{key: value for key, value in values.items() if key not in own})

    name = prepare.__name__.rpartition("_")[2]
    params = [*parameters, *up_module.up.params]
    group.add_command(
        click.Command(name, callback=callback, params=params, help=prepare.__doc__, epilog=examples(example))
    )


def cluster_up(config_path: Path) -> None:
    """Make a cluster, and serve as its first machine.

    A machine that has credentials of a cluster simply serves, as with `thawd up`. Otherwise thawd makes the cluster's
    authority and key, and keeps them in the data folder. The other options are those of `thawd up`.
    """
    settings = _clustered(config_path)
    from thawd.cluster import credentials

    data = settings.server.data
    if credentials.exist(data):
        return
    from thawd.server.assembly.cluster_state import recorded_authority

    assert settings.server.state is not None
    url = settings.server.state
    if _expecting(lambda: recorded_authority(url)) is not None:
        fail(
            "the database has a cluster already; join it with `thawd cluster join ADDRESS --token TOKEN`. If no "
            "machine of it has its data folder any more, give `state` another schema, with ?schema=NAME in its URL"
        )
    _expecting(lambda: credentials.create(data, _name(settings)))


def cluster_join(config_path: Path, address: str, token: str) -> None:
    """Join a cluster, and serve as one of its machines.

    ADDRESS is the address for the cluster of any of its machines, as `thawd cluster status` shows it. This machine
    needs the same thawd.toml and code. A machine that has joined before simply serves, as with `thawd up`. The other
    options are those of `thawd up`.
    """
    settings = _clustered(config_path)
    from thawd.cluster import credentials, joining

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        fail(f"ADDRESS must be a host and a port, such as 10.0.0.1:8351, not {address}")
    data = settings.server.data
    if credentials.exist(data):
        own = _expecting(lambda: credentials.Credentials(data).fingerprint)
        if own != _expecting(lambda: credentials.parts_of(token))[-1]:
            fail(f"this machine belongs to another cluster; to leave it for good, remove {data / credentials.FOLDER}")
        return
    where = (host.strip("[]"), int(port))
    _expecting(lambda: joining.join(where, token, name=_name(settings), data=data))


_add_serving(cluster_up, [], "thawd cluster up")
_add_serving(
    cluster_join,
    [
        click.Argument(["address"], metavar="ADDRESS"),
        click.Option(
            ["--token"],
            required=True,
            envvar="THAWD_JOIN_TOKEN",
            help="Token of `thawd cluster token`. In THAWD_JOIN_TOKEN, other users of this machine do not see it.",
        ),
    ],
    "thawd cluster join 10.0.0.1:8351 --token thawd1-...",
)


@group.command(epilog=examples("thawd cluster token", "thawd cluster token --hours 24"))
@click.option("--hours", type=click.FloatRange(0.01, 720), default=1.0, show_default=True, help="How long it is valid.")
@config_option
def token(hours: float, config_path: Path) -> None:
    """Print a token with which machines can join this machine's cluster.

    Keep it secret: whoever has it can get the cluster's key. It may be used several times until it ends.
    """
    settings = _clustered(config_path)
    from thawd.cluster.credentials import Credentials

    own = _expecting(lambda: Credentials(settings.server.data))
    click.echo(own.token(valid_s=hours * 3600, now=time.time()))


@group.command(epilog=examples("thawd cluster drain", "thawd cluster drain --end"))
@click.option("--end", is_flag=True, help="End the drain: this machine takes part in the cluster again.")
@config_option
def drain(end: bool, config_path: Path) -> None:
    """Have the other machines take over what this one does. The server continues, and accepts nothing.

    Returns when nothing runs here any more. Requests that enter here meanwhile run on other machines. With durability =
    "cluster", other machines run the events that wait here; otherwise this machine runs them all first.
    """
    document = _post(load(config_path), "resume" if end else "drain")
    if end:
        click.echo("this machine takes part in the cluster again")
    else:
        _say_drained(document)


@group.command(epilog=examples("thawd cluster leave"))
@config_option
def leave(config_path: Path) -> None:
    """Drain this machine, stop its server, and remove its credentials."""
    settings = load(config_path)
    _say_drained(_post(settings, "leave"))
    from thawd.cluster import credentials

    credentials.remove(settings.server.data)
    click.echo("this machine has left the cluster; to come back, it joins with a new token")


@group.command(epilog=examples("thawd cluster status"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@config_option
def status(as_json: bool, config_path: Path) -> None:
    """Show the machines of the cluster, as the server on this machine knows them.

    The state of a machine is "alive", "draining" (it takes no more requests of others) or "silent". "idle" counts idle
    environments, "free" environments that could start. The last line counts the requests of this machine: those that
    others have run for it, those that it has run for others, refusals, and requests that may have run on a machine that
    was lost.
    """
    document = fetch(load(config_path), "/_thawd/status").get("cluster")
    if document is None:
        fail("this server belongs to no cluster: thawd.toml has no [cluster], or had none when the server started")
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    versions = document.get("versions", {})
    rows = [_row(name, each, document["name"], versions.get(name)) for name, each in document["machines"].items()]
    print_text(rows, key_name="machine")
    for each in document["machines"].values():
        if each.get("why") and not each["alive"]:
            click.echo(f"{document['name']}: {each['why']}")
    click.echo(
        f"{document['name']}: {document['forwarded']:,} forwarded, {document['accepted']:,} run for others, "
        f"{document['refused']:,} refused, {document['lost']:,} lost"
    )
    if document.get("why_not"):
        click.echo(f"{document['name']}: {document['why_not']}, so it accepts and begins nothing")
    elif document.get("leads"):
        click.echo(f"{document['name']}: leads the cluster")
    if waits_for := document.get("upgrade_waits_for"):
        click.echo(f"{document['name']}: changes of the tables wait until these are upgraded: {', '.join(waits_for)}")


def _row(name: str, machine: dict[str, Any], own: str, version: str | None) -> dict[str, Any]:
    state = "silent" if not machine["alive"] else "draining" if machine["draining"] else "alive"
    return {
        "machine": name,
        "address": machine["address"],
        "state": state + (" (this machine)" if name == own else ""),
        **({} if version is None else {"thawd": version or "earlier"}),
        "idle": f"{machine['idle']:,}",
        "free": f"{machine['free_environments']:,}",
    }


def _clustered(config_path: Path) -> Settings:
    """The settings of a machine that finds the others in a database, and has the credentials in its data folder."""
    settings = load(config_path)
    if settings.server.state is None or settings.cluster is None:
        fail(
            "thawd.toml needs a PostgreSQL database with the cluster's state, `state` in [server], and a section "
            "[cluster] with this machine's address"
        )
    if settings.cluster.machines or settings.cluster.key:
        fail("[cluster] has a list of machines or a key; without them, thawd makes keys, and machines join by a token")
    return settings


def _name(settings: Settings) -> str:
    from thawd.server.assembly.cluster_state import machine_name

    settings.server.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    assert settings.cluster is not None
    return settings.cluster.name or _expecting(lambda: machine_name(settings.server.data))


def _expecting(work: Any) -> Any:
    """Return what `work` returns; end the command if it fails for a reason that a person can change."""
    try:
        return work()
    except ThawdError as error:
        fail(error.message)


def _post(settings: Settings, verb: str) -> dict[str, Any]:
    code, _, body = request(settings, f"/_thawd/cluster/{verb}", b"", {})
    if code != 200:
        fail(refusal(settings, code, message_of(body)))
    document: dict[str, Any] = json.loads(body)
    return document


def _say_drained(document: dict[str, Any]) -> None:
    events = document["handed_over"]
    handed = f"; others run {events:,} events that waited here" if events else ""
    click.echo(f"this machine is drained{handed}")


group.add_command(backup)
group.add_command(restore)
