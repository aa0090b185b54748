"""Deployments beside each other, and over connections that break: change sets are executed or refused for a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from thawd.deploy.aws import change_sets
from thawd.deploy.aws.account import Access
from thawd.deploy.aws.artifact_bucket import ArtifactBucket
from thawd.deploy.aws.change_sets import ChangeSet, ChangeSetRequest
from thawd.deploy.aws.stack import DeploymentError
from thawd.deploy.aws.stack_deployment import AwsAccount

STACK, ID = "arn:stack/shop", "arn:changeSet/1"
NOTHING = lambda event: None  # noqa: E731
SET = ChangeSet(id=ID, stack_id=STACK, is_first=True)


class Stacks:
    """CloudFormation with one stack. Each answer can be replaced by an error.

    Attributes:
        status: the stack's status.
        sets: ids of its change sets.
        calls: names of the operations that were called, with their arguments.
        errors: called instead of an operation, by its name.
    """

    def __init__(self, status: str) -> None:
        self.status = status
        self.sets = [ID]
        self.set_status = "CREATE_COMPLETE"
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.errors: dict[str, Callable[[], None]] = {}
        self.events: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            self.calls.append((name, given))
            if name in self.errors:
                self.errors[name]()
            answers = {
                "create_change_set": {"Id": ID, "StackId": STACK},
                "describe_change_set": {"Status": self.set_status, "StatusReason": "an early validation failed"},
                "describe_stacks": {"Stacks": [{"StackStatus": self.status}]},
                "list_change_sets": {"Summaries": [{"ChangeSetId": each} for each in self.sets]},
            }
            return answers.get(name, {})

        return call

    def get_paginator(self, name: str) -> Stacks:
        return self

    def paginate(self, **given: Any) -> list[dict[str, Any]]:
        return [{"StackEvents": self.events}]

    def called(self) -> list[str]:
        return [name for name, _ in self.calls]


def account_of(stacks: Stacks) -> AwsAccount:
    account = AwsAccount(Access(region="us-east-1"))
    account._clients["cloudformation"] = stacks
    return account


def refused(code: str) -> Callable[[], None]:
    from botocore.exceptions import ClientError

    def fail() -> None:
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, "ExecuteChangeSet")

    return fail


@pytest.mark.parametrize(
    ("status", "others", "removed"),
    [
        ("REVIEW_IN_PROGRESS", [], True),
        ("REVIEW_IN_PROGRESS", ["arn:changeSet/theirs"], False),
        ("CREATE_IN_PROGRESS", [], False),
        ("CREATE_COMPLETE", [], False),
    ],
)
def test_a_refused_first_deployment_removes_the_stack_only_if_no_other_deployment_uses_it(
    status: str, others: list[str], removed: bool
) -> None:
    stacks = Stacks(status)
    stacks.sets, stacks.set_status = [ID, *others], "FAILED"
    request = ChangeSetRequest(stack="shop", text="{}", is_new=True, is_first=True)
    with pytest.raises(DeploymentError, match="an early validation failed"):
        change_sets.create(account_of(stacks), request)
    assert ("delete_stack" in stacks.called()) == removed


def test_a_change_set_whose_first_answer_was_lost_is_known_by_its_token() -> None:
    stacks = Stacks("CREATE_COMPLETE")

    def repeated() -> None:  # the first request was carried out; botocore has sent a second one
        [given] = [given for name, given in stacks.calls if name == "execute_change_set"]
        stacks.events = [
            {
                **{"EventId": "1", "LogicalResourceId": "shop", "ResourceType": "AWS::CloudFormation::Stack"},
                **{"ResourceStatus": "CREATE_IN_PROGRESS", "ClientRequestToken": given["ClientRequestToken"]},
            }
        ]
        refused("InvalidChangeSetStatus")()

    stacks.errors["execute_change_set"] = repeated
    assert change_sets.execute(account_of(stacks), "shop", SET, report=NOTHING) == ("CREATE_COMPLETE", [])


def test_a_change_set_that_another_deployment_has_made_void_is_refused() -> None:
    stacks = Stacks("UPDATE_COMPLETE")
    stacks.errors["execute_change_set"] = refused("InvalidChangeSetStatus")
    with pytest.raises(DeploymentError, match="another deployment of the stack shop began at the same time"):
        change_sets.execute(account_of(stacks), "shop", SET, report=NOTHING)


def test_a_connection_that_is_lost_during_the_change_does_not_read_as_a_failed_change() -> None:
    stacks = Stacks("UPDATE_IN_PROGRESS")

    def lost() -> None:
        from botocore.exceptions import EndpointConnectionError

        raise EndpointConnectionError(endpoint_url="https://cloudformation")

    stacks.errors["describe_stacks"] = lost
    with pytest.raises(DeploymentError, match="CloudFormation carries on with the change; thawd deploy aws status"):
        change_sets.execute(account_of(stacks), "shop", SET, report=NOTHING)


def test_a_bucket_that_another_deployment_makes_at_the_same_time_is_used() -> None:
    import boto3
    from botocore.stub import Stubber

    account = AwsAccount(Access(region="eu-west-1"))
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    for service in ("s3", "sts"):
        account._clients[service] = boto3.client(service, region_name="eu-west-1", **keys)
    with Stubber(account.client("sts")) as sts, Stubber(account.client("s3")) as s3:
        sts.add_response("get_caller_identity", {"Account": "123456789012"})
        s3.add_client_error("head_bucket", http_status_code=404)
        s3.add_client_error("create_bucket", service_error_code="BucketAlreadyOwnedByYou", http_status_code=409)
        ArtifactBucket(account).make()
        s3.assert_no_pending_responses()


def test_requests_that_may_be_sent_twice_have_tokens() -> None:
    stacks = Stacks("CREATE_COMPLETE")
    account = account_of(stacks)
    made = change_sets.create(account, ChangeSetRequest(stack="shop", text="{}", is_new=True, is_first=True))
    assert made == SET
    change_sets.execute(account, "shop", made, report=NOTHING)
    given = dict(stacks.calls)
    assert given["create_change_set"]["ClientToken"]
    assert given["execute_change_set"]["ClientRequestToken"]
