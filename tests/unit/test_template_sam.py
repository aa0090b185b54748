"""SAM templates: what the transform makes of them. Skipped where aws-sam-translator is missing."""

from __future__ import annotations

import pytest

from tests.unit.template_stacks import CONTEXT, prepared
from thawd.deploy.templates.preparation import prepare
from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.template_parsing import parse
from thawd.deploy.templates.values import Made

pytest.importorskip("samtranslator", reason="needs aws-sam-translator, in the extra `aws`")

_HEAD = "Transform: AWS::Serverless-2016-10-31\n"
_APP = (
    _HEAD
    + """
Parameters: {Stage: {Type: String, Default: test}}
Globals: {Function: {Runtime: python3.12, Timeout: 7, CodeUri: src/}}
Resources:
  Api:
    Type: AWS::Serverless::Function
    Properties:
      Handler: app.get
      Environment: {Variables: {TABLE: !Ref Rows, STAGE: !Ref Stage}}
      Policies: [AWSLambdaBasicExecutionRole, DynamoDBCrudPolicy: {TableName: !Ref Rows}]
      Events: {Get: {Type: HttpApi, Properties: {Path: /get, Method: GET}}}
  Fetch:
    Type: AWS::Serverless::Function
    Properties:
      Handler: fetch.main
      CodeUri: s3://bucket/key.zip
      Events: {New: {Type: S3, Properties: {Bucket: !Ref Files, Events: s3:ObjectCreated:*}}}
  Shared: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: layer}}
  Nested: {Type: AWS::Serverless::Application, Properties: {Location: nested/template.yaml}}
  Flow: {Type: AWS::Serverless::StateMachine, Properties: {DefinitionUri: flow.json, Role: arn:aws:iam::1:role/r}}
  Rows: {Type: AWS::Serverless::SimpleTable}
  Files: {Type: AWS::S3::Bucket}
"""
)


def test_sam_resources_become_those_of_cloudformation_and_keep_their_local_paths() -> None:
    stack = prepared(_APP)
    types = {name: each.type for name, each in stack.resources.items()}
    assert types["Api"] == types["Fetch"] == "AWS::Lambda::Function"
    assert types["Rows"] == "AWS::DynamoDB::Table"
    assert types["ServerlessHttpApi"] == "AWS::ApiGatewayV2::Api"
    assert types["FetchNewPermission"] == "AWS::Lambda::Permission"
    api = stack.planned("Api", {})
    assert (api["Code"], api["Handler"], api["Timeout"]) == ("src/", "app.get", 7)
    assert stack.planned("Fetch", {})["Code"] == {"S3Bucket": "bucket", "S3Key": "key.zip"}
    assert stack.planned("Nested", {})["TemplateURL"] == "nested/template.yaml"
    assert stack.planned("Flow", {})["DefinitionS3Location"] == "flow.json"
    layer = next(name for name, kind in types.items() if kind == "AWS::Lambda::LayerVersion")
    assert stack.planned(layer, {})["Content"] == "layer"
    [files] = stack.planned("Files", {})["NotificationConfiguration"]["LambdaConfigurations"]
    assert files["Event"] == "s3:ObjectCreated:*"
    assert stack.order().index("Files") > stack.order().index("FetchNewPermission")
    basic = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"
    assert stack.planned("ApiRole", {})["ManagedPolicyArns"] == [basic]


def test_the_transform_leaves_the_document_as_it_was_and_loops_come_first() -> None:
    text = _APP.replace(_HEAD, "Transform: [AWS::LanguageExtensions, AWS::Serverless-2016-10-31]\n") + (
        "  Fn::ForEach::More: [Name, [A, B], {'More${Name}': "
        "{Type: AWS::Serverless::Function, Properties: {Handler: !Sub '${Name}.f'}}}]\n"
    )
    document = parse(text)
    stack = prepare(document, {}, CONTEXT)
    assert document == parse(text)
    assert (stack.planned("MoreA", {})["Handler"], stack.planned("MoreB", {})["Handler"]) == ("A.f", "B.f")


def test_what_the_translator_refuses_is_refused_with_the_resource() -> None:
    with pytest.raises(TemplateError, match=r"Resource with id \[F\] is invalid"):
        prepared(_HEAD + "Resources: {F: {Type: AWS::Serverless::Function, Properties: {CodeUri: [x]}}}")


@pytest.mark.parametrize(
    ("shared", "own", "code"),
    [("", "", "."), ("Globals: {Function: {CodeUri: src/}}", "", "src/"), ("", "CodeUri: other/", "other/")],
)
def test_code_without_a_place_lies_beside_the_template(shared: str, own: str, code: str) -> None:
    # Source: sam build, which takes "." for a function without CodeUri.
    text = f"""
Transform: AWS::Serverless-2016-10-31
{shared}
Resources:
  F:
    Type: AWS::Serverless::Function
    Properties: {{Runtime: python3.11, Handler: app.handler, {own}}}
"""
    made = {"FRole": Made("role", {"Arn": "arn:aws:iam::000000000000:role/role"})}
    assert prepared(text).properties("F", made)["Code"] == code
