"""Dead letters of all machines of a cluster, for the commands ``thawd dead …``.

An id is a number on its machine, and other machines have other dead letters with the same number. When a machine dies,
others take its dead letters over, with new numbers there. So a change needs the machine's name with each id: a number
alone could hit another dead letter than the one that was meant.
"""

from __future__ import annotations

import heapq
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import click

from thawd.cli.exits import EXIT_FAILED, fail, warn
from thawd.cli.machines import Cluster

_PATH = "/_thawd/dead"


class Id(NamedTuple):
    """The id of a dead letter or of a removal.

    Attributes:
        machine: its machine; None: it is not named.
        number: its number there.
    """

    machine: str | None
    number: int

    def __str__(self) -> str:
        return str(self.number) if self.machine is None else f"{self.machine}/{self.number}"


class Chosen(NamedTuple):
    """Which dead letters a command is for, unless ids name them.

    Attributes:
        function: those of this function.
        everything: all.
        machine: only those of this machine.
    """

    function: str | None
    everything: bool
    machine: str | None


def pages_of(cluster: Cluster, function: str | None, limit: int | None) -> Iterator[list[dict[str, Any]]]:
    """Yield the dead letters of the machines in the order in which their events were accepted, in pages."""
    from thawd.queue.operator_view import MAX_PAGE

    names = [each["name"] for each in cluster.machines]
    away: dict[str, str] = {}
    found = heapq.merge(
        *(_letters(cluster, name, function, away) for name in names), key=lambda letter: str(letter["accepted_at"])
    )
    left = itertools.islice(found, limit)
    while page := list(itertools.islice(left, MAX_PAGE)):
        yield page
    for name, why in away.items():
        warn(f"nothing is shown of the machine {name}: {why}")


def _letters(cluster: Cluster, machine: str, function: str | None, away: dict[str, str]) -> Iterator[dict[str, Any]]:
    after: int | None = 0
    while after is not None:
        arguments = {f"after.{machine}": str(after)} | ({} if function is None else {"function": function})
        answers = cluster.ask("dead", arguments, only=machine)
        if machine not in answers.documents:
            away[machine] = answers.away.get(machine, "it has not answered")
            return
        document = answers.documents[machine]
        for letter in document["dead_letters"]:
            yield {"machine": machine, **letter}
        after = document["next"]


def shown(cluster: Cluster, which: Id) -> dict[str, Any]:
    """Return a dead letter with its payload. If several machines have one with this number, the command ends."""
    answers = cluster.ask("dead_letter", {"id": str(which.number)})
    if len(answers.documents) > 1:
        fail(
            f"several machines have a dead letter {which.number}: {_named(answers.documents, which.number)}; choose one"
        )
    if not answers.documents:
        reasons = "; ".join(f"{name}: {why}" for name, why in answers.away.items())
        fail(f"there is no dead letter {which} ({reasons})")
    [(machine, document)] = answers.documents.items()
    return {"machine": machine, **document}


def changed(
    cluster: Cluster, verb: str, ids: Sequence[Id], chosen: Chosen
) -> list[tuple[str | None, dict[str, Any] | str]]:
    """Change dead letters on their machines.

    Returns:
        For each machine the document of its answer, or why there is none.
    """
    names = [each["name"] for each in cluster.machines]
    if not ids:
        body = json.dumps({"all": True} if chosen.everything else {"function": chosen.function}).encode()
        return [(name, cluster.order(name, f"{_PATH}/{verb}", body)) for name in names]
    numbers: dict[str, list[int]] = {}
    for each in ids:
        numbers.setdefault(_machine_of(cluster, names, each, chosen.machine), []).append(each.number)
    bodies = {name: json.dumps({"ids": of_machine}).encode() for name, of_machine in numbers.items()}
    return [(name, cluster.order(name, f"{_PATH}/{verb}", body)) for name, body in bodies.items()]


def undone(cluster: Cluster, removal: Id | None) -> list[tuple[str | None, dict[str, Any] | str]]:
    """Undo a removal; None: the last one of the only machine that has removals. If several have, the command ends."""
    names = [each["name"] for each in cluster.machines]
    if removal is None:
        answers = cluster.ask("removals")
        answers.warn_away()
        last = {name: each["removals"][0]["id"] for name, each in answers.documents.items() if each["removals"]}
        if not last:
            fail("there is no removal that can be undone; that is possible for ten minutes")
        if len(last) > 1:
            fail(f"several machines have removed dead letters; name one: {_named_each(last)}")
        [(machine, number)] = last.items()
    else:
        machine, number = _machine_of(cluster, names, removal, cluster.only), removal.number
    answer = cluster.order(machine, f"{_PATH}/undo", json.dumps({"removal": number}).encode())
    return [(machine, answer if isinstance(answer, str) else {**answer, "unknown": []})]


def _machine_of(cluster: Cluster, names: Sequence[str], which: Id, only: str | None) -> str:
    if which.machine is not None and only is not None and which.machine != only:
        fail(f"{which} is not of the machine {only}, which --machine chooses")
    machine = which.machine or only or (names[0] if len(names) == 1 else None)
    if machine is None:
        fail(
            f"{which.number} may be an id on each machine; name the machine with it, such as {names[0]}/{which.number}"
        )
    if machine not in names:
        fail(f"there is no machine {machine} in the cluster; there are {', '.join(names)}")
    return machine


def _named(machines: Any, number: int) -> str:
    return ", ".join(f"{name}/{number}" for name in machines)


def _named_each(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name}/{number}" for name, number in numbers.items())


def report(answers: Sequence[tuple[str | None, dict[str, Any] | str]], what: str) -> None:
    """Print what was changed. If something could not be changed, the command ends with status 1.

    Args:
        answers: for each machine the document of its answer, or why there is none; the name is None without a cluster.
        what: what was done with the dead letters.
    """
    documents = [(machine, each) for machine, each in answers if not isinstance(each, str)]
    count = sum(document["count"] for _, document in documents)
    click.echo(f"{count:,} dead letter{'' if count == 1 else 's'} {what}")
    is_wrong = False
    for machine, document in documents:
        if removal := document.get("undo"):
            until = datetime.fromisoformat(removal["until"]).astimezone()
            them = "it" if removal["count"] == 1 else "them"
            click.echo(f"`thawd dead undo {Id(machine, removal['id'])}` restores {them} until {until:%H:%M}", err=True)
        elif what == "removed" and document["count"]:
            click.echo("they were too many or too large to be kept, so this cannot be undone", err=True)
        for number in document["unknown"]:
            warn(f"there is no dead letter {Id(machine, number)}")
            is_wrong = True
    for machine, why in answers:
        if isinstance(why, str):
            warn(f"nothing was done on the machine {machine}, as far as is known: {why}")
            is_wrong = True
    if is_wrong:
        sys.exit(EXIT_FAILED)
