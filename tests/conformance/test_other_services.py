"""Services of AWS that a server without ``--aws`` does not have: each client can read why, whatever its protocol."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import Lambda

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
