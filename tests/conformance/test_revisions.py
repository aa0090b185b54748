"""What a change does to revision ids, states and settings: sequences that AWS was observed to answer.

Source: AWS Lambda API reference, `RevisionId`, `State`, `LastUpdateStatus`, `LoggingConfig`; developer guide, "Lambda
function states"; observed on AWS in 2025-11.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import CODE, OTHER_CODE, ROLE, RUNTIME, Lambda

ARN = "arn:aws:lambda:us-east-1:000000000000:function:"
PERMISSION = {"Action": "lambda:InvokeFunction", "Principal": "s3.amazonaws.com"}


@pytest.fixture(scope="module")
def changed(aws: Lambda) -> str:
    """A function that each case may change."""
    return aws.create()


def revision(aws: Lambda, name: str, **more: Any) -> str:
    return str(aws.client.get_function_configuration(FunctionName=name, **more)["RevisionId"])


def refused(call: Any, **parameters: Any) -> str:
    with pytest.raises(ClientError) as error:
        call(**parameters)
    return str(error.value.response["Error"]["Code"])


def test_becoming_active_is_a_revision_and_each_update_is_two(aws: Lambda) -> None:
    name = aws.name()
    created = aws.client.create_function(
        FunctionName=name, Runtime=RUNTIME, Role=ROLE, Handler="app.handler", Code={"ZipFile": CODE}
    )
    aws.client.get_waiter("function_active_v2").wait(FunctionName=name, WaiterConfig={"Delay": 0.05})
    seen = [created["RevisionId"], revision(aws, name)]
    for call in (
        lambda: aws.client.update_function_configuration(FunctionName=name, Description="first"),
        lambda: aws.client.update_function_configuration(FunctionName=name, Description="first"),
        lambda: aws.client.update_function_code(FunctionName=name, ZipFile=OTHER_CODE),
    ):
        seen.append(call()["RevisionId"])
        seen.append(aws.updated(name)["RevisionId"])
    assert len(set(seen)) == len(seen)


def test_a_publication_is_a_revision_of_the_latest_version_and_its_version_keeps_its_own(
    aws: Lambda, changed: str
) -> None:
    aws.update(changed, Description="to be published")
    before = revision(aws, changed)
    published = aws.client.publish_version(FunctionName=changed, RevisionId=before)
    assert revision(aws, changed, Qualifier=published["Version"]) == published["RevisionId"]
    after = revision(aws, changed)
    assert len({before, after, published["RevisionId"]}) == 3
    again = aws.client.publish_version(FunctionName=changed, Description="ignored")
    assert (again["Version"], again["RevisionId"]) == (published["Version"], published["RevisionId"])
    assert revision(aws, changed) == after


@pytest.mark.parametrize("tags", [{"a": "1"}, {"a": "2", "b": "3"}])
def test_tags_are_revisions(aws: Lambda, changed: str, tags: dict[str, str]) -> None:
    before = revision(aws, changed)
    aws.client.tag_resource(Resource=f"{ARN}{changed}", Tags=tags)
    between = revision(aws, changed)
    aws.client.untag_resource(Resource=f"{ARN}{changed}", TagKeys=list(tags))
    assert len({before, between, revision(aws, changed)}) == 3


def test_an_alias_has_revisions_of_its_own(aws: Lambda, changed: str) -> None:
    number = aws.publish(changed)
    of_version, of_latest = revision(aws, changed, Qualifier=number), revision(aws, changed)
    alias = aws.client.create_alias(FunctionName=changed, Name="revised", FunctionVersion=number)
    assert aws.client.get_alias(FunctionName=changed, Name="revised")["RevisionId"] == alias["RevisionId"]
    updated = aws.client.update_alias(
        FunctionName=changed, Name="revised", Description="d", RevisionId=alias["RevisionId"]
    )
    assert updated["RevisionId"] != alias["RevisionId"]
    stale = {"FunctionName": changed, "Name": "revised", "RevisionId": alias["RevisionId"]}
    assert refused(aws.client.update_alias, **stale) == "PreconditionFailedException"
    assert (revision(aws, changed, Qualifier=number), revision(aws, changed)) == (of_version, of_latest)


def test_a_policy_has_revisions_of_its_own(aws: Lambda) -> None:
    name, client = aws.create(), aws.client
    first = revision(aws, name)
    assert refused(client.add_permission, FunctionName=name, StatementId="a", RevisionId="wrong", **PERMISSION) == (
        "PreconditionFailedException"
    )
    client.add_permission(FunctionName=name, StatementId="a", RevisionId=first, **PERMISSION)
    of_policy = client.get_policy(FunctionName=name)["RevisionId"]
    assert of_policy != first
    client.publish_version(FunctionName=name)
    assert client.get_policy(FunctionName=name)["RevisionId"] == of_policy, "a publication does not change the policy"
    client.add_permission(FunctionName=name, StatementId="b", RevisionId=of_policy, **PERMISSION)
    later = client.get_policy(FunctionName=name)["RevisionId"]
    assert later != of_policy
    stale = {"FunctionName": name, "StatementId": "b", "RevisionId": of_policy}
    assert refused(client.remove_permission, **stale) == "PreconditionFailedException"
    client.remove_permission(FunctionName=name, StatementId="b", RevisionId=later)
    [statement] = json.loads(client.get_policy(FunctionName=name)["Policy"])["Statement"]
    assert statement["Sid"] == "a"


@pytest.mark.parametrize("qualifier", ["1", "live"])
def test_versions_and_aliases_have_policies_of_their_own(aws: Lambda, qualifier: str) -> None:
    name, client = aws.create(), aws.client
    client.add_permission(FunctionName=name, StatementId="s3", **PERMISSION)
    aws.publish(name)
    client.create_alias(FunctionName=name, Name="live", FunctionVersion="1")
    given = {"FunctionName": name, "Qualifier": qualifier}
    assert refused(client.get_policy, **given) == "ResourceNotFoundException"
    known = client.get_alias(FunctionName=name, Name="live") if qualifier == "live" else None
    expected = revision(aws, name, Qualifier="1") if known is None else known["RevisionId"]
    client.add_permission(**given, StatementId="s3", RevisionId=expected, **PERMISSION)
    [statement] = json.loads(client.get_policy(**given)["Policy"])["Statement"]
    assert (statement["Sid"], statement["Resource"]) == ("s3", f"{ARN}{name}:{qualifier}")
    assert client.get_policy(**given)["RevisionId"] != client.get_policy(FunctionName=name)["RevisionId"]


PRINCIPALS: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
    ({"Principal": "*", "SourceAccount": "000000000000"}, "*", {"StringEquals": {"AWS:SourceAccount": "000000000000"}}),
    ({"Principal": "lambda.amazonaws.com"}, {"Service": "lambda.amazonaws.com"}, {}),
    ({"Principal": "000000000000"}, {"AWS": "arn:aws:iam::000000000000:root"}, {}),
    ({"Principal": "arn:aws:iam::000000000000:user/a"}, {"AWS": "arn:aws:iam::000000000000:user/a"}, {}),
    (
        {"Principal": "*", "EventSourceToken": "amzn1.ask.skill.x"},
        "*",
        {"StringEquals": {"lambda:EventSourceToken": "amzn1.ask.skill.x"}},
    ),
    (
        {
            "Principal": "*", "Action": "lambda:InvokeFunctionUrl", "SourceArn": "arn:aws:s3:::b",
            "SourceAccount": "000000000000", "PrincipalOrgID": "o-1234567890", "FunctionUrlAuthType": "NONE",
        },
        "*",
        {
            "StringEquals": {
                "AWS:SourceAccount": "000000000000", "lambda:FunctionUrlAuthType": "NONE",
                "aws:PrincipalOrgID": "o-1234567890",
            },
            "ArnLike": {"AWS:SourceArn": "arn:aws:s3:::b"},
        },
    ),
    ({"Principal": "*", "InvokedViaFunctionUrl": True}, "*", {"Bool": {"lambda:InvokedViaFunctionUrl": "true"}}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "principal", "condition"), PRINCIPALS, ids=lambda value: str(value)[:30])
def test_a_permission_is_a_statement_as_iam_writes_it(
    aws: Lambda, changed: str, given: dict[str, Any], principal: Any, condition: dict[str, Any]
) -> None:
    parameters = {"Action": "lambda:InvokeFunction", **given}
    answer = aws.client.add_permission(FunctionName=changed, StatementId="one", **parameters)
    aws.client.remove_permission(FunctionName=changed, StatementId="one")
    assert json.loads(answer["Statement"]) == {
        "Sid": "one",
        "Effect": "Allow",
        "Principal": principal,
        "Action": parameters["Action"],
        "Resource": f"{ARN}{changed}",
        **({"Condition": condition} if condition else {}),
    }


LOGGING: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"LogFormat": "JSON"}, {"LogFormat": "JSON", "ApplicationLogLevel": "INFO", "SystemLogLevel": "INFO"}),
    (
        {"LogFormat": "JSON", "ApplicationLogLevel": "DEBUG"},
        {"LogFormat": "JSON", "ApplicationLogLevel": "DEBUG", "SystemLogLevel": "INFO"},
    ),
    (
        {"LogFormat": "JSON", "SystemLogLevel": "DEBUG"},
        {"LogFormat": "JSON", "ApplicationLogLevel": "INFO", "SystemLogLevel": "DEBUG"},
    ),
    ({"LogGroup": "cool_lambda"}, {"LogFormat": "Text", "LogGroup": "cool_lambda"}),
    ({"LogFormat": "Text"}, {"LogFormat": "Text"}),
]


@pytest.mark.parametrize(("given", "shown"), LOGGING, ids=str)
def test_a_part_of_the_logging_settings_is_filled_up(aws: Lambda, given: dict[str, str], shown: dict[str, str]) -> None:
    name = aws.create()
    answer = aws.client.update_function_configuration(FunctionName=name, LoggingConfig=given)
    assert answer["LoggingConfig"] == {"LogGroup": f"/aws/lambda/{name}", **shown}
    assert aws.updated(name)["LoggingConfig"] == {"LogGroup": f"/aws/lambda/{name}", **shown}


@pytest.mark.parametrize("name", ["2024-01-02", "a", "A_b-1", "x" * 128])
def test_an_alias_may_have_these_names(aws: Lambda, shared: str, name: str) -> None:
    alias = aws.client.create_alias(FunctionName=shared, Name=name, FunctionVersion="1")
    assert alias["AliasArn"] == f"{ARN}{shared}:{name}"
    aws.client.delete_alias(FunctionName=shared, Name=name)
