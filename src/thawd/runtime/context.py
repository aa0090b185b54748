"""The context object a handler receives as its second argument: its class, and how one is made for an invocation.

Source: AWS Lambda developer guide, "Using the Lambda context object to retrieve Python function information".
"""

import json
import os
import sys
import time
from typing import Any, Dict, Optional, Tuple

# Values from environment variables, read once at the first invocation, because os.environ takes 1 us for each name.
_facts: Tuple[str, ...] = ()


def _read_facts() -> Tuple[str, ...]:
    global _facts  # noqa: PLW0603 - a process is one environment
    names = ("FUNCTION_NAME", "FUNCTION_VERSION", "FUNCTION_MEMORY_SIZE", "LOG_GROUP_NAME", "LOG_STREAM_NAME")
    _facts = tuple(os.environ.get("AWS_LAMBDA_" + name, "") for name in names)
    return _facts


def forget_environment() -> None:
    """Read the environment variables again at the next invocation, because a copy of this process has other values."""
    global _facts  # noqa: PLW0603
    _facts = ()


class CognitoIdentity:
    """Identity of the caller when it uses Amazon Cognito; thawd always leaves it empty."""

    __slots__ = ("cognito_identity_id", "cognito_identity_pool_id")

    def __init__(self) -> None:
        self.cognito_identity_id: Optional[str] = None
        self.cognito_identity_pool_id: Optional[str] = None


class Client:
    """The calling application, as described by AWS's SDK for mobile apps."""

    __slots__ = ("app_package_name", "app_title", "app_version_code", "app_version_name", "installation_id")

    def __init__(self, described: Dict[str, Any]) -> None:
        for name in self.__slots__:
            setattr(self, name, described.get(name))


class ClientContext:
    """The content of the caller's ``X-Amz-Client-Context`` header.

    Attributes:
        custom: values set by the calling application.
        env: values set by the AWS SDK.
        client: the calling application, or None.
    """

    __slots__ = ("client", "custom", "env")

    def __init__(self, described: Dict[str, Any]) -> None:
        self.custom = described.get("custom")
        self.env = described.get("env")
        client = described.get("client")
        self.client = Client(client) if isinstance(client, dict) else None


class LambdaContext:
    """Facts about one invocation.

    Attributes:
        memory_limit_in_mb: a string, as on Lambda.
        invoked_function_arn: the ARN by which the function was called.
        tenant_id: the tenant that the invocation names; None if the function does not separate tenants.
    """

    def __init__(
        self,
        request_id: str,
        *,
        arn: str,
        deadline_s: float,
        client_context: Optional[str],
        tenant_id: Optional[str] = None,
    ) -> None:
        self.aws_request_id = request_id
        self.invoked_function_arn = arn
        (
            self.function_name,
            self.function_version,
            self.memory_limit_in_mb,
            self.log_group_name,
            self.log_stream_name,
        ) = _facts or _read_facts()
        self.tenant_id = tenant_id
        self.identity = CognitoIdentity()
        self.client_context = ClientContext(json.loads(client_context)) if client_context else None
        self._deadline_s = deadline_s

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the invocation times out, at least 0. Changing the system clock has no effect."""
        return max(0, int((self._deadline_s - time.monotonic()) * 1000))

    def log(self, message: Any) -> None:
        """Write `message` to the function's log unchanged; no newline is added."""
        sys.stdout.write(str(message))

    def __repr__(self) -> str:
        return "LambdaContext([aws_request_id=%s,function_name=%s,function_version=%s,invoked_function_arn=%s])" % (
            self.aws_request_id,
            self.function_name,
            self.function_version,
            self.invoked_function_arn,
        )


def context_of(head: Any, *, now_s: float) -> LambdaContext:
    """The context object for the invocation that an INVOKE frame with the head `head` begins at `now_s`."""
    deadline_s = now_s + head["left_ms"] / 1000
    return LambdaContext(
        head["id"],
        arn=head["arn"],
        deadline_s=deadline_s,
        client_context=head.get("client"),
        tenant_id=head.get("tenant"),
    )
