"""Event source mappings through boto3.

The queues do not exist: operations on a mapping do not depend on whether its queue can be read.

Source: AWS Lambda API reference, CreateEventSourceMapping and the related operations.
"""

from __future__ import annotations

import itertools
import urllib.request
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.conftest import eventually

from .conftest import Lambda

ARN = "arn:aws:lambda:us-east-1:000000000000:"
_numbers = itertools.count(1)


def queue(suffix: str = "") -> str:
    """Return the ARN of a queue that no other test uses."""
    return f"arn:aws:sqs:us-east-1:000000000000:queue{next(_numbers)}{suffix}"


def settled(aws: Lambda, uuid: str) -> dict[str, Any]:
    """Wait until no update of the mapping is in progress, and return the mapping."""

    def found() -> dict[str, Any] | None:
        mapping = dict(aws.client.get_event_source_mapping(UUID=uuid))
        return mapping if mapping["State"] in ("Enabled", "Disabled") else None

    return eventually(found, what="the end of the change")  # type: ignore[no-any-return]


def make(aws: Lambda, **parameters: Any) -> dict[str, Any]:
    given = {"FunctionName": "shared", "EventSourceArn": queue(), "Enabled": False, **parameters}
    return settled(aws, aws.client.create_event_source_mapping(**given)["UUID"])


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    response = error.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def test_a_mapping_is_made_with_lambdas_defaults(aws: Lambda, shared: str) -> None:
    arn = queue()
    made = aws.client.create_event_source_mapping(FunctionName=shared, EventSourceArn=arn)
    assert made.pop("ResponseMetadata")["HTTPStatusCode"] == 202
    uuid, modified = made.pop("UUID"), made.pop("LastModified")
    assert made == {
        "BatchSize": 10,
        "MaximumBatchingWindowInSeconds": 0,
        "EventSourceArn": arn,
        "EventSourceMappingArn": f"{ARN}event-source-mapping:{uuid}",
        "FunctionArn": f"{ARN}function:{shared}",
        "FunctionResponseTypes": [],
        "State": "Creating",
        "StateTransitionReason": "USER_INITIATED",
    }
    found = settled(aws, uuid)
    assert (found["State"], found["LastModified"]) == ("Enabled", modified)
    aws.client.delete_event_source_mapping(UUID=uuid)


def test_all_settings_of_a_queue_are_kept_and_changed(aws: Lambda, shared: str) -> None:
    pattern = {"Filters": [{"Pattern": '{"body": {"kind": ["order"]}}'}]}
    made = make(
        aws,
        FunctionName=f"{shared}:live",
        BatchSize=500,
        MaximumBatchingWindowInSeconds=20,
        FilterCriteria=pattern,
        ScalingConfig={"MaximumConcurrency": 5},
        FunctionResponseTypes=["ReportBatchItemFailures"],
        MetricsConfig={"Metrics": ["EventCount"]},
    )
    assert (made["FunctionArn"], made["State"]) == (f"{ARN}function:{shared}:live", "Disabled")
    assert (made["BatchSize"], made["MaximumBatchingWindowInSeconds"]) == (500, 20)
    assert (made["FilterCriteria"], made["ScalingConfig"]) == (pattern, {"MaximumConcurrency": 5})
    assert made["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    updated = aws.client.update_event_source_mapping(
        UUID=made["UUID"],
        FunctionName=shared,
        BatchSize=5,
        FilterCriteria={"Filters": []},
        ScalingConfig={},
        FunctionResponseTypes=[],
    )
    assert updated["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert updated["State"] == "Updating"
    found = settled(aws, made["UUID"])
    assert (found["BatchSize"], found["MaximumBatchingWindowInSeconds"]) == (5, 20)
    assert (found["FunctionArn"], found["FunctionResponseTypes"]) == (f"{ARN}function:{shared}", [])
    assert not {"FilterCriteria", "ScalingConfig"} & set(found)
    assert found["LastModified"] > made["LastModified"]
    aws.client.delete_event_source_mapping(UUID=made["UUID"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"BatchSize": 50}, "Maximum batch window"),
        ({"FilterCriteria": {"Filters": [{"Pattern": "x"}]}}, "filter pattern"),
    ],
)
def test_an_update_that_is_refused_changes_nothing(aws: Lambda, wrong: dict[str, Any], words: str) -> None:
    made = make(aws)
    with pytest.raises(ClientError) as error:
        aws.client.update_event_source_mapping(UUID=made["UUID"], **wrong)
    assert code_of(error) == ("InvalidParameterValueException", 400)
    assert words in error.value.response["Error"]["Message"]
    found = settled(aws, made["UUID"])
    assert {**found, "ResponseMetadata": 0} == {**made, "ResponseMetadata": 0}
    aws.client.delete_event_source_mapping(UUID=made["UUID"])


