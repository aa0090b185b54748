"""`thawd.server.assembly.networks`: subnets and security groups that functions name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from thawd.errors import InvalidParameterValueException, ServiceException
from thawd.server.assembly.networks import Networks
from thawd.sources.aws_calls import Endpoint


class Ec2:
    """Stands in for boto3's client."""

    def __init__(self, *, is_down: bool = False) -> None:
        self.is_down = is_down

    def describe_security_groups(self, *, GroupIds: list[str]) -> Any:  # noqa: N803 - boto3's name
        if self.is_down:
            raise EndpointConnectionError(endpoint_url="http://127.0.0.1:9")
        for group in set(GroupIds) - {"sg-1"}:
            message = f"The security group '{{'{group}'}}' does not exist"  # as the emulator words it
            self._refuse("InvalidGroup.NotFound", message, "DescribeSecurityGroups")

    def describe_subnets(self, *, SubnetIds: list[str]) -> Any:  # noqa: N803 - boto3's name
        for subnet in set(SubnetIds) - {"subnet-1"}:
            self._refuse("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist", "DescribeSubnets")
        return {"Subnets": [{"VpcId": "vpc-1"}]}

    def _refuse(self, code: str, message: str, operation: str) -> None:
        raise ClientError({"Error": {"Code": code, "Message": message}}, operation)


def networks(**changed: Any) -> Networks:
    made = Networks(Endpoint("http://127.0.0.1:9"))
    made._client = Ec2(**changed)
    return made


def refusal(made: Networks, subnets: list[str], groups: list[str]) -> str:
    with pytest.raises(InvalidParameterValueException) as refused:
        asyncio.run(made.find(subnets, groups))
    return refused.value.message


# Source: observed on AWS


def test_a_network_that_exists_has_a_vpc() -> None:
    assert asyncio.run(networks().find(["subnet-1"], ["sg-1"])) == "vpc-1"
    assert asyncio.run(Networks(None).find([], [])) == "", "no network is asked for"


def test_an_absent_group_is_told_first_and_then_an_absent_subnet() -> None:
    words = "Error occurred while {}. EC2 Error Code: {}. EC2 Error Message: {}"
    for subnets in (["subnet-1"], ["subnet-2"]):
        assert refusal(networks(), subnets, ["sg-2"]) == words.format(
            "DescribeSecurityGroups", "InvalidGroup.NotFound", "The security group 'sg-2' does not exist"
        )
    assert refusal(networks(), ["subnet-2"], ["sg-1"]) == words.format(
        "DescribeSubnets", "InvalidSubnetID.NotFound", "The subnet ID 'subnet-2' does not exist"
    )


def test_without_an_emulator_nothing_exists() -> None:
    assert "The security group 'sg-1' does not exist" in refusal(Networks(None), ["subnet-1"], ["sg-1"])


def test_subnets_and_groups_go_together() -> None:
    for subnets, groups in ((["subnet-1"], []), ([], ["sg-1"])):
        assert "must coexist" in refusal(networks(), subnets, groups)


def test_an_emulator_that_does_not_answer_is_a_failure_of_the_server() -> None:
    with pytest.raises(ServiceException, match="cannot be looked up"):
        asyncio.run(networks(is_down=True).find(["subnet-1"], ["sg-1"]))
