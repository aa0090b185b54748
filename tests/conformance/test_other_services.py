"""Services of AWS that a server without ``--aws`` does not have: each client can read why, whatever its protocol."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore import UNSIGNED as UNSIGNED_VERSION
from botocore.config import Config
from botocore.exceptions import ClientError

from .conftest import Lambda

UNSIGNED = Config(signature_version=UNSIGNED_VERSION, retries={"total_max_attempts": 1})

CALLS = [
    ("apigateway", "get_rest_apis", {}),
    ("cloudformation", "describe_stacks", {"StackName": "f"}),
    ("dynamodb", "list_tables", {}),
    ("ec2", "describe_vpcs", {}),
    ("events", "list_rules", {}),
    ("route53", "list_hosted_zones", {}),
    ("sns", "list_topics", {}),
    ("sqs", "list_queues", {}),
    ("sts", "get_caller_identity", {}),
]


@pytest.mark.parametrize(("service", "operation", "asked"), CALLS)
def test_a_service_that_needs_the_emulator_is_refused_in_its_protocol(
    aws: Lambda, service: str, operation: str, asked: dict[str, Any]
) -> None:
    with pytest.raises(ClientError) as refused:
        getattr(aws.make_client(service), operation)(**asked)
    answer = refused.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == ("NotImplemented", 501)
    assert f"does not serve {service}; `thawd up --aws` serves it" in answer["Error"]["Message"]
    assert answer["ResponseMetadata"]["RequestId"]


@pytest.mark.parametrize(("service", "operation"), [("cloudformation", "list_stacks"), ("dynamodb", "list_tables")])
def test_an_unsigned_request_for_such_a_service_is_refused_in_its_protocol(
    aws: Lambda, service: str, operation: str
) -> None:
    client = boto3.client(service, endpoint_url=aws.running.url, region_name="us-east-1", config=UNSIGNED)
    with pytest.raises(ClientError, match=r"does not serve this service of AWS; `thawd up --aws`") as refused:
        getattr(client, operation)()
    assert refused.value.response["Error"]["Code"] == "NotImplemented"


def test_an_operation_on_alarms_names_the_emulator(aws: Lambda) -> None:
    with pytest.raises(ClientError, match=r"DescribeAlarms; `thawd up --aws` passes it on"):
        aws.make_client("cloudwatch").describe_alarms()
