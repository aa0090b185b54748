"""The table of a cluster's machines on the first page. What other machines say about themselves is not trusted."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from thawd.cluster.overview import MachineReport, SeenMachine, State
from thawd.window.layout import counted, milliseconds, table
from thawd.window.markup import Content, Html, el

_BAD = (State.CUT_OFF, State.SILENT, State.GONE)
_ANYWHERE = ("0.0.0.0", "::")
_NOTHING = "-"
_STARTED = {"thaw": "thawed", "fork": "forked"}


def section(machines: Sequence[SeenMachine]) -> Html:
    """Return the heading and the table."""
    reports = [machine.report for machine in machines if machine.report is not None]
    minutes = max((report.minutes for report in reports), default=15)
    heads = [
        "machine", "state", "thawd", "cores used", "memory, MiB", "environments",
        "#waits", "#queued", "#oldest", "#dead", "#errors", "#refused",
    ]  # fmt: skip
    caption = (
        "Machines of the cluster: memory is the sum of the limits of environments; errors and refused requests are "
        f"those of {minutes} minutes"
    )
    versions = {report.version for report in reports}
    missing = len(machines) - len(reports)
    return el(
        "section",
        el("h2", "Machines"),
        table(caption, heads, map(_row, machines), empty="This machine knows no machine."),
        el("p", f"{counted(missing, 'machine')} did not answer in time.", class_="bad") if missing else None,
        el("p", "The machines have different versions of thawd, so they forward no requests to each other.",
           class_="note") if len(versions) > 1 else None,
    )  # fmt: skip


def dead_elsewhere(machines: Sequence[SeenMachine]) -> Html | None:
    """Return a line with the number of dead letters of each other machine; None: there is no other machine."""
    shown: list[Content] = []
    for machine in machines:
        if machine.is_own:
            continue
        page = page_of(machine.report, machine.address)
        name = machine.name if page is None else el("a", machine.name, href=f"{page}window/queue")
        count = "no answer" if machine.report is None else f"{machine.report.dead:,}"
        shown += ["; " if shown else "", name, f" {count}"]
    if not shown:
        return None
    return el("p", "The table has those of this machine. Dead letters of the others: ", *shown, ".", class_="note")


def fingerprint(machines: Sequence[SeenMachine]) -> str:
    """Return a short text that differs when the table differs."""
    return hashlib.blake2b(section(machines).encode(errors="replace"), digest_size=8).hexdigest()


def _row(machine: SeenMachine) -> list[Content]:
    report = machine.report
    state = el(
        "span",
        el("b", machine.state) if machine.state in _BAD else machine.state,
        ", leads" if report is not None and report.leads else "",
        f": {machine.why}" if machine.why else "",
        class_="bad" if machine.state in _BAD else None,
    )
    if report is None:
        return [_name(machine), state, *[_NOTHING] * 10]
    return [
        _name(machine),
        state,
        report.version or _NOTHING,
        f"{report.cores_used:.1f} of {report.cores:g}" if report.cores else _NOTHING,
        f"{report.memory_used_mb:,} of {report.memory_mb:,}",
        _environments(report),
        f"{report.waiting:,}",
        f"{report.queued:,}",
        _NOTHING if report.oldest_age_s is None else milliseconds(report.oldest_age_s * 1000),
        f"{report.dead:,}",
        _NOTHING if report.errors is None else f"{report.errors:,}",
        _NOTHING if report.refused is None else f"{report.refused:,}",
    ]


def _environments(report: MachineReport) -> str:
    """The environments by start kind, then how many of them run something."""
    kinds = [f"{count:,} {_STARTED.get(kind, kind)}" for kind, count in sorted(report.environments.items())]
    if report.starting:
        kinds.append(f"{report.starting:,} starting")
    return f"{', '.join(kinds)}; {report.busy:,} busy" if kinds else "none"


def _name(machine: SeenMachine) -> list[Content]:
    page = "/_thawd/" if machine.is_own else page_of(machine.report, machine.address)
    name: Content = machine.name if page is None else el("a", machine.name, href=page)
    return [name, " (this machine)" if machine.is_own else ""]


def page_of(report: MachineReport | None, address: str) -> str | None:
    """Return the address of the first page of another machine; None: other machines cannot reach its pages.

    Args:
        report: what the machine says about itself.
        address: host and port at which it accepts connections of other machines.
    """
    if report is None:
        return None
    try:
        parts = urlsplit(report.url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host or not port:
        return None
    reached = address.rpartition(":")[0].strip("[]")
    if host in _ANYWHERE:
        host = reached
    elif _is_loopback(host) and not _is_loopback(reached):
        return None
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}/_thawd/"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
