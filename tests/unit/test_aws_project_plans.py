"""Plans of templates' deployments: data that would be lost is found, and values stay hidden. Images fit functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thawd.deploy.aws.change_sets import ChangeSet
from thawd.deploy.aws.plan import Plan, plan_text
from thawd.deploy.aws.project_packages import ProjectPackage, package_project, parameters_of
from thawd.deploy.aws.project_plan import read_plan
from thawd.deploy.projects.reading import read_project
from thawd.deploy.projects.stacks import ProjectError, ProjectOptions, ProjectStack
from thawd.oci import documents
from thawd.oci.image_store import Images


class Session:
    """An account whose services answer with what a test gives.

    Attributes:
        change_sets: the changes of each change set, by its id.
    """

    region = "eu-west-1"
    dns_suffix = "amazonaws.com"

    def __init__(self, **change_sets: list[dict[str, Any]]) -> None:
        self.change_sets = change_sets
        self.meta = self
        self.endpoint_url = "https://s3.eu-west-1.amazonaws.com"

    def account_id(self) -> str:
        return "123456789012"

    def client(self, service: str) -> Session:
        return self

    def get_paginator(self, name: str) -> Session:
        return self

    def paginate(self, **given: Any) -> list[dict[str, Any]]:
        found = self.change_sets[given["ChangeSetName"]]
        return [{"Changes": [{"Type": "Resource", "ResourceChange": change}]} for change in found]


def change(action: str, logical_id: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"Action": action, "LogicalResourceId": logical_id, "ResourceType": kind, **more}


def plan_of(session: Session, *, shows_values: bool = False) -> Plan:
    given = ChangeSet(id="top", stack_id="arn:stack/sam", is_first=False)
    return read_plan(session, given, stack="sam", shows_values=shows_values)  # type: ignore[arg-type]


def test_data_that_would_be_lost_is_found_also_in_nested_stacks() -> None:
    nested = change("Modify", "Inner", "AWS::CloudFormation::Stack", Replacement="False", ChangeSetId="inner")
    session = Session(
        top=[
            change("Remove", "Rows", "AWS::DynamoDB::Table", PolicyAction="Delete"),
            change("Remove", "Kept", "AWS::S3::Bucket", PolicyAction="Retain"),
            change("Modify", "Users", "AWS::Cognito::UserPool", Replacement="True"),
            change("Modify", "Perhaps", "AWS::RDS::DBInstance", Replacement="Conditional"),
            change("Modify", "Backed", "AWS::RDS::DBInstance", Replacement="True", PolicyAction="ReplaceAndSnapshot"),
            change("Remove", "Other", "AWS::CloudFormation::Stack"),
            change("Add", "New", "AWS::S3::Bucket"),
            nested,
        ],
        inner=[change("Remove", "Files", "AWS::S3::Bucket", PolicyAction="Delete")],
    )
    plan = plan_of(session)
    assert plan.lost == ("Inner/Files", "Other", "Perhaps", "Rows", "Users")
    assert "- AWS::S3::Bucket Inner/Files  (with all its data)" in plan_text(plan)


def _context(**properties: Any) -> str:
    return json.dumps({"Properties": properties})


def test_values_are_hidden_unless_they_are_settings_of_functions() -> None:
    secret = change(
        *("Modify", "Secret", "AWS::SecretsManager::Secret"),
        BeforeContext=_context(SecretString="one"),
        AfterContext=_context(SecretString="two"),
    )
    function = change(
        *("Modify", "Read", "AWS::Lambda::Function"),
        BeforeContext=_context(Timeout=3, Environment={"Variables": {"KEY": "before"}}),
        AfterContext=_context(Timeout=9, Environment={"Variables": {"KEY": "after"}}),
        Details=[{"Target": {"Attribute": "Properties", "Name": "Role", "RequiresRecreation": "Never"}}],
    )
    shown = plan_text(plan_of(Session(top=[secret, function])))
    assert "    ~ SecretString\n" in shown and "    ~ Timeout: 3 -> 9\n" in shown and "    ~ Role\n" in shown
    assert not any(word in shown for word in ("one", "two", "before", "after"))
    everything = plan_text(plan_of(Session(top=[secret, function]), shows_values=True))
    assert "SecretString: one -> two" in everything and "KEY: before -> after" in everything


def _stack(folder: Path, text: str, **parameters: str) -> ProjectStack:
    (folder / "template.yaml").write_text(text)
    [stack] = read_project(folder / "template.yaml", ProjectOptions(parameters=parameters)).stacks
    return stack


def test_parameters_that_are_not_given_keep_the_value_of_the_stack_or_their_default(tmp_path: Path) -> None:
    text = "Parameters: {A: {Type: String}, B: {Type: String}, C: {Type: String, Default: c}}\nResources: {}\n"
    deployed = {"Parameters": [{"ParameterKey": "A"}, {"ParameterKey": "B"}, {"ParameterKey": "Gone"}]}
    assert parameters_of(_stack(tmp_path, text, A="1"), deployed) == {"A": "1", "B": None}
    assert parameters_of(_stack(tmp_path, text, A="1"), None) == {"A": "1"}
    with pytest.raises(ProjectError, match="the template has no parameter D; it has A, B, C"):
        parameters_of(_stack(tmp_path, text, D="1"), None)


IMAGE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Caption:
    Type: AWS::Serverless::Function
    Metadata: {Dockerfile: Dockerfile, DockerContext: .}
    Properties: {PackageType: Image%s}
  Inner: {Type: AWS::CloudFormation::Stack, Properties: {TemplateURL: inner.yaml}}
"""


