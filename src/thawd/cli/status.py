"""The command ``thawd status``: show what the running server is doing."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import click

from thawd.cli.client import fetch
from thawd.cli.exits import fail
from thawd.cli.machines import Answers, Cluster, cluster_of, machine_option, machine_row
from thawd.cli.options import config_option, examples, load
from thawd.cli.output import print_text


@click.command(
    epilog=examples(
        "thawd status",
        "thawd status --json | jq .functions.classify.starts",
        "thawd status --memory                # what the environments take at present",
        "thawd status --machine b             # one machine of a cluster",
    )
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole status document as JSON.")
@click.option("--memory", is_flag=True, help="Measure the memory of the environments (PSS), which takes a moment.")
@machine_option
@config_option
def status(as_json: bool, memory: bool, machine: str | None, config_path: Path) -> None:
    """Show environments, starts and latencies by function.

    The figures come from the running server. If environments of a function could start faster, by a thaw or a fork, the
    output shows why they do not. With --memory, it shows how much memory the environments that are ready take at
    present, with their child processes. A page that several processes share is divided among them.

    In a cluster, the output is a table of all machines, and a table of functions with a row for each function on each
    machine; with --json, it is one object with the status documents of all machines. With --machine, it has the details
    of one machine.
    """
    settings = load(config_path)
    cluster = cluster_of(settings, machine)
    if cluster is not None and machine is None:
        _print_cluster(cluster, as_json=as_json, memory=memory)
        return
    if cluster is None:
        answered = fetch(settings, f"/_thawd/status{'?memory=1' if memory else ''}")
    else:
        answered = _of_one(cluster, str(machine), memory=memory)
    if as_json:
        click.echo(json.dumps(answered, indent=2))
    else:
        _print(answered)


def _ask(cluster: Cluster, *, memory: bool) -> Answers:
    return cluster.ask("status", {"memory": "1"} if memory else None)


def _of_one(cluster: Cluster, machine: str, *, memory: bool) -> dict[str, Any]:
    answers = _ask(cluster, memory=memory)
    if machine not in answers.documents:
        fail(f"the machine {machine} cannot be asked: {answers.away.get(machine)}")
    document: dict[str, Any] = answers.documents[machine]
    return document


def _print_cluster(cluster: Cluster, *, as_json: bool, memory: bool) -> None:
    """Print the machines, and the functions of each."""
    answers = _ask(cluster, memory=memory)
    if as_json:
        document = {"machines": cluster.machines, "status": answers.documents, "away": answers.away}
        click.echo(json.dumps(document, indent=2))
        return
    print_text([machine_row(each, cluster.own) for each in cluster.machines], key_name="machine")
    rows = [
        _function_row(name, machine, entry)
        for machine, document in sorted(answers.documents.items())
        for name, entry in document["functions"].items()
    ]
    if rows:
        click.echo()
        print_text(sorted(rows, key=lambda row: str(row["function"])), key_name="function")
    answers.warn_away()


def _function_row(name: str, machine: str, entry: dict[str, Any]) -> dict[str, Any]:
    environments = entry["environments"]
    latencies = entry["invocations"].values()
    return {
        "function": name,
        "machine": machine,
        "state": entry["state"],
        "start": entry["start"] or "",
        **{column: f"{environments[column]:,}" for column in ("busy", "idle", "starting")},
        **({"memory": _mib(entry["memory_bytes"])} if "memory_bytes" in entry else {}),
        "waiting": f"{entry['waiting']:,}",
        "queued": f"{entry['queued']:,}",
        "invocations": f"{sum(each['count'] for each in latencies):,}",
        **{column: f"{entry[column]:,}" for column in ("errors", "throttles", "dead")},
    }


def _print(document: dict[str, Any]) -> None:
    """Print the status document as text."""
    click.echo(
        f"{document['url']}  process {document['pid']}; at most {document['max_environments']} environments and "
        f"{document['memory_mb']} MB; memory limits by {document['memory_limit']}"
    )
    admission = document["admission"]
    if admission["mode"] == "cores":
        cores = f"{admission['cores']:g} core" + ("" if admission["cores"] == 1 else "s")
        click.echo(f"admission by cores: {admission['load']:.1f} of {cores} in use")
    for name, entry in document["functions"].items():
        environments = ", ".join(f"{count} {state}" for state, count in entry["environments"].items())
        memory = f" with {_mib(entry['memory_bytes'])}" if "memory_bytes" in entry else ""
        waiting = f"{entry['waiting']} waiting, {entry['queued']} queued"
        click.echo(f"\n{name}: {entry['state']}; {environments}{memory}; {waiting}")
        if entry["reason"]:
            click.echo(textwrap.indent(entry["reason"], "  "))
        if entry["start_reason"] and entry["start"]:
            click.echo(f"  starts by {entry['start']}: {_obstacles(entry)}")
        rows = [
            (f"{kind} {title}", d)
            for title, kinds in (("start", entry["starts"]), ("invoke", entry["invocations"]))
            for kind, d in kinds.items()
        ]
        if rows:
            click.echo(f"  {'':<12} {'count':>9} {'p50':>11} {'p99':>11} {'max':>11}")
        for title, d in rows:
            times = " ".join(f"{_duration(d[column]):>11}" for column in ("p50_ms", "p99_ms", "max_ms"))
            click.echo(f"  {title:<12} {d['count']:>9,} {times}")
        if (snapshot := entry["snapshot"]) and "id" in snapshot:
            click.echo(f"  snapshot {snapshot['id']}, {snapshot['stored_bytes'] / (1 << 20):,.1f} MiB")
            for dropped in snapshot.get("dropped", ()):
                click.echo(f"  ended in each thawed environment: {dropped}")
        counts = [_counted(entry[counter], *words) for counter, words in _COUNTED.items() if entry[counter]]
        if counts:
            click.echo(f"  {', '.join(counts)}")


def _obstacles(entry: dict[str, Any]) -> str:
    """Return the reasons why environments do not start faster, each with the kinds of start that it prevents."""
    prevented: dict[str, list[str]] = {}
    for obstacle in entry.get("start_reasons", ()):  # a server of an older release does not send this field
        prevented.setdefault(obstacle["reason"], []).append(f"not {_PARTICIPLES[obstacle['start']]}")
    texts = [f"{', '.join(starts)}: {reason}" for reason, starts in prevented.items()]
    return "; ".join(texts) or str(entry["start_reason"])


_PARTICIPLES = {"thaw": "thawed", "fork": "forked"}
_COUNTED = {
    "errors": ("error", "errors"),
    "timeouts": ("timeout", "timeouts"),
    "exits": ("exit", "exits"),
    "throttles": ("throttle", "throttles"),
    "init_failures": ("failed init", "failed inits"),
    "fallbacks": ("fallback to a slower start", "fallbacks to a slower start"),
    "destination_failures": ("failed delivery to a destination", "failed deliveries to a destination"),
    "dead_letter_errors": ("failed delivery to a dead-letter queue", "failed deliveries to a dead-letter queue"),
    "recursive_invocations_dropped": ("invocation dropped as a loop", "invocations dropped as loops"),
    "dead": ("dead letter", "dead letters"),
}


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


def _duration(value_ms: float) -> str:
    return f"{value_ms:.2f} ms" if value_ms < 1000 else f"{value_ms / 1000:.2f} s"
