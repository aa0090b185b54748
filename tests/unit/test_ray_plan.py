"""Which nodes of Ray get an agent, and which agents stop."""

from __future__ import annotations

from thawd.ray_nodes.options import AgentReport, Options
from thawd.ray_nodes.plan import Node, Plan, plan

HEAD, B, C = Node("h", "10.0.0.1", is_head=True), Node("b", "10.0.0.2"), Node("c", "10.0.0.3")


def serving(machine: str, generation: str = "1") -> AgentReport:
    return AgentReport(state="serving", machine=machine, generation=generation)


WAITING = AgentReport(state="waiting", generation="1")


def planned(
    nodes: list[Node],
    agents: dict[str, AgentReport | None],
    *,
    stopping: frozenset[str] = frozenset(),
    wanted: int | None = None,
    loads: dict[str, int] | None = None,
) -> Plan:
    return plan(nodes, agents, stopping=stopping, wanted=wanted, loads=loads or {}, generation="1")


def test_each_node_gets_an_agent_and_agents_of_nodes_that_are_gone_are_removed() -> None:
    made = planned([HEAD, B], {"b": serving("b"), "c": serving("c")})
    assert (made.start, made.remove, made.stop) == (["h"], ["c"], [])


def test_nodes_without_the_resource_get_none_and_lose_theirs() -> None:
    made = planned([HEAD, Node("b", "10.0.0.2", is_eligible=False)], {"b": serving("b")})
    assert (made.start, made.stop) == (["h"], ["b"])


def test_with_a_number_the_head_node_is_first_and_last() -> None:
    assert planned([B, C, HEAD], {}, wanted=2).start == ["h", "b"]
    everybody = {"h": serving("h"), "b": serving("b"), "c": serving("c")}
    assert planned([HEAD, B, C], everybody, wanted=2, loads={"b": 5, "c": 2}).stop == ["c"]
    assert planned([HEAD, B, C], everybody, wanted=2, loads={"b": 1, "c": 2}).stop == ["b"]
    # One that does not serve stops before one that does.
    assert planned([HEAD, B, C], everybody | {"b": None}, wanted=2, loads={"b": 9}).stop == ["b"]


def test_an_agent_is_removed_after_its_thawd_has_stopped() -> None:
    agents = {"h": serving("h"), "b": AgentReport(state="stopping"), "c": AgentReport(state="stopped")}
    made = planned([HEAD, B, C], agents, stopping=frozenset("bc"), wanted=1)
    assert (made.remove, made.stop, made.start) == (["c"], [], [])
    # Also if a supervisor before this one told it to stop.
    assert planned([HEAD, B], {"h": serving("h"), "b": AgentReport(state="stopped")}).remove == ["b"]


def test_a_node_whose_thawd_stops_gets_no_second_one() -> None:
    made = planned([HEAD, B], {"h": serving("h"), "b": AgentReport(state="stopping")}, stopping=frozenset("b"))
    assert made.start == []


def test_outdated_agents_are_replaced_one_after_the_other_while_all_others_serve() -> None:
    old = {"h": serving("h", "0"), "b": serving("b", "0")}
    assert planned([HEAD, B], old).stop == ["h"]
    assert planned([HEAD, B], old, stopping=frozenset("h")).stop == []
    assert planned([HEAD, B], {"b": old["b"]}).stop == []  # the new one on h comes first
    starting = AgentReport(state="starting", generation="1")
    assert planned([HEAD, B], {"h": starting, "b": old["b"]}).stop == []
    assert planned([HEAD, B], {"h": serving("h"), "b": old["b"]}).stop == ["b"]
    # One that fails with old files is replaced first: perhaps the new files mend it.
    assert planned([HEAD, B], {"h": old["h"], "b": AgentReport(state="failing", generation="0")}).stop == ["b"]


def test_one_machine_makes_the_cluster_only_if_nobody_has_credentials() -> None:
    assert planned([B, HEAD], {"h": WAITING, "b": WAITING}).make_cluster == "h"
    assert planned([B, HEAD], {"h": WAITING, "b": None}).make_cluster is None
    made = planned([B, HEAD], {"h": AgentReport(state="failing", generation="1"), "b": WAITING})
    assert (made.make_cluster, made.admit) == (None, ["b"])
    assert planned([B, HEAD, C], {"h": WAITING, "b": WAITING}).make_cluster is None  # c gets its agent now


def test_what_concerns_only_the_supervisor_replaces_no_agent() -> None:
    assert Options().generation == Options(least=2, most=5, scales=True, idle_s=1).generation
    assert Options().generation != Options(package="gcs://other.zip").generation
