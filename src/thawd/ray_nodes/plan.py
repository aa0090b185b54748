"""Which nodes get an agent, and which agents stop. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from thawd.ray_nodes.options import AgentReport


@dataclass(frozen=True, slots=True)
class Node:
    """A node of Ray that is alive.

    Attributes:
        id: its id.
        address: its IP address.
        is_head: whether it is the head node, which exists as long as the cluster of Ray.
        is_eligible: whether it may run thawd.
    """

    id: str
    address: str
    is_head: bool = False
    is_eligible: bool = True


@dataclass(slots=True)
class Plan:
    """What to do now.

    Attributes:
        start: nodes that get an agent.
        stop: nodes whose thawd hands over and stops. Their agents are removed afterwards.
        remove: nodes whose agents are removed now: the node is gone, or its thawd has stopped.
        make_cluster: node whose thawd makes the cluster; None: nobody does.
        admit: nodes whose thawd is to be let in by another machine.
    """

    start: list[str] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)
    make_cluster: str | None = None
    admit: list[str] = field(default_factory=list)


def plan(
    nodes: Iterable[Node],
    agents: Mapping[str, AgentReport | None],
    *,
    stopping: Set[str],
    wanted: int | None,
    loads: Mapping[str, int],
    generation: str,
) -> Plan:
    """Return what to do now.

    Args:
        nodes: the nodes that are alive.
        agents: the last report of each agent, by node; None: it has not answered since its last start.
        stopping: nodes whose agents were told to stop.
        wanted: number of machines; None: one on each node.
        loads: what each machine has to do, by its name; those without work stop first.
        generation: what agents are to run; those with another generation are replaced one after the other.
    """
    alive = {node.id: node for node in nodes}
    made = Plan()
    for name, report in agents.items():
        if name not in alive or (report is not None and report.state == "stopped"):
            made.remove.append(name)
    staying = [name for name in agents if name not in stopping and name not in made.remove]
    made.stop = [name for name in staying if not alive[name].is_eligible]
    kept = [name for name in staying if alive[name].is_eligible]
    free = sorted(
        (node for node in alive.values() if node.is_eligible and node.id not in agents),
        key=lambda node: (not node.is_head, node.id),
    )
    count = len(kept) + len(free) if wanted is None else wanted
    made.start = [node.id for node in free[: max(0, count - len(kept))]]
    if (surplus := len(kept) - count) > 0:
        made.stop += _to_stop(kept, alive, agents, loads)[:surplus]
    elif not stopping and not made.start and not made.stop:
        made.stop += _outdated(kept, agents, generation)
    _admit(made, [name for name in kept if name not in made.stop], alive, agents)
    return made


def _to_stop(
    kept: list[str], alive: Mapping[str, Node], agents: Mapping[str, AgentReport | None], loads: Mapping[str, int]
) -> list[str]:
    """The agents in the order in which they stop: those that do not serve, then those with the least to do."""

    def rank(name: str) -> tuple[bool, bool, int, str]:
        report = agents[name]
        serves = report is not None and report.state == "serving"
        return alive[name].is_head, serves, loads.get(report.machine, 0) if report is not None else 0, name

    return sorted(kept, key=rank)


def _outdated(kept: list[str], agents: Mapping[str, AgentReport | None], generation: str) -> list[str]:
    """The next agent to replace, if all others serve; one that does not serve is replaced first."""
    reports = {name: agents[name] for name in kept}
    outdated = [name for name, each in reports.items() if each is not None and each.generation != generation]
    idle = [name for name in outdated if (each := reports[name]) is not None and each.state != "serving"]
    all_serve = all(each is not None and each.state == "serving" for each in reports.values())
    return idle[:1] or (outdated[:1] if all_serve else [])


def _admit(made: Plan, kept: list[str], alive: Mapping[str, Node], agents: Mapping[str, AgentReport | None]) -> None:
    reports = {name: report for name in kept if (report := agents[name]) is not None}
    made.admit = [name for name, report in reports.items() if report.state == "waiting"]
    all_wait = len(reports) == len(agents) and len(made.admit) == len(reports)
    if made.admit and all_wait and not made.start:
        # Nobody has credentials, so one machine makes the cluster: that of the head node if it has one.
        made.make_cluster = min(made.admit, key=lambda name: (not alive[name].is_head, name))
