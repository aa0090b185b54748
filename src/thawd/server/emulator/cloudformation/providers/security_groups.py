"""Makes the rules for traffic out of security groups, which moto's classes do not have.

Source: CloudFormation template reference, "AWS::EC2::SecurityGroupEgress".
"""

from __future__ import annotations

from typing import Any

from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted

Properties = dict[str, Any]


def _given(properties: Properties) -> Properties:
    rule: Properties = {name: properties[name] for name in ("IpProtocol", "FromPort", "ToPort") if name in properties}
    if "CidrIp" in properties:
        rule["IpRanges"] = [{"CidrIp": properties["CidrIp"]}]
    if "CidrIpv6" in properties:
        rule["Ipv6Ranges"] = [{"CidrIpv6": properties["CidrIpv6"]}]
    if "DestinationSecurityGroupId" in properties:
        rule["UserIdGroupPairs"] = [{"GroupId": properties["DestinationSecurityGroupId"]}]
    if "DestinationPrefixListId" in properties:
        rule["PrefixListIds"] = [{"PrefixListId": properties["DestinationPrefixListId"]}]
    return {"GroupId": properties["GroupId"], "IpPermissions": [rule]}


def _make(aws: Aws, wanted: Wanted) -> Made:
    given = _given(wanted.properties)
    aws.call("ec2", "authorize_security_group_egress", given)
    return Made(wanted.name, {"Id": wanted.name}, given)


KINDS: dict[str, Kind] = {
    "AWS::EC2::SecurityGroupEgress": Kind(
        _make, lambda aws, resource: aws.remove("ec2", "revoke_security_group_egress", resource.facts)
    )
}
"""The kinds of rules of security groups, by type."""
