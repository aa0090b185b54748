"""The order in which a stack's resources are deleted."""

from __future__ import annotations

from typing import Any

import pytest

from thawd.server.emulator.stacks import dependents_first


@pytest.mark.parametrize(
    "named",
    [
        {"Ref": "First"},
        {"Fn::GetAtt": ["First", "Arn"]},
        {"Fn::GetAtt": "First.Arn"},
        {"Fn::Sub": "a ${First} b"},
        {"Fn::Sub": ["${First.Arn}", {}]},
        {"Fn::Sub": ["${X}", {"X": {"Ref": "First"}}]},
        {"Fn::Join": ["", ["a", {"Fn::If": ["C", {"Ref": "First"}, 1]}]]},
    ],
)
def test_a_resource_comes_before_those_that_it_names(named: dict[str, Any]) -> None:
    first, second = {"Type": "A"}, {"Type": "B", "Properties": {"Value": [named, None, 1]}}
    assert dependents_first({"First": first, "Second": second}) == ["Second", "First"]
    assert dependents_first({"Second": second, "First": first}) == ["Second", "First"]


@pytest.mark.parametrize("depends", ["First", ["Absent", "First"]])
def test_a_resource_comes_before_those_that_it_depends_on(depends: str | list[str]) -> None:
    assert dependents_first({"First": {}, "Second": {"DependsOn": depends}}) == ["Second", "First"]


def test_resources_in_a_circle_are_all_there() -> None:
    circle = {"One": {"DependsOn": "Two"}, "Two": {"DependsOn": "One"}, "Self": {"DependsOn": "Self"}}
    assert sorted(dependents_first(circle)) == ["One", "Self", "Two"]
