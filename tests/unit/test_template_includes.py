"""The macro AWS::Include: snippets of files and buckets in a template."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.template_stacks import CONTEXT
from thawd.deploy.templates import template_parsing
from thawd.deploy.templates.preparation import Prepared, prepare
from thawd.deploy.templates.refusals import TemplateError

_SNIPPETS = {
    "api.yaml": "openapi: 3.0.1\ninfo: {title: !Ref Title}\n",
    "s3://snippets/more.json": '{"Tags": [{"Key": "team", "Value": {"Ref": "Title"}}], "Name": "from the snippet"}',
    "resources.yaml": "Resources: {Queue: {Type: AWS::SQS::Queue}}",
    "list.yaml": "- a\n- b\n",
}


def included(text: str, **parameters: str) -> Prepared:
    context = replace(CONTEXT, read=_SNIPPETS.__getitem__)
    return prepare(template_parsing.parse(text), parameters, context)


def template(properties: str) -> str:
    return f"""
Parameters:
  Title: {{Type: String, Default: pictures}}
  Bucket: {{Type: String, Default: snippets}}
Resources:
  Api: {{Type: AWS::ApiGateway::RestApi, Properties: {properties}}}
"""


def test_a_snippet_takes_the_place_of_the_macro_and_its_functions_are_evaluated() -> None:
    # Source: CloudFormation template reference, "AWS::Include transform".
    body = "{Body: {Fn::Transform: {Name: AWS::Include, Parameters: {Location: api.yaml}}}}"
    assert included(template(body)).properties("Api", {}) == {
        "Body": {"openapi": "3.0.1", "info": {"title": "pictures"}}
    }


def test_keys_beside_the_macro_stay_and_the_location_may_be_a_function() -> None:
    macro = "{Name: AWS::Include, Parameters: {Location: !Sub 's3://${Bucket}/more.json'}}"
    assert included(template(f"{{Name: own, Fn::Transform: {macro}}}")).properties("Api", {}) == {
        "Name": "own",
        "Tags": [{"Key": "team", "Value": "pictures"}],
    }


def test_a_macro_at_the_top_adds_sections() -> None:
    text = "Transform: {Name: AWS::Include, Parameters: {Location: resources.yaml}}"
    assert included(text).order() == ["Queue"]


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("{Location: gone.yaml}", "there is nothing at gone.yaml"),
        ("{Location: list.yaml}", "list.yaml: Template format error: unsupported structure"),
        ("{}", "The location parameter is not a valid S3 uri"),
        ("{Location: [a]}", "The location parameter is not a valid S3 uri"),
    ],
)
def test_a_snippet_that_cannot_be_had_is_refused_with_the_reason(parameters: str, reason: str) -> None:
    body = f"{{Body: {{Fn::Transform: {{Name: AWS::Include, Parameters: {parameters}}}}}}}"
    with pytest.raises(TemplateError, match=reason):
        included(template(body))


def test_another_macro_is_refused() -> None:
    with pytest.raises(TemplateError, match="Fn::Transform runs a macro"):
        included(template("{Body: {Fn::Transform: {Name: Mine}}}")).properties("Api", {})