def _packaged(folder: Path, text: str) -> ProjectPackage:
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /x\n")
    (folder / "inner.yaml").write_text("Resources: {Q: {Type: AWS::SQS::Queue}}\n")
    given = _stack(folder, text)
    return package_project(Session(), given, data=folder / ".thawd", report=lambda line: None)  # type: ignore[arg-type]


def test_an_image_of_a_template_is_named_by_its_digest_in_the_accounts_registry(tmp_path: Path) -> None:
    here = {"amd64": "x86_64", "arm64": "arm64"}[documents.machine_architecture()]
    made = _packaged(tmp_path, IMAGE % f", Architectures: [{here}]")
    resources = json.loads(made.text)["Resources"]
    [digest] = made.images
    place = f"123456789012.dkr.ecr.eu-west-1.amazonaws.com/thawd-assets/{_stack(tmp_path, IMAGE % '').name.lower()}"
    assert resources["Caption"]["Properties"]["ImageUri"].startswith(place)
    assert resources["Caption"]["Properties"]["ImageUri"].endswith(f"@{digest}")
    assert Images(made.image_store).image(digest).config.architecture == documents.machine_architecture()
    # Nested templates are needed by CloudFormation to make a change set; code is not.
    [(key, content)] = made.documents.items()
    assert json.loads(content)["Resources"]["Q"]["Type"] == "AWS::SQS::Queue"
    bucket = "thawd-assets-123456789012-eu-west-1"
    assert resources["Inner"]["Properties"]["TemplateURL"] == f"https://s3.eu-west-1.amazonaws.com/{bucket}/{key}"
    assert made.code == {}


def test_an_image_for_functions_of_another_architecture_is_refused(tmp_path: Path) -> None:
    other = {"amd64": "arm64", "arm64": "x86_64"}[documents.machine_architecture()]
    with pytest.raises(ProjectError, match="Caption has the Architectures"):
        _packaged(tmp_path, IMAGE % f", Architectures: [{other}]")


def test_requirements_for_an_architecture_that_the_template_computes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("six")
    text = (
        "Conditions: {Arm: !Equals [a, b]}\nTransform: AWS::Serverless-2016-10-31\nResources:\n"
        "  F:\n    Type: AWS::Serverless::Function\n"
        "    Properties: {Runtime: python3.12, Handler: a.b, Architectures: [!If [Arm, arm64, x86_64]]}\n"
    )
    with pytest.raises(ProjectError, match="the template computes the function's Architectures"):
        _packaged(tmp_path, text)
