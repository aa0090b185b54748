"""Makes moto's own Lambda service find and invoke thawd's functions. Runs in the emulator's own process.

Other services of moto use it: Secrets Manager invokes the function that rotates a secret, and SES and AWS Config check
whether a function exists. Without this module, moto's Lambda service has no functions.

Source: AWS Secrets Manager user guide, "Lambda rotation functions".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Connect = Callable[..., Any]


def install(connect: Connect) -> None:
    """Change ``moto.awslambda.models`` so that its backends find and invoke thawd's functions.

    Args:
        connect: returns a boto3 client for thawd's Lambda API. With ``is_patient``, the client waits for the longest
            invocations and does not retry.
    """
    from moto.awslambda.models import LambdaBackend

    def get_function(backend: Any, function_name_or_arn: str, qualifier: str | None = None) -> _Function:
        found = _configuration(connect, function_name_or_arn, qualifier)
        return _Function(connect, found["FunctionArn"])

    def invoke(
        backend: Any, function_name: str, qualifier: str | None, body: Any, headers: Any, response_headers: Any
    ) -> bytes:
        name = function_name if qualifier is None else f"{function_name}:{qualifier}"
        return _Function(connect, name).invoke(body, headers, response_headers)

    setattr(LambdaBackend, "get_function", get_function)  # noqa: B010 - mypy forbids to assign to a method
    setattr(LambdaBackend, "invoke", invoke)  # noqa: B010


def _configuration(connect: Connect, name: str, qualifier: str | None) -> dict[str, Any]:
    from moto.awslambda.exceptions import UnknownFunctionException

    client = connect()
    more = {} if qualifier is None else {"Qualifier": qualifier}
    try:
        found: dict[str, Any] = client.get_function_configuration(FunctionName=name, **more)
    except client.exceptions.ClientError as error:
        raise UnknownFunctionException(name) from error
    return found


class _Function:
    """A function of thawd, as moto's services see it.

    Attributes:
        function_arn: its ARN, or its name.
    """

    def __init__(self, connect: Connect, function_arn: str) -> None:
        self._connect = connect
        self.function_arn = function_arn

    def invoke(self, body: Any, request_headers: Any, response_headers: Any) -> bytes:
        """Invoke the function and return its answer.

        Raises:
            JsonRESTError: the function failed (400). moto then does not continue, for example with a secret's rotation.
        """
        from moto.core.exceptions import JsonRESTError

        payload = body if isinstance(body, bytes) else str(body or "{}").encode()
        answer = self._connect(is_patient=True).invoke(FunctionName=self.function_arn, Payload=payload)
        content: bytes = answer["Payload"].read()
        if "FunctionError" in answer:
            error = json.loads(content)
            text = f"{error.get('errorType')}: {error.get('errorMessage')}"
            raise JsonRESTError("InvalidRequestException", f"The function {self.function_arn} failed: {text}")
        return content
