"""The supervisor: a detached actor of Ray, which keeps an agent on each node.

It holds nothing that cannot be found again: after a restart it finds the agents by their names. Only Ray decides which
nodes exist, and only thawd's leases in PostgreSQL decide which machines belong to the cluster; the supervisor reads
both. If it is down, all machines go on serving.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from thawd import __version__
from thawd.ray_nodes.agent import Agent
from thawd.ray_nodes.leader_view import LeaderView
from thawd.ray_nodes.options import AGENT, NAMESPACE, AgentReport, Options
from thawd.ray_nodes.plan import Node, Plan, plan
from thawd.ray_nodes.ray_library import import_ray, is_head
from thawd.system.retry import Backoff

TICK_S = 1.0
_ANSWER_S = 1.0
_FIRST_S = 2.0
_LONGEST_S = 60.0


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node of Ray as the supervisor knows it.

    Attributes:
        node: its id.
        address: its IP address.
        has_agent: whether it has an agent.
        report: what its agent has said last; None: it has said nothing since Ray has started it.
        stopping: whether its thawd is to stop.
        why: why it has no agent; empty: it has one, or gets one.
    """

    node: str
    address: str
    has_agent: bool = False
    report: AgentReport | None = None
    stopping: bool = False
    why: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor knows.

    Attributes:
        version: version of thawd.
        options: what it was asked for.
        is_ending: whether all agents are to stop.
        wanted: number of machines that the load needs; None: one on each node.
        nodes: the nodes that run thawd, or will.
        problem: why it cannot do its work; empty: it can.
    """

    version: str
    options: Options
    is_ending: bool
    wanted: int | None
    nodes: list[NodeStatus]
    problem: str = ""


@dataclass(slots=True)
class _Known:
    """An agent: its handle, its last report, and the call that has not been answered yet."""

    handle: Any
    report: AgentReport | None = None
    call: Any = None
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=_FIRST_S, longest_s=_LONGEST_S))


class Supervisor:
    """The supervisor. Its thread begins with it, also after Ray has restarted it.

    Args:
        options: JSON document of `Options`.
    """

    def __init__(self, options: bytes) -> None:
        self._options = msgspec.json.decode(options, type=Options)
        self._ray = import_ray()
        self._lock = threading.Lock()
        self._nodes: list[Node] = []
        self._agents: dict[str, _Known] = {}
        self._stopping: set[str] = set()
        self._failed: dict[str, tuple[Backoff, float, str]] = {}
        self._is_ending = False
        self._problem = ""
        self._first: tuple[str, str] | None = None
        self._find_agents()
        self._view = LeaderView(self._ray, self._options, machines=len(self._agents)) if self._options.scales else None
        threading.Thread(target=self._run, name="thawd supervisor", daemon=True).start()

    def status(self) -> bytes:
        """Return the JSON document of a `Status`."""
        with self._lock:
            nodes = [self._node_status(node) for node in self._nodes if node.is_eligible or node.id in self._agents]
            status = Status(
                version=__version__,
                options=self._options,
                is_ending=self._is_ending,
                wanted=self._wanted(),
                nodes=nodes,
                problem=self._problem,
            )
        return msgspec.json.encode(status)

    def pid(self) -> int:
        """Return its process id."""
        return os.getpid()

    def join(self, address: str, token: str) -> None:
        """Let the first machine join a cluster whose machines are outside of Ray. Neither is stored.

        Args:
            address: host and port of one of its machines.
            token: a token of the cluster.
        """
        self._first = (address, token)

    def end(self) -> None:
        """Stop all machines, and remove their agents. Returns immediately; `status` says when none is left."""
        self._is_ending = True

    def _node_status(self, node: Node) -> NodeStatus:
        known = self._agents.get(node.id)
        why = self._failed[node.id][2] if known is None and node.id in self._failed else ""
        report = None if known is None else known.report
        return NodeStatus(
            node=node.id,
            address=node.address,
            has_agent=known is not None,
            report=report,
            stopping=node.id in self._stopping,
            why=why,
        )

    def _wanted(self) -> int | None:
        if self._is_ending:
            return 0
        return None if self._view is None else self._view.wanted

    def _find_agents(self) -> None:
        """Find the agents of a supervisor before this one."""
        for actor in self._ray.util.list_named_actors(all_namespaces=True):
            name = str(actor["name"])
            if actor["namespace"] == NAMESPACE and name.startswith(AGENT):
                with contextlib.suppress(ValueError):  # it has ended a moment ago
                    self._agents[name.removeprefix(AGENT)] = _Known(self._ray.get_actor(name, namespace=NAMESPACE))

    def _run(self) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                self._tick()
                self._problem = ""
            except Exception as error:
                self._problem = f"{type(error).__name__}: {error}"
            time.sleep(max(0.0, begun_s + TICK_S - time.monotonic()))

    def _tick(self) -> None:
        resource = self._options.resource
        nodes = [
            Node(
                node["NodeID"],
                node["NodeManagerAddress"],
                is_head=is_head(node),
                is_eligible=not resource or node["Resources"].get(resource, 0) >= 1,
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        self._hear()
        with self._lock:
            self._nodes = nodes
            reports = {name: known.report for name, known in self._agents.items()}
        if self._view is not None:
            self._scale(self._view)
        made = plan(
            nodes,
            reports,
            stopping=self._stopping,
            wanted=self._wanted(),
            loads={} if self._view is None else self._view.loads,
            generation=self._options.generation,
        )
        self._follow(made, {node.id: node for node in nodes})

    def _scale(self, view: LeaderView) -> None:
        if self._is_ending:
            view.stop_asking()
            return
        serving = {
            known.report.machine: (known.handle, known.report)
            for known in self._agents.values()
            if known.report is not None and known.report.state == "serving"
        }
        view.look(serving)
        view.tell(sum(known.report is not None and name not in self._stopping for name, known in self._agents.items()))

    def _hear(self) -> None:
        """Ask all agents, and use what they have answered."""
        for known in self._agents.values():
            known.call = known.call or known.handle.report.remote()
        calls = [known.call for known in self._agents.values()]
        if not calls:
            return
        answered, _ = self._ray.wait(calls, num_returns=len(calls), timeout=_ANSWER_S)
        gone = []
        for name, known in self._agents.items():
            if known.call not in answered:
                continue
            call, known.call = known.call, None
            try:
                known.report = msgspec.json.decode(self._ray.get(call), type=AgentReport)
                self._failed.pop(name, None)
            except (self._ray.exceptions.ActorUnavailableError, msgspec.MsgspecError):
                known.report = None  # Ray restarts it, or it is of another version of thawd
            except self._ray.exceptions.RayError as error:
                gone.append((name, str(error).strip().splitlines()[0]))
        for name, why in gone:  # Ray does not restart it: it was removed, or cannot be started
            self._forget(name)
            backoff, _, _ = self._failed.get(name, (Backoff(first_s=_FIRST_S, longest_s=_LONGEST_S), 0.0, ""))
            now_s = time.monotonic()
            self._failed[name] = (backoff, now_s + backoff.failed(now_s), why)

    def _follow(self, made: Plan, nodes: dict[str, Node]) -> None:
        for name in made.remove:
            self._remove(name)
        now_s = time.monotonic()
        for name in made.start:
            if name not in self._failed or self._failed[name][1] <= now_s:
                self._start(nodes[name])
        for name in {*made.stop, *self._stopping}:
            self._stopping.add(name)
            known = self._agents.get(name)
            if known is not None and known.report is not None and known.report.state not in ("stopping", "stopped"):
                known.handle.stop.remote(not self._is_ending)
        for name in [name for name in self._failed if name not in nodes]:
            del self._failed[name]
        if made.admit:
            self._admit(made)

    def _start(self, node: Node) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = self._options
        # It takes no processor of Ray's: Ray's own work may use them all. With a resource, it takes one of it.
        actor = self._ray.remote(Agent).options(
            name=f"{AGENT}{node.id}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources={options.resource: 1} if options.resource else None,
            max_restarts=-1,
            max_concurrency=4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        handle = actor.remote(msgspec.json.encode(options), node.id, node.address)
        with self._lock:
            self._agents[node.id] = _Known(handle)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(self._agents[name].handle, no_restart=True)
        self._forget(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._agents.pop(name, None)
            self._stopping.discard(name)

    def _admit(self, made: Plan) -> None:
        """Let machines join the cluster: with the token of one that belongs to it."""
        invitation = self._invitation()
        if invitation is not None:
            for name in made.admit:
                self._agents[name].handle.admit.remote(*invitation)
        elif made.make_cluster is not None and self._first is not None:
            self._agents[made.make_cluster].handle.admit.remote(*self._first)
        elif made.make_cluster is not None:
            self._agents[made.make_cluster].handle.make_cluster.remote()

    def _invitation(self) -> tuple[str, str] | None:
        for known in self._agents.values():
            if known.report is not None and known.report.can_invite:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    found: tuple[str, str] | None = self._ray.get(known.handle.invite.remote(), timeout=10)
                    if found is not None:
                        return found
        return None
