"""Asks the machines of a cluster, through the server on this machine, and names those that do not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from thawd.cli.client import (
    NoAnswerError,
    attempt,
    fetch,
    is_named,
    may_answer,
    message_of,
    parse_answer,
    refusal,
)
from thawd.cli.exits import fail, warn
from thawd.cli.output import age
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.config import Settings

_PATH = "/_thawd/machines"
_TIMEOUT_S = 30.0
_ORDER_TIMEOUT_S = 90.0
_NO_CLUSTER = "--machine chooses one machine of a cluster, and this server belongs to none"

machine_option = click.option(
    "--machine",
    metavar="NAME",
    help="Show one machine of the cluster. Without this option, all machines are shown.",
)


class Cluster(NamedTuple):
    """The machines of a cluster, or one of them.

    Attributes:
        settings: address and credentials of the server.
        own: name of the server's machine.
        only: the only machine that is asked; None: all are.
        machines: the machines that are asked, as the server sees them.
    """

    settings: Settings
    own: str
    only: str | None
    machines: list[dict[str, Any]]

    def ask(self, question: str, arguments: dict[str, str] | None = None, *, only: str | None = None) -> Answers:
        """Ask the machines, or only the machine `only`. If the server itself cannot answer, the command ends."""
        try:
            return self.attempt(question, arguments, only=only)
        except NoAnswerError as error:
            fail(str(error))

    def attempt(self, question: str, arguments: dict[str, str] | None = None, *, only: str | None = None) -> Answers:
        """Ask the machines, or only the machine `only`.

        Raises:
            NoAnswerError: the server itself cannot answer.
        """
        from urllib.parse import urlencode

        only = only or self.only
        query = {"ask": question, **({} if only is None else {"only": only}), **(arguments or {})}
        status, _, body = attempt(self.settings, f"{_PATH}?{urlencode(query)}", None, {}, timeout_s=_TIMEOUT_S)
        if status != 200:
            raise NoAnswerError(f"HTTP {status}: {refusal(self.settings, status, message_of(body))}")
        document = parse_answer(body)
        return Answers(dict(sorted(document["answers"].items())), document["away"])

    def order(self, machine: str, path: str, body: bytes) -> dict[str, Any] | str:
        """Have a machine change something. Returns the document of its answer, or why there is none."""
        from urllib.parse import quote

        address = f"{path}?machine={quote(machine)}"
        headers = {"Content-Type": "application/json"}
        try:
            status, _, answer = attempt(self.settings, address, body, headers, timeout_s=_ORDER_TIMEOUT_S)
        except NoAnswerError as error:
            return f"{error}; it is unknown whether anything was changed"
        if status != 200:
            return refusal(self.settings, status, message_of(answer))
        document: dict[str, Any] = parse_answer(answer)
        return document


class Answers(NamedTuple):
    """The answers to a question.

    Attributes:
        documents: the answer of each machine, by its name, in the order of the names.
        away: why other machines have not answered.
    """

    documents: dict[str, Any]
    away: dict[str, str]

    def warn_away(self) -> None:
        """Name the machines that have not answered, on standard error."""
        for name, why in self.away.items():
            warn(f"nothing is shown of the machine {name}: {why}")


def cluster_of(settings: Settings, machine: str | None, *, or_alone: bool = False) -> Cluster | None:
    """Return the cluster of the running server; None: it belongs to none, or no server runs.

    If `machine` names a machine and there is no such one, the command ends.

    Args:
        settings: address and credentials of the server.
        machine: name of the only machine to ask; None: all.
        or_alone: whether None is returned, too, if a server runs and does not answer. If not, the command ends.
    """
    if settings.cluster is None and not is_named():
        if machine is not None:
            fail(_NO_CLUSTER)
        return None
    if not may_answer(settings):
        if machine is not None:
            fail(f"no server runs here, and --machine asks through it; start it with `thawd up -c {settings.path}`")
        warn("no server runs here, so only this machine is shown")
        return None
    try:
        status, _, body = attempt(settings, _PATH, None, {}, timeout_s=_TIMEOUT_S)
    except NoAnswerError as error:
        if machine is not None or not or_alone:
            fail(str(error))
        warn(f"only this machine is shown: {error}")
        return None
    if status == 404:
        if machine is not None:
            fail(_NO_CLUSTER)
        return None
    document = parse_answer(body) if status == 200 else fetch(settings, _PATH)  # the latter says what is wrong
    machines = sorted(document["machines"], key=lambda each: str(each["name"]))
    names = [each["name"] for each in machines]
    if machine is not None and machine not in names:
        fail(f"there is no machine {machine!r} in the cluster; {did_you_mean(machine, names, what='machines')}")
    wanted = [each for each in machines if machine in (None, each["name"])]
    return Cluster(settings, document["machine"], machine, wanted)


def machine_row(machine: dict[str, Any], own: str) -> dict[str, Any]:
    """Return the row of a machine in a table of machines."""
    name, report = machine["name"], machine["report"]
    state = machine["state"]
    state += ", leads" if report is not None and report.get("leads") else ""
    state += f": {machine['why']}" if machine["why"] else ""
    row = {"machine": name + (" (this one)" if name == own else ""), "state": state}
    if report is None:
        return row
    kinds = report.get("environments", {})
    cores = report.get("cores", 0)
    oldest = report.get("oldest_age_s")
    return {
        **row,
        "thawd": report.get("version", ""),
        "cores": f"{report.get('cores_used', 0):.1f} of {cores:g}" if cores else "",
        "memory, MiB": f"{report.get('memory_used_mb', 0):,} of {report.get('memory_mb', 0):,}",
        "environments": ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
        "waiting": f"{report.get('waiting', 0):,}",
        "queued": f"{report.get('queued', 0):,}",
        "oldest": "" if oldest is None else age(oldest),
        "dead": f"{report.get('dead', 0):,}",
        f"errors in {report.get('minutes', 15)} min": _shown(report.get("errors")),
        "refused": _shown(report.get("refused")),
    }


def _shown(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
