"""Networks that functions name in ``VpcConfig``: only the emulator of ``--aws`` has any, and functions are not in them.

Source: Amazon EC2 API reference, DescribeSubnets and DescribeSecurityGroups; error texts as AWS Lambda sends them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from thawd.errors import InvalidParameterValueException, ServiceException
from thawd.resources import REGION
from thawd.sources.aws_calls import Endpoint, SourceError, explained, in_thread, make_client

_ANSWER_S = 10.0
# The id in an error's text, and what boto3 puts before the text.
_ID = re.compile(r"\b(?:sg|subnet)-[0-9a-zA-Z]+")
_WORDS = re.compile(r"^An error occurred \([\w.]+\) when calling the \w+ operation(?: \(reached max retries: \d+\))?: ")
_COEXIST = "SubnetIds and SecurityIds must coexist or be both empty list."


class Networks:
    """Looks up subnets and security groups.

    Args:
        endpoint: the emulator of AWS; None: there is none, so no subnet exists.
    """

    def __init__(self, endpoint: Endpoint | None) -> None:
        self._endpoint = endpoint
        self._client: Any = None

    async def find(self, subnets: Sequence[str], groups: Sequence[str]) -> str:
        """The id of the VPC that the subnets belong to; empty if there are neither subnets nor groups.

        Raises:
            InvalidParameterValueException: a security group or a subnet does not exist (400).
            ServiceException: the emulator does not answer (500).
        """
        if not subnets and not groups:
            return ""
        if not subnets or not groups:
            raise InvalidParameterValueException(_COEXIST)
        if self._endpoint is None:
            raise _no_group(groups[0])
        try:
            return await in_thread(lambda: self._look_up(subnets, groups))
        except SourceError as error:
            raise ServiceException(f"The networks of the function cannot be looked up: {error}") from error

    def _look_up(self, subnets: Sequence[str], groups: Sequence[str]) -> str:
        if self._client is None:
            self._client = make_client(
                "ec2", region=REGION, endpoint=self._endpoint, answer_s=_ANSWER_S, connections=10
            )
        self._describe("DescribeSecurityGroups", lambda: self._client.describe_security_groups(GroupIds=list(groups)))
        found = self._describe("DescribeSubnets", lambda: self._client.describe_subnets(SubnetIds=list(subnets)))
        return str(found["Subnets"][0]["VpcId"])

    def _describe(self, operation: str, call: Any) -> Any:
        try:
            return explained(call)
        except SourceError as error:
            if not error.code:
                raise
            named = _ID.search(str(error))
            what = "security group" if operation == "DescribeSecurityGroups" else "subnet ID"
            message = _WORDS.sub("", str(error)) if named is None else f"The {what} '{named[0]}' does not exist"
            raise InvalidParameterValueException(
                f"Error occurred while {operation}. EC2 Error Code: {error.code}. EC2 Error Message: {message}"
            ) from error


def _no_group(group: str) -> InvalidParameterValueException:
    return InvalidParameterValueException(
        "Error occurred while DescribeSecurityGroups. EC2 Error Code: InvalidGroup.NotFound. EC2 Error Message: The "
        f"security group '{group}' does not exist"
    )
