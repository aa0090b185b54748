"""Kinds of resources: what a template no longer has returns to its default, and what fails leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers import (
    functions,
    http_apis,
    log_groups,
    queues_and_topics,
    rest_apis,
)
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Wanted
from thawd.server.emulator.cloudformation.stack_records import Resource, Settings, Stack

KINDS: dict[str, Kind] = {
    **functions.KINDS,
    **http_apis.KINDS,
    **queues_and_topics.KINDS,
    **rest_apis.KINDS,
    **log_groups.KINDS,
}
QUEUE, STREAM = "arn:aws:sqs:us-east-1:1:q", "arn:aws:dynamodb:us-east-1:1:table/t/stream/1"


class Recorder(Aws):
    """Records the calls with their parameters.

    Args:
        answers: the answers, by method; others are empty.
        fails: the method that fails.
    """

    def __init__(self, answers: Mapping[str, dict[str, Any]] | None = None, fails: str = "") -> None:
        super().__init__(lambda service, **more: None)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answers, self._fails = answers or {}, fails

    def call(self, service: str, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append((method, dict(given)))
        if method == self._fails:
            raise ResourceError("not this one")
        return self._answers.get(method, {})


STACK = Stack("arn", "s", "1", "us-east-1", Settings("{}"), time.time(), "UPDATE_IN_PROGRESS")


def changed(kind: str, before: dict[str, Any], after: dict[str, Any], **facts: str) -> list[tuple[str, dict[str, Any]]]:
    resource = Resource("R", kind, physical_id="id", properties=before, facts=facts)
    aws, change = Recorder(), KINDS[kind].change
    assert change is not None
    change(aws, resource, Wanted(STACK, "R", kind, "name", after))
    return aws.calls


@pytest.mark.parametrize(
    ("source", "name", "value", "default"),
    [
        (QUEUE, "FilterCriteria", {"Filters": [{"Pattern": "{}"}]}, {"Filters": []}),
        (QUEUE, "Enabled", False, True),
        (QUEUE, "BatchSize", 1, 10),
        (QUEUE, "ScalingConfig", {"MaximumConcurrency": 2}, {}),
        (QUEUE, "FunctionResponseTypes", ["ReportBatchItemFailures"], []),
        (STREAM, "BatchSize", 1, 100),
        (STREAM, "MaximumRetryAttempts", 2, -1),
        (STREAM, "DestinationConfig", {"OnFailure": {"Destination": QUEUE}}, {"OnFailure": {}}),
    ],
)
def test_a_setting_of_a_mapping_that_is_removed_returns_to_its_default(
    source: str, name: str, value: Any, default: Any
) -> None:
    common = {"EventSourceArn": source, "FunctionName": "f"}
    [(method, given)] = changed("AWS::Lambda::EventSourceMapping", {**common, name: value}, common)
    assert (method, given) == ("update_event_source_mapping", {"UUID": "id", "FunctionName": "f", name: default})
    [(_, given)] = changed("AWS::Lambda::EventSourceMapping", common, {**common, name: value})
    assert given[name] == value


def test_a_functions_url_without_mode_and_cors_is_buffered_and_has_none() -> None:
    common = {"TargetFunctionArn": "f", "AuthType": "NONE"}
    more = {"InvokeMode": "RESPONSE_STREAM", "Cors": {"AllowOrigins": ["*"]}}
    [(_, given)] = changed("AWS::Lambda::Url", {**common, **more}, common)
    assert (given["InvokeMode"], given["Cors"]) == ("BUFFERED", {})


def test_an_http_api_loses_its_cors_configuration_and_a_route_its_authorizer() -> None:
    calls = changed(
        "AWS::ApiGatewayV2::Api", {"Name": "a", "CorsConfiguration": {"AllowOrigins": ["*"]}}, {"Name": "a"}
    )
    assert ("delete_cors_configuration", {"ApiId": "id"}) in calls
    route = {"ApiId": "api", "RouteKey": "GET /"}
    secured = {**route, "AuthorizationType": "JWT", "AuthorizerId": "a", "AuthorizationScopes": ["s"]}
    [(_, given)] = changed("AWS::ApiGatewayV2::Route", secured, route)
    assert (given["AuthorizationType"], given["AuthorizationScopes"]) == ("NONE", [])


def test_a_rest_api_gets_another_policy_and_loses_binary_types() -> None:
    before = {"Name": "a", "Policy": {"Statement": [1]}, "BinaryMediaTypes": ["image/png", "image/gif"]}
    patches = [
        patch
        for _, given in changed("AWS::ApiGateway::RestApi", before, {"Name": "a", "BinaryMediaTypes": ["image/png"]})
        for patch in given["patchOperations"]
    ]
    assert {"op": "replace", "path": "/policy", "value": ""} in patches
    assert {"op": "remove", "path": "/binaryMediaTypes/image~1gif"} in patches
    after = {**before, "Policy": {"Statement": [2]}}
    [(_, given)] = changed("AWS::ApiGateway::RestApi", before, after)
    assert {"op": "replace", "path": "/policy", "value": '{"Statement": [2]}'} in given["patchOperations"]


def test_a_fifo_queue_no_longer_deduplicates_by_content() -> None:
    fifo = {"FifoQueue": True}
    calls = changed("AWS::SQS::Queue", {**fifo, "ContentBasedDeduplication": True}, fifo)
    assert ("set_queue_attributes", {"QueueUrl": "id", "Attributes": {"ContentBasedDeduplication": "false"}}) in calls


SUBSCRIPTION = {"TopicArn": "t", "Protocol": "sqs", "Endpoint": QUEUE, "FilterPolicy": {"a": "no list"}}


@pytest.mark.parametrize(
    ("kind", "properties", "fails", "undone"),
    [
        ("AWS::SNS::Subscription", SUBSCRIPTION, "set_subscription_attributes", "unsubscribe"),
        (
            "AWS::Lambda::Alias",
            {
                "FunctionName": "f",
                "Name": "live",
                "ProvisionedConcurrencyConfig": {"ProvisionedConcurrentExecutions": 1},
            },
            "put_provisioned_concurrency_config",
            "delete_alias",
        ),
        ("AWS::Logs::LogGroup", {"RetentionInDays": 2}, "put_retention_policy", "delete_log_group"),
        ("AWS::ApiGateway::RestApi", {"Body": {}, "BinaryMediaTypes": ["a/b"]}, "update_rest_api", "delete_rest_api"),
    ],
)
def test_a_resource_whose_settings_are_refused_is_not_left_behind(
    kind: str, properties: dict[str, Any], fails: str, undone: str
) -> None:
    answers = {
        "create_alias": {"AliasArn": "arn"},
        "import_rest_api": {"id": "1", "rootResourceId": "2"},
        "list_subscriptions_by_topic": {"Subscriptions": []},
        "subscribe": {"SubscriptionArn": "sub"},
    }
    aws = Recorder(answers, fails)
    with pytest.raises(ResourceError, match="not this one"):
        KINDS[kind].make(aws, Wanted(STACK, "R", kind, "name", properties))
    assert undone in [method for method, _ in aws.calls]


def test_a_subscription_that_was_there_before_stays() -> None:
    there = {"Subscriptions": [{"SubscriptionArn": "sub"}]}
    answers = {"list_subscriptions_by_topic": there, "subscribe": {"SubscriptionArn": "sub"}}
    aws = Recorder(answers, "set_subscription_attributes")
    with pytest.raises(ResourceError):
        KINDS["AWS::SNS::Subscription"].make(aws, Wanted(STACK, "R", "AWS::SNS::Subscription", "name", SUBSCRIPTION))
    assert "unsubscribe" not in [method for method, _ in aws.calls]


def test_an_interrupted_mapping_is_found_again_and_an_older_one_of_the_same_queue_stays() -> None:
    begun_s = 1_700_000_000.0
    listed = [
        {"UUID": "old", "LastModified": datetime.fromtimestamp(begun_s - 60, UTC)},
        {"UUID": "ours", "LastModified": datetime.fromtimestamp(begun_s + 2, UTC)},
    ]
    aws = Recorder({"list_event_source_mappings": {"EventSourceMappings": listed}})
    kind, properties = "AWS::Lambda::EventSourceMapping", {"FunctionName": "f", "EventSourceArn": QUEUE}
    KINDS[kind].delete(aws, Resource("R", kind, properties=properties, facts={"begun_s": begun_s}))
    assert [given for method, given in aws.calls if method.startswith("delete")] == [{"UUID": "ours"}]
