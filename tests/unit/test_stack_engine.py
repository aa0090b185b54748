"""CloudFormation's engine: updates by difference, the ways back, nested stacks, and what a kill leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.stack_engine import PLACE, Cloud, StoppedError, body, child, thing
from thawd.server.emulator.cloudformation.errors import StackError

NO_ECHO = {"P": {"Type": "String", "NoEcho": True, "Default": "opensesame"}}


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


def events(cloud: Cloud, name: str) -> str:
    return json.dumps(cloud.stacks.describe_stack_events(PLACE, {"StackName": name}), default=str)


# The ways back


def test_a_nested_stack_keeps_what_it_no_longer_needs_until_its_parent_cannot_fail_any_more(cloud: Cloud) -> None:
    templates = cloud.world.templates
    templates["s3://b/child"] = body(Data=thing(Value=1), Replaced=thing(Fixed=1, Value=1), Kept=thing(Value=1))
    assert cloud.create("s", body(Child=child())) == "CREATE_COMPLETE"
    before = dict(cloud.things)
    templates["s3://b/other"] = body(Replaced=thing(Fixed=2, Value=2), Kept=thing(Value=2), New=thing())
    failing = body(Child=child("s3://b/other"), Bad=thing("Child", Fail="no"))
    assert cloud.update("s", failing) == "UPDATE_ROLLBACK_COMPLETE"
    assert cloud.things == before
    assert "delete Data" not in cloud.calls
    assert cloud.status(cloud.stack("s").resources["Child"].physical_id) == "UPDATE_ROLLBACK_COMPLETE"
    assert cloud.update("s", body(Child=child("s3://b/other"))) == "UPDATE_COMPLETE"
    assert cloud.named() == {"Replaced": 2, "Kept": 2, "New": None}
    assert cloud.status(cloud.stack("s").resources["Child"].physical_id) == "UPDATE_COMPLETE"


def test_a_stack_nested_in_a_nested_one_returns_with_them(cloud: Cloud) -> None:
    templates = cloud.world.templates
    templates["s3://b/inner"] = body(Data=thing(Value=1))
    templates["s3://b/child"] = body(Inner=child("s3://b/inner"))
    assert cloud.create("s", body(Child=child())) == "CREATE_COMPLETE"
    before = dict(cloud.things)
    templates["s3://b/inner"] = body(Other=thing(Value=2))
    assert cloud.update("s", body(Child=child(), Bad=thing("Child", Fail="no"))) == "UPDATE_ROLLBACK_COMPLETE"
    assert cloud.things == before
    assert cloud.update("s", body(Child=child())) == "UPDATE_COMPLETE"
    assert cloud.named() == {"Other": 2}


def test_a_nested_stack_follows_another_template_at_the_same_address(cloud: Cloud) -> None:
    cloud.world.templates["s3://b/child"] = body(Thing=thing(Value=1))
    assert cloud.create("s", body(Child=child())) == "CREATE_COMPLETE"
    with pytest.raises(StackError, match="No updates are to be performed"):
        cloud.update("s", body(Child=child()))
    cloud.world.templates["s3://b/child"] = body(Thing=thing(Value=2))
    assert cloud.update("s", body(Child=child())) == "UPDATE_COMPLETE"
    assert cloud.named() == {"Thing": 2}


def test_a_failed_update_that_stays_is_followed_by_one_that_returns_to_the_state_before_both(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing(Value=1), B=thing(Fixed=1))) == "CREATE_COMPLETE"
    before = dict(cloud.things)
    failing = body(A=thing(Value=2), B=thing(Fixed=2), Bad=thing("A", "B", Fail="no"))
    assert cloud.update("s", failing, DisableRollback=True) == "UPDATE_FAILED"
    assert cloud.things != before
    assert cloud.update("s", failing.replace("no", "still")) == "UPDATE_ROLLBACK_COMPLETE"
    assert cloud.things == before


def test_the_update_of_a_failed_creation_returns_without_making_what_never_was(cloud: Cloud) -> None:
    half = body(A=thing(Value=1), B=thing("A", Fail="no"))
    assert cloud.create("s", half, DisableRollback=True) == "CREATE_FAILED"
    worse = body(A=thing(Value=1), B=thing("A", Value=2), C=thing("B", Fail="no"))
    assert cloud.update("s", worse) == "UPDATE_ROLLBACK_COMPLETE"
    assert cloud.named() == {"A": 1}
    assert cloud.delete("s") == "DELETE_COMPLETE"
    assert cloud.things == {}


def test_a_resource_that_a_continued_rollback_skips_is_not_deleted(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing(Value=1), B=thing(Fixed=1))) == "CREATE_COMPLETE"
    kept = next(name for name in cloud.things if name.startswith("B"))
    new = body(A=thing(Value=2), B=thing("A", Fixed=2), Bad=thing("B", Fail="no"))
    cloud.stack("s").resources["A"].properties["Fail"] = "not back"
    assert cloud.update("s", new) == "UPDATE_ROLLBACK_FAILED"
    given = {"StackName": "s", "ResourcesToSkip": ["A", "B"]}
    cloud.stacks.continue_update_rollback(PLACE, given)
    cloud.engine.run()
    assert cloud.status("s") == "UPDATE_ROLLBACK_COMPLETE"
    assert [name for name in cloud.things if name.startswith("B")] == [kept]


def test_a_half_made_resource_is_deleted_by_the_rollback_or_by_the_next_update(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing(HalfMade=True))) == "ROLLBACK_COMPLETE"
    assert (cloud.things, cloud.calls) == ({}, ["make A", "delete A"])
    assert cloud.create("t", body(A=thing(HalfMade=True)), DisableRollback=True) == "CREATE_FAILED"
    assert len(cloud.things) == 1
    assert cloud.update("t", body(A=thing(Value=1))) == "UPDATE_COMPLETE"
    assert cloud.named() == {"A": 1}


def test_a_stack_is_deleted_whose_old_and_new_resources_need_each_other(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing("B", Fixed=1), B=thing())) == "CREATE_COMPLETE"
    turned = body(A=thing(Fixed=2), B=thing("A", Value=1), Bad=thing("B", Fail="no"))
    assert cloud.update("s", turned, DisableRollback=True) == "UPDATE_FAILED"
    assert cloud.delete("s") == "DELETE_COMPLETE"
    assert cloud.things == {}


# Differences


def test_a_resource_cannot_change_its_type(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing())) == "CREATE_COMPLETE"
    with pytest.raises(StackError, match=r"Update of resource type is not permitted.*\[A\]"):
        cloud.update("s", body(A=thing(kind="Test::Other")))
    assert cloud.status("s") == "CREATE_COMPLETE"


def test_another_version_in_a_dynamic_reference_is_a_change(cloud: Cloud) -> None:
    cloud.world.parameters.update({"colour:1": "red", "colour:2": "blue"})
    assert cloud.create("s", body(A=thing(Value="{{resolve:ssm:colour:1}}"))) == "CREATE_COMPLETE"
    with pytest.raises(StackError, match="No updates"):
        cloud.update("s", body(A=thing(Value="{{resolve:ssm:colour:1}}")))
    assert cloud.update("s", body(A=thing(Value="{{resolve:ssm:colour:2}}"))) == "UPDATE_COMPLETE"
    assert cloud.named() == {"A": "blue"}


def test_a_change_set_made_before_an_update_cannot_be_executed_after_it(cloud: Cloud) -> None:
    assert cloud.create("s", body(A=thing(Value=1))) == "CREATE_COMPLETE"
    made = {"StackName": "s", "ChangeSetName": "c", "TemplateBody": body(A=thing(Value=2))}
    cloud.change_sets.create_change_set(PLACE, made)
    assert cloud.update("s", body(A=thing(Value=3))) == "UPDATE_COMPLETE"
    shown = cloud.change_sets.describe_change_set(PLACE, made)
    assert shown["ExecutionStatus"] == "OBSOLETE"
    with pytest.raises(StackError, match="cannot be executed"):
        cloud.change_sets.execute_change_set(PLACE, made)
    assert cloud.named() == {"A": 3}


def test_an_update_that_overtakes_another_one_is_not_undone_by_its_previous_values(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = {"P": {"Type": "String", "Default": "x"}, "Q": {"Type": "String", "Default": "x"}}
    text = body(None, parameters, A=thing(Value={"Fn::Sub": "${P}${Q}"}))
    assert cloud.create("s", text) == "CREATE_COMPLETE"
    planner = cloud.engine._services.planner
    plan = planner.plan
    first = [{"ParameterKey": "P", "ParameterValue": "1"}, {"ParameterKey": "Q", "UsePreviousValue": True}]
    second = [{"ParameterKey": "P", "UsePreviousValue": True}, {"ParameterKey": "Q", "ParameterValue": "2"}]

    def overtaken(*given: Any) -> Any:
        monkeypatch.setattr(planner, "plan", plan)
        assert cloud.update("s", text, Parameters=second) == "UPDATE_COMPLETE"
        return plan(*given)

    monkeypatch.setattr(planner, "plan", overtaken)
    with pytest.raises(StackError, match="updated by another request"):
        cloud.update("s", text, Parameters=first)
    assert cloud.named() == {"A": "x2"}


def test_an_export_cannot_be_imported_while_its_stack_is_deleted(cloud: Cloud) -> None:
    outputs = {"O": {"Value": "v", "Export": {"Name": "e"}}}
    assert cloud.create("owner", body(outputs, A=thing())) == "CREATE_COMPLETE"
    cloud.stack("owner").status = "DELETE_IN_PROGRESS"
    with pytest.raises(StackError, match="No export named e found"):
        cloud.create("user", body(A=thing(Value={"Fn::ImportValue": "e"})))


# Secrets


def test_secrets_are_in_no_answer(cloud: Cloud) -> None:
    text = body(None, NO_ECHO, A=thing(Fail={"Fn::Sub": "the word ${P} is wrong"}))
    cloud.create("s", text, OnFailure="DO_NOTHING")
    assert "the word **** is wrong" in events(cloud, "s")
    made = {"StackName": "t", "ChangeSetName": "c", "ChangeSetType": "CREATE", "TemplateBody": text}
    cloud.change_sets.create_change_set(PLACE, made)
    shown = cloud.change_sets.describe_change_set(PLACE, {**made, "IncludePropertyValues": True})
    assert "opensesame" not in json.dumps(shown, default=str)
    assert "the word **** is wrong" in json.dumps(shown, default=str)


def test_what_a_resource_answers_with_no_echo_is_in_no_event(cloud: Cloud) -> None:
    user = thing(Value={"Fn::GetAtt": ["A", "Secret"]})
    assert cloud.create("s", body(A=thing(Secret="swordfish"), B=user)) == "CREATE_COMPLETE"
    assert cloud.named()["B"] == "swordfish"
    changed = thing(Value={"Fn::Sub": "new ${A.Secret}"})
    assert cloud.update("s", body(A=thing(Secret="swordfish"), B=changed)) == "UPDATE_COMPLETE"
    shown = [line for line in events(cloud, "s").split("EventId") if '"B"' in line]
    assert "swordfish" not in "".join(shown)
    assert "****" in "".join(shown)


def test_the_record_of_a_deleted_stack_has_no_secrets(cloud: Cloud) -> None:
    given = [{"ParameterKey": "P", "ParameterValue": "swordfish"}]
    assert cloud.create("s", body(None, NO_ECHO, A=thing(Value={"Ref": "P"})), Parameters=given) == "CREATE_COMPLETE"
    assert cloud.delete("s") == "DELETE_COMPLETE"
    assert "swordfish" not in "".join(path.read_text() for path in cloud.folder.glob("*.json"))


# Kills


def dies(cloud: Cloud, *calls: Any) -> None:
    with pytest.raises(StoppedError):
        cloud.update(*calls)
    cloud.restart()


def test_what_was_deleted_before_a_kill_and_is_there_again_is_deleted_again(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.world.templates["s3://b/child"] = body(Inner=thing())
    assert cloud.create("s", body(A=thing("B"), B=thing(), Child=child())) == "CREATE_COMPLETE"
    identifier = cloud.stack("s").id

    def killed() -> None:
        raise StoppedError

    object.__setattr__(cloud.engine._services, "settle", killed)
    with pytest.raises(StoppedError):
        cloud.delete("s")
    assert cloud.things == {}
    cloud.restart()
    assert cloud.status(identifier) == "DELETE_COMPLETE"
    assert cloud.things == {}


def test_an_update_is_not_complete_before_what_it_made_is_saved(cloud: Cloud) -> None:
    assert cloud.create("s", body(Old=thing(), A=thing(Value=1))) == "CREATE_COMPLETE"
    before = dict(cloud.things)

    def killed() -> None:
        raise StoppedError

    object.__setattr__(cloud.engine._services, "settle", killed)
    dies(cloud, "s", body(A=thing(Value=2), New=thing()))
    assert cloud.status("s") == "UPDATE_ROLLBACK_COMPLETE"
    assert cloud.things == before


@pytest.mark.parametrize("when", ["change A", "make New", "make Fixed", "delete Old", "delete Fixed"])
def test_a_stack_is_whole_after_a_kill_at_each_step_of_an_update(cloud: Cloud, when: str) -> None:
    old = body(Old=thing(Value=1), A=thing(Value=1), Fixed=thing("A", Fixed=1, Value=1))
    new = body(A=thing(Value=2), Fixed=thing("A", Fixed=2, Value=2), New=thing("Fixed", Value=2))
    assert cloud.create("s", old) == "CREATE_COMPLETE"
    before = cloud.named()

    class Calls(list[str]):
        def append(self, call: str) -> None:
            super().append(call)
            if call == when:
                raise StoppedError

    cloud.calls = Calls()
    with pytest.raises(StoppedError):
        cloud.update("s", new)
    cloud.calls = []
    cloud.restart()
    is_done = when.startswith("delete")
    assert cloud.status("s") == ("UPDATE_COMPLETE" if is_done else "UPDATE_ROLLBACK_COMPLETE")
    assert cloud.named() == ({"A": 2, "Fixed": 2, "New": 2} if is_done else before)
    assert cloud.delete("s") == "DELETE_COMPLETE"
    assert cloud.things == {}
