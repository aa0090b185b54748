"""`thawd up --aws`: what the emulator does not have, and what fails inside it, is an error that clients can read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import botocore.exceptions
import pytest

from tests.clients import client_of
from tests.integration.conftest import Project, Running

# By protocol: a service, an operation that moto does not have, and parameters.
UNKNOWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "json 1.0": ("sqs", "start_message_move_task", {"SourceArn": "arn:aws:sqs:us-east-1:000000000000:q"}),
    "json 1.1": ("events", "list_endpoints", {}),
    "query": ("sns", "list_origination_numbers", {}),
    "ec2": ("ec2", "describe_capacity_block_status", {}),
    "rest-json": ("apigateway", "get_sdk_types", {}),
    "rest-xml": ("route53", "get_health_check_count", {}),
    "a service that moto does not have": ("braket", "search_devices", {"filters": []}),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("errors"))
    project.config("")
    with project.up("--aws") as served:
        yield served


@pytest.mark.parametrize("kind", UNKNOWN)
def test_an_operation_that_the_emulator_does_not_have_is_an_error_that_is_not_tried_again(
    running: Running, kind: str
) -> None:
    service, operation, parameters = UNKNOWN[kind]
    with pytest.raises(botocore.exceptions.ClientError) as raised:
        getattr(client_of(running.url, service, retries=None), operation)(**parameters)
    answer = raised.value.response
    assert answer["Error"]["Code"] == "NotImplemented"
    assert answer["Error"]["Message"].startswith("The emulator of thawd has no ")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 501
    assert answer["ResponseMetadata"]["RetryAttempts"] == 0


def test_a_failure_inside_the_emulator_is_an_error_without_a_traceback_and_the_console_says_where(
    running: Running,
) -> None:
    client = client_of(running.url, "events", retries=None)
    client.meta.events.register("before-call", lambda params, **_: params.update(body=b'{"Rule": "x"}'))
    with pytest.raises(botocore.exceptions.ClientError) as raised:
        client.put_targets(Rule="x", Targets=[{"Id": "1", "Arn": "arn:aws:sqs:us-east-1:000000000000:q"}])
    answer = raised.value.response
    assert answer["Error"]["Code"] == "InternalFailure"
    assert "TypeError" in answer["Error"]["Message"]
    assert "Traceback" not in answer["Error"]["Message"]
    assert answer["ResponseMetadata"]["RetryAttempts"] == 0
    running.until_said("events:PutTargets failed inside the emulator: TypeError")


def test_errors_of_services_keep_their_names(running: Running) -> None:
    for service, operation, parameters, code in (
        ("s3", "get_object", {"Bucket": "absent", "Key": "k"}, "NoSuchBucket"),
        ("sqs", "get_queue_url", {"QueueName": "absent"}, "AWS.SimpleQueueService.NonExistentQueue"),
        (
            "stepfunctions",
            "create_state_machine",
            {"name": "m", "definition": "{}", "roleArn": "r"},
            "InvalidDefinition",
        ),
        ("dynamodb", "describe_table", {"TableName": "absent"}, "ResourceNotFoundException"),
    ):
        with pytest.raises(botocore.exceptions.ClientError) as raised:
            getattr(client_of(running.url, service, retries=None), operation)(**parameters)
        assert raised.value.response["Error"]["Code"] == code