def test_a_mapping_is_enabled_and_disabled(aws: Lambda) -> None:
    made = make(aws)
    changed = aws.client.update_event_source_mapping(UUID=made["UUID"], Enabled=True)
    assert changed["State"] == "Enabling"
    assert settled(aws, made["UUID"])["State"] == "Enabled"
    changed = aws.client.update_event_source_mapping(UUID=made["UUID"], Enabled=False)
    assert changed["State"] == "Disabling"
    assert settled(aws, made["UUID"])["State"] == "Disabled"
    aws.client.delete_event_source_mapping(UUID=made["UUID"])


def test_a_queue_has_one_mapping_to_a_function(aws: Lambda, shared: str) -> None:
    made = make(aws)
    with pytest.raises(ClientError) as error:
        make(aws, EventSourceArn=made["EventSourceArn"])
    assert code_of(error) == ("ResourceConflictException", 409)
    assert made["UUID"] in error.value.response["Error"]["Message"]
    other = make(aws, EventSourceArn=made["EventSourceArn"], FunctionName=f"{shared}:live")
    with pytest.raises(ClientError) as error:
        aws.client.update_event_source_mapping(UUID=other["UUID"], FunctionName=shared)
    assert code_of(error) == ("ResourceConflictException", 409)
    for one in (made, other):
        aws.client.delete_event_source_mapping(UUID=one["UUID"])


def test_a_deleted_mapping_is_shown_as_that_and_then_gone(aws: Lambda) -> None:
    made = make(aws)
    deleted = aws.client.delete_event_source_mapping(UUID=made["UUID"])
    assert (deleted["ResponseMetadata"]["HTTPStatusCode"], deleted["State"]) == (202, "Deleting")

    def is_gone() -> bool:
        try:
            aws.client.get_event_source_mapping(UUID=made["UUID"])
        except ClientError as error:
            return error.response["Error"]["Code"] == "ResourceNotFoundException"
        return False

    eventually(is_gone, what="its end")


def test_mappings_are_listed_by_function_by_queue_and_in_pages(aws: Lambda, shared: str) -> None:
    name = aws.create()
    arn = queue()
    made = [make(aws, FunctionName=name, EventSourceArn=each)["UUID"] for each in (arn, queue(), queue())]
    other = make(aws, EventSourceArn=arn)["UUID"]

    def listed(**parameters: Any) -> set[str]:
        return {one["UUID"] for one in aws.client.list_event_source_mappings(**parameters)["EventSourceMappings"]}

    assert listed(FunctionName=name) == set(made)
    assert listed(FunctionName=f"{ARN}function:{name}") == set(made)
    assert listed(EventSourceArn=arn) == {made[0], other}
    assert listed(EventSourceArn=arn, FunctionName=name) == {made[0]}
    assert listed(FunctionName=f"{shared}:live") == set()
    pages = aws.client.get_paginator("list_event_source_mappings")
    found = [
        page["EventSourceMappings"] for page in pages.paginate(FunctionName=name, PaginationConfig={"PageSize": 2})
    ]
    assert [len(page) for page in found] == [2, 1]
    assert {one["UUID"] for page in found for one in page} == set(made)
    for uuid in (*made, other):
        aws.client.delete_event_source_mapping(UUID=uuid)


def test_a_mapping_has_tags(aws: Lambda) -> None:
    made = make(aws, Tags={"team": "vision", "stage": "test"})
    arn = made["EventSourceMappingArn"]
    aws.client.tag_resource(Resource=arn, Tags={"team": "audio"})
    aws.client.untag_resource(Resource=arn, TagKeys=["stage"])
    assert aws.client.list_tags(Resource=arn)["Tags"] == {"team": "audio"}
    aws.client.delete_event_source_mapping(UUID=made["UUID"])
    with pytest.raises(ClientError) as error:
        aws.client.list_tags(Resource=arn)
    assert code_of(error) == ("ResourceNotFoundException", 404)


def test_a_mapping_outlives_its_function_and_says_what_is_wrong(aws: Lambda) -> None:
    name = aws.create()
    made = make(aws, FunctionName=name, Enabled=True)
    aws.client.delete_function(FunctionName=name)
    # AWS shows no last result for a queue, so thawd tells it in its own list of sources.
    sources = f"{aws.running.url}/_thawd/sources"

    def last_results() -> str:
        with urllib.request.urlopen(sources, timeout=30) as answer:
            return str(answer.read())

    eventually(lambda: "Function not found" in last_results(), what="the word of it")
    assert "LastProcessingResult" not in settled(aws, made["UUID"])
    aws.client.delete_event_source_mapping(UUID=made["UUID"])
