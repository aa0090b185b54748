"""serverless.yml: ``resources.extensions``, and paths with the integration ``lambda``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thawd.deploy.projects.artifacts import BuildTools, package
from thawd.deploy.projects.deployment import prepared
from thawd.deploy.projects.reading import read_project
from thawd.deploy.projects.stacks import Project, ProjectError, ProjectOptions

pytestmark = pytest.mark.in_memory

SERVICE = """
service: s
provider: {name: aws, runtime: python3.12}
functions: {f: {handler: app.h, dependsOn: Q, tags: {old: '1'}, environment: {A: '1'}%s}}
resources:
  Resources: {Q: {Type: AWS::SQS::Queue, Properties: {DelaySeconds: 5, FifoQueue: false}}}
%s
"""


def read(folder: Path, more: str = "", extensions: str = "") -> Project:
    (folder / "app.py").touch()
    (folder / "serverless.yml").write_text(SERVICE % (more, extensions))
    return read_project(folder / "serverless.yml", ProjectOptions())


def made(project: Project) -> dict[str, Any]:
    """The resources that CloudFormation makes."""
    [stack] = project.stacks
    tools = BuildTools(lambda requirements, runtime, architecture: requirements, str)
    return dict(prepared(stack, package(stack, tools)).resources)


def test_extensions_replace_properties_and_add_dependencies_as_serverless_does(tmp_path: Path) -> None:
    project = read(
        tmp_path,
        extensions="""
  extensions:
    FLambdaFunction:
      Properties:
        MemorySize: 2048
        Environment: {Variables: {B: '2'}}
        TracingConfig: {Mode: Active}
        Tags: [{Key: new, Value: '2'}]
        DeadLetterConfig: {TargetArn: !GetAtt Q.Arn}
      DependsOn: [IamRoleLambdaExecution]
      DeletionPolicy: Retain
    Q: {Properties: {DelaySeconds: 9}, Metadata: {a: b}}
""",
    )
    assert project.notes == ()
    resources = made(project)
    function, queue = resources["FLambdaFunction"], resources["Q"]
    properties = function.raw_properties
    assert (properties["MemorySize"], properties["Environment"]) == (2048, {"Variables": {"B": "2"}})
    assert (properties["TracingConfig"], properties["Handler"]) == ({"Mode": "Active"}, "app.h")
    assert {"Key": "new", "Value": "2"} in properties["Tags"]
    assert {"Key": "old", "Value": "1"} not in properties["Tags"]
    assert "TargetArn" in properties["DeadLetterConfig"]
    assert {"Q", "IamRoleLambdaExecution"} <= set(function.depends_on)
    assert function.deletion_policy == "Retain"
    assert queue.raw_properties == {"DelaySeconds": 9, "FifoQueue": False}


def test_what_an_extension_cannot_change_is_named_or_refused(tmp_path: Path) -> None:
    project = read(
        tmp_path,
        extensions="""
  extensions:
    FLogGroup: {Properties: {RetentionInDays: 1}}
    FLambdaFunction: {Properties: {Code: {ZipFile: x}}}
""",
    )
    assert project.notes == (
        "resources.extensions.FLogGroup is left out: thawd makes no resource FLogGroup",
        "resources.extensions.FLambdaFunction.Properties.Code is left out: thawd has no place for it",
    )
    for wrong, said in {
        "  extensions: [a]": "must be a map of maps",
        "  extensions: {Q: {Type: AWS::SNS::Topic}}": "Q: Type cannot be extended",
        "  extensions: {FLambdaFunction: {Properties: {TracingConfig: Active}}}": "TracingConfig is malformed",
    }.items():
        with pytest.raises(ProjectError, match=said):
            read(tmp_path, extensions=wrong)


def test_a_path_with_the_integration_lambda_has_the_statuses_and_templates_that_it_declares(tmp_path: Path) -> None:
    event = """, events: [{http: {method: post, path: a, integration: lambda, cors: true, private: true, async: true,
      request: {passThrough: WHEN_NO_MATCH, template: {text/plain: T, application/json: null}, schemas: {a: b},
        parameters: {method.request.header.X: true}},
      response: {headers: {X-One: "'1'"}, template: R,
        statusCodes: {201: {pattern: ''}, 404: {pattern: '.*gone.*', template: {text/plain: S}}}}}}]"""
    project = read(tmp_path, event)
    assert project.notes == ("functions.f.events.http.request.schemas has no effect: nothing validates",)
    resources = made(project)
    operation = resources["ApiGatewayRestApi"].raw_properties["Body"]["paths"]["/a"]["post"]
    integration = operation["x-amazon-apigateway-integration"]
    assert (integration["type"], integration["passthroughBehavior"]) == ("aws", "when_no_match")
    templates = integration["requestTemplates"]
    assert sorted(templates) == ["application/x-www-form-urlencoded", "text/plain"]
    assert integration["requestParameters"] == {
        "integration.request.header.X": "method.request.header.X",
        "integration.request.header.X-Amz-Invocation-Type": "'Event'",
    }
    found, gone = integration["responses"]["default"], integration["responses"][".*gone.*"]
    assert (found["statusCode"], gone["statusCode"]) == ("201", "404")
    assert (found["responseTemplates"], gone["responseTemplates"]) == (
        {"application/json": "R"},
        {"application/json": "R", "text/plain": "S"},
    )
    assert found["responseParameters"] == {
        "method.response.header.Access-Control-Allow-Origin": "'*'",
        "method.response.header.X-One": "'1'",
    }
    assert operation["security"] == [{"api_key": []}]
    permission = resources["FLambdaPermissionApiGateway"].raw_properties
    assert permission["Principal"] == "apigateway.amazonaws.com"


def test_one_path_with_two_events_is_refused(tmp_path: Path) -> None:
    event = ", events: [{http: {method: get, path: a, integration: lambda}}, {http: {method: get, path: a, %s}}]"
    with pytest.raises(ProjectError, match="GET /a is the path of two events"):
        read(tmp_path, event % "integration: lambda")
