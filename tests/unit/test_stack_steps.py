"""The steps of operations on stacks: their events, their order, and what they leave alone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.unit.stack_engine import PLACE, Cloud, body, thing
from thawd.server.emulator.cloudformation.graph_order import walk, without_cycles


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


def steps(cloud: Cloud, name: str, logical_id: str) -> list[tuple[str, str | None]]:
    """The statuses of a resource with their reasons, the oldest first."""
    return [(event.status, event.reason) for event in cloud.stack(name).events if event.logical_id == logical_id]


def test_events_tell_each_step_of_a_resource_and_why_one_failed(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing(Value=1), B=thing("A", Fixed=1))) == "CREATE_COMPLETE"
    assert steps(cloud, "s", "A") == [("CREATE_IN_PROGRESS", None), ("CREATE_COMPLETE", None)]
    failing = body(A=thing(Value=2), B=thing("A", Fixed=2, Fail="no room"))
    assert cloud.update("s", failing) == "UPDATE_ROLLBACK_COMPLETE"
    changed = [("UPDATE_IN_PROGRESS", None), ("UPDATE_COMPLETE", None)]
    assert steps(cloud, "s", "A")[2:] == changed * 2  # forth and back
    replaced = [status for status, _ in steps(cloud, "s", "B")[2:]]
    assert replaced == ["UPDATE_IN_PROGRESS", "UPDATE_FAILED", "UPDATE_COMPLETE"]
    assert "creation of a new physical resource" in str(steps(cloud, "s", "B")[2][1])
    assert steps(cloud, "s", "B")[3][1] == "no room"
    identifier = cloud.stack("s").id
    assert cloud.delete("s") == "DELETE_COMPLETE"
    assert steps(cloud, identifier, "A")[-2:] == [("DELETE_IN_PROGRESS", None), ("DELETE_COMPLETE", None)]


def test_a_change_that_fails_says_why_and_is_taken_back(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing(Value=1))) == "CREATE_COMPLETE"
    assert cloud.update("s", body(A=thing(Value=2, Fail="no"))) == "UPDATE_ROLLBACK_COMPLETE"
    assert ("UPDATE_FAILED", "no") in steps(cloud, "s", "A")
    assert cloud.named() == {"A": 1}


def test_a_rollback_leaves_alone_what_the_update_has_not_touched(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing(Value=1), B=thing(Value=1))) == "CREATE_COMPLETE"
    cloud.calls.clear()
    assert cloud.update("s", body(A=thing(Value=1), B=thing(Value=1), Bad=thing(Fail="no"))) == (
        "UPDATE_ROLLBACK_COMPLETE"
    )
    assert cloud.calls == ["make Bad"]


def test_a_stack_deletes_each_resource_once_after_those_that_need_it(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing(), B=thing("A"), C=thing("B"))) == "CREATE_COMPLETE"
    cloud.calls.clear()
    assert cloud.delete("s") == "DELETE_COMPLETE"
    assert cloud.calls == ["delete C", "delete B", "delete A"]


def test_a_resource_that_cannot_be_deleted_keeps_what_it_needs_and_the_deletion_can_be_repeated(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing(), B=thing("A", Stays=True), C=thing())) == "CREATE_COMPLETE"
    assert cloud.delete("s") == "DELETE_FAILED"
    assert ("DELETE_FAILED", "it stays") in steps(cloud, "s", "B")
    assert set(cloud.named()) == {"A", "B"}
    assert cloud.delete("s", RetainResources=["B"]) == "DELETE_COMPLETE"
    assert set(cloud.named()) == {"B"}


def test_a_resource_is_retained_except_on_creation(cloud: Cloud) -> None:
    policy = {"DeletionPolicy": "RetainExceptOnCreate"}
    assert cloud.create("s", body(A={**thing(), **policy})) == "CREATE_COMPLETE"
    failing = body(A={**thing(), **policy}, B={**thing(), **policy}, Bad=thing("B", Fail="no"))
    assert cloud.update("s", failing) == "UPDATE_ROLLBACK_COMPLETE"
    assert set(cloud.named()) == {"A"}
    assert cloud.delete("s") == "DELETE_COMPLETE"
    assert set(cloud.named()) == {"A"}


def test_a_named_resource_is_neither_taken_from_others_nor_replaced_under_its_name(cloud: Cloud) -> None:
    assert cloud.create("owner", body(A=thing(Name="mine", Fixed=1))) == "CREATE_COMPLETE"
    assert cloud.create("other", body(A=thing(Name="mine"))) == "ROLLBACK_COMPLETE"
    assert "already exists" in str(steps(cloud, "other", "A"))
    assert cloud.update("owner", body(A=thing(Name="mine", Fixed=2))) == "UPDATE_ROLLBACK_COMPLETE"
    assert "Rename mine" in str(steps(cloud, "owner", "A"))
    assert cloud.things["mine"]["Fixed"] == 1


def test_the_records_of_a_deleted_stack_stay_for_those_who_ask_by_its_id(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing())) == "CREATE_COMPLETE"
    identifier = cloud.stack("s").id
    assert cloud.delete("s") == "DELETE_COMPLETE"
    cloud.restart()
    [resource] = cloud.stacks.describe_stack_resources(PLACE, {"StackName": identifier})["StackResources"]
    assert resource["ResourceStatus"] == "DELETE_COMPLETE"


def test_edges_that_close_a_cycle_are_left_out_and_others_stay() -> None:
    assert without_cycles({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": []}) == {
        "a": {"b"},
        "b": {"c"},
        "c": {"d"},
        "d": set(),
    }
    assert without_cycles({"a": ["a", "b"], "b": ["outside"]}) == {"a": {"b"}, "b": {"outside"}}


def test_a_failure_keeps_work_back_that_does_not_need_it_unless_it_goes_on() -> None:
    def work(node: str) -> None:
        done.append(node)
        if node == "bad":
            raise ValueError(node)

    done: list[str] = []
    needs: dict[str, list[str]] = {"bad": [], "good": ["first"], "first": ["bad"], "other": []}
    walk({"bad": [], "late": ["other"], "other": ["bad"]}, work, stop=threading.Event())
    assert done == ["bad"]
    done.clear()
    walk(needs, work, stop=threading.Event(), goes_on=True)
    assert sorted(done) == ["bad", "other"]
