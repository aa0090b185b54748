"""The plan: what a deployment changes, as data and as text."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import msgspec
import pytest

from tests.unit.aws_orders import EVERYTHING, deployed, model
from thawd.deploy.aws.plan import Change, Plan, make_plan, plan_text
from thawd.deploy.aws.stack import DeploymentError
from thawd.deploy.aws.template import Model


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return model(tmp_path_factory.mktemp("everything"), EVERYTHING)


def changed(plan: Plan, logical_id: str) -> Change:
    [found] = [change for change in plan.changes if change.logical_id == logical_id]
    return found


def test_a_plan_after_its_deployment_is_empty(everything: Model) -> None:
    plan = make_plan(everything, deployed(everything), stack="shop")
    assert plan.changes == ()
    assert plan_text(plan).endswith("stack shop: nothing to change")


def test_without_a_stack_everything_is_created(everything: Model) -> None:
    plan = make_plan(everything, None, stack="shop")
    count = len(everything.template["Resources"]) + len(everything.template["Outputs"])
    assert [change.action for change in plan.changes] == ["create"] * count


def test_a_change_of_a_setting_shows_the_property_and_a_new_version(everything: Model, tmp_path: Path) -> None:
    plan = make_plan(model(tmp_path, EVERYTHING.replace("1024", "2048")), deployed(everything), stack="shop")
    function = changed(plan, "ClassifyFunction")
    [memory] = function.properties
    assert (function.action, memory.path, memory.before, memory.after) == ("update", "MemorySize", "1024", "2048")
    versions = [change.action for change in plan.changes if change.type == "AWS::Lambda::Version"]
    assert sorted(versions) == ["create", "delete"]
    assert "~ AWS::Lambda::Function ClassifyFunction\n    ~ MemorySize: 1024 -> 2048" in plan_text(plan)


def test_a_change_that_would_replace_a_named_resource_by_one_of_the_same_name_is_refused(everything: Model) -> None:
    before = copy.deepcopy(deployed(everything))
    before["Resources"]["AfterFunction"]["Properties"]["PackageType"] = "Image"
    with pytest.raises(DeploymentError, match=r"AfterFunction \(shop-after\) cannot change its PackageType"):
        make_plan(everything, before, stack="shop")


def test_a_change_that_replaces_a_resource_says_so(everything: Model) -> None:
    before = copy.deepcopy(deployed(everything))
    before["Resources"]["LabelsTable"]["Properties"]["TableName"] = "other"
    plan = make_plan(everything, before, stack="shop")
    assert changed(plan, "LabelsTable").action == "replace"
    assert "TableName: other -> shop-labels  (needs replacement)" in plan_text(plan)


def test_deleting_buckets_and_tables_is_marked_as_a_loss_of_data(everything: Model, tmp_path: Path) -> None:
    plan = make_plan(model(tmp_path, EVERYTHING.replace("[tables.labels]", "")), deployed(everything), stack="shop")
    assert plan.lost == ("LabelsTable",)
    assert "- AWS::DynamoDB::Table LabelsTable  (with all its data)" in plan_text(plan)


def test_values_of_environment_variables_are_shown_only_if_asked_for(everything: Model, tmp_path: Path) -> None:
    other = model(tmp_path, EVERYTHING.replace("correct horse", "battery staple"))
    for plan in (make_plan(other, deployed(everything), stack="shop"), make_plan(everything, None, stack="shop")):
        shown = plan_text(plan) + msgspec.json.encode(plan).decode()
        assert "correct horse" not in shown and "battery staple" not in shown
    plan = make_plan(other, deployed(everything), stack="shop")
    [password] = changed(plan, "ClassifyFunction").properties
    assert password.path == "Environment.Variables.PASSWORD"
    assert password.before != password.after
    plan = make_plan(other, deployed(everything), stack="shop", shows_values=True)
    assert "PASSWORD: correct horse -> battery staple" in plan_text(plan)


def test_a_plan_is_data(everything: Model) -> None:
    plan = make_plan(everything, None, stack="shop")
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    assert json.loads(msgspec.json.encode(plan))["stack"] == "shop"


def test_colours_follow_the_signs(everything: Model) -> None:
    first = plan_text(make_plan(everything, None, stack="shop"), has_colours=True).splitlines()[0]
    assert first.startswith("\x1b[32m+ ") and first.endswith("\x1b[0m")
