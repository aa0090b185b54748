"""The commands ``thawd cluster ray ...``: run thawd on the nodes of a Ray cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from thawd.cli.exits import VerbGroup, fail
from thawd.cli.options import Finite, config_option, examples, load
from thawd.cli.output import print_text

if TYPE_CHECKING:
    from thawd.ray_nodes.supervisor import NodeStatus, Status

address_option = click.option(
    "--address",
    envvar="RAY_ADDRESS",
    default="auto",
    show_default=True,
    help="The Ray cluster: auto (the one on this machine), HOST:PORT, or ray://HOST:PORT for Ray Client. Without the "
    "option, that of the environment variable RAY_ADDRESS.",
)


@click.group("ray", cls=VerbGroup)
def group() -> None:
    """Run thawd on the nodes of a Ray cluster that exists.

    Ray starts and restarts a thawd on each node, and can scale the nodes. The machines then find each other as those of
    `thawd cluster up` and `join` do. Needs thawd[ray].
    """


@group.command(
    epilog=examples(
        "thawd cluster ray up",
        "thawd cluster ray up --address 10.0.0.1:6379 --folder /srv/app",
        "thawd cluster ray up --resource thawd --most 20     # Ray's autoscaler adds and removes machines",
    )
)
@address_option
@click.option(
    "--folder",
    default="",
    help="Folder of the project on each node, for example in a container image. Without the option, the folder "
    "of the configuration is sent to the nodes.",
)
@click.option(
    "--data",
    default="~/.thawd",
    show_default=True,
    help="Folder on each node under which the data folder of its thawd is, on a disk of the node.",
)
@click.option("--resource", default="", help="Run thawd only on nodes with this custom resource of Ray.")
@click.option(
    "--most",
    type=click.IntRange(1, 100_000),
    help="Let Ray's autoscaler add machines when requests wait for room, up to this number, and remove them. Needs "
    "--resource, and a node type of Ray with 1 of it.",
)
@click.option(
    "--least", type=click.IntRange(1, 100_000), default=1, show_default=True, help="With --most: the lowest number."
)
@click.option(
    "--idle-minutes",
    type=Finite(0.01, 10_000),
    default=5.0,
    show_default=True,
    help="With --most: how long machines must be too many before one stops.",
)
@click.option(
    "--join",
    default="",
    help="Join the cluster of a machine outside of Ray: its address for other machines. The token is read from "
    "THAWD_JOIN_TOKEN.",
)
@click.option(
    "--no-ray-token",
    is_flag=True,
    help="Accept a Ray cluster that asks nobody for a token, because nobody else can reach its ports.",
)
@click.option(
    "--wait-s",
    type=Finite(0, 86_400),
    default=120.0,
    show_default=True,
    help="How long to wait until all machines serve, seconds.",
)
@config_option
def up(  # noqa: PLR0913, PLR0917 - an option each
    address: str,
    folder: str,
    data: str,
    resource: str,
    most: int | None,
    least: int,
    idle_minutes: float,
    join: str,
    no_ray_token: bool,
    wait_s: float,
    config_path: Path,
) -> None:
    """Run thawd on all nodes, and on nodes that come later.

    The configuration needs `state` in `[server]`, and `[cluster]`. Secrets and variables that it refers to must be in
    the environment of Ray's nodes, and here. Run the command again after a change: machines are then replaced one
    after the other.
    """
    from thawd.ray_nodes import launching
    from thawd.ray_nodes.options import Options

    settings = load(config_path)
    if settings.server.state is None or settings.cluster is None or settings.cluster.machines:
        fail(
            "thawd.toml needs a PostgreSQL database with the cluster's state, `state` in [server], and a section "
            "[cluster] without a list of machines"
        )
    if most is not None and not resource:
        raise click.UsageError("--most needs --resource: Ray's autoscaler counts machines by a custom resource")
    if most is not None and most < least:
        raise click.UsageError("--most must not be less than --least")
    token = os.environ.get("THAWD_JOIN_TOKEN", "")
    if join and not token:
        raise click.UsageError("--join needs a token in THAWD_JOIN_TOKEN; `thawd cluster token` makes one")
    options = Options(
        folder=folder,
        config=settings.path.name,
        data=data,
        resource=resource,
        scales=most is not None,
        least=least,
        most=most or 1,
        idle_s=idle_minutes * 60,
    )
    launch = launching.Launch(
        address=address,
        project=settings.path.parent,
        options=options,
        needs_token=not no_ray_token,
        join=(join, token) if join else None,
        patience_s=wait_s,
    )
    found = launching.up(launch, say=_say)
    _show(found)
    if not launching.all_serve(found):
        fail("not all machines serve yet; `thawd cluster ray status` shows them")


@group.command(epilog=examples("thawd cluster ray status"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@address_option
def status(as_json: bool, address: str) -> None:
    """Show the nodes of Ray with the machines on them.

    The state of a machine is "waiting" (for credentials of the cluster), "starting", "serving", "failing", "stopping"
    or "stopped". `thawd cluster status` on a machine shows what the machines know about each other.
    """
    from thawd.ray_nodes import launching

    found = launching.status(address)
    if found is None:
        fail("thawd does not run on this Ray cluster; start it with `thawd cluster ray up`")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _show(found)


@group.command(epilog=examples("thawd cluster ray down"))
@click.option(
    "--wait-s",
    type=Finite(0, 86_400),
    default=120.0,
    show_default=True,
    help="How long to wait until all machines have stopped, seconds.",
)
@address_option
def down(wait_s: float, address: str) -> None:
    """Stop thawd on all nodes. Each finishes what it runs, for server.grace_s seconds at most.

    Data folders remain on the nodes, and the state of the cluster in its database. Ray continues to run.
    """
    from thawd.ray_nodes import launching

    left = launching.down(address, say=_say, patience_s=wait_s)
    if left is not None:
        _show(left)
        fail("not all machines have stopped yet; they will, and this command can be run again")
    click.echo("thawd runs on no node of this Ray cluster")


def _say(found: Status) -> None:
    from thawd.ray_nodes import launching

    problem = f"; {found.problem}" if found.problem else ""
    click.echo(f"{launching.serving(found)} of {len(found.nodes)} machines serve{problem}", err=True)


def _show(found: Status) -> None:
    if found.nodes:
        print_text([_row(node) for node in found.nodes], key_name="node")
    if found.wanted is not None and not found.is_ending:
        click.echo(f"the load needs {found.wanted:,} machines")
    if found.problem:
        click.echo(f"the supervisor: {found.problem}")


def _row(node: NodeStatus) -> dict[str, str]:
    report = node.report
    return {
        "node": node.node[:12],
        "address": node.address,
        "state": "no agent" if report is None else report.state,
        "machine": "" if report is None else report.machine,
        "url": "" if report is None else report.url,
        "why": node.why if report is None else report.why,
    }
