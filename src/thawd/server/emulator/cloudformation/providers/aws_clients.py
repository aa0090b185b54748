"""Calls operations of AWS's services at thawd's address with values of a template.

Source: CloudFormation template reference, whose properties are, for most types, the parameters of the service's API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thawd.server.emulator import template_values

# Error codes of several services for a resource that does not exist any more.
_GONE = frozenset(
    {
        "ResourceNotFoundException",
        "NotFoundException",
        "NoSuchEntity",
        "NoSuchBucket",
        "NoSuchBucketPolicy",
        "NoSuchTagSet",
        "404",
        "ParameterNotFound",
        "NotFound",
        "QueueDoesNotExist",
        "AWS.SimpleQueueService.NonExistentQueue",
        "NoSuchHostedZone",
        "StateMachineDoesNotExist",
        "RepositoryNotFoundException",
    }
)

Properties = dict[str, Any]


def is_unreachable(error: BaseException) -> bool:
    """Return whether the service could not be reached, or did not answer. It may have carried out the request."""
    from botocore.exceptions import ConnectionError as NoConnection
    from botocore.exceptions import HTTPClientError

    return isinstance(error, HTTPClientError | NoConnection)


def may_have_worked(error: BaseException) -> bool:
    """Return whether the request that failed with `error` may have been carried out."""
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) >= 500
    return is_unreachable(error)


class Aws:
    """Clients for AWS's services at thawd's address.

    Args:
        connect: returns a boto3 client by the name of the service; with ``is_patient``, the client waits for the
            longest invocations and does not retry, because a retry could find the result of the first attempt.
    """

    def __init__(self, connect: Callable[..., Any]) -> None:
        self._connect = connect

    def client(self, service: str) -> Any:
        """Return a boto3 client. Raises RuntimeError while thawd starts."""
        return self._connect(service, is_patient=True)

    def call(self, service: str, method: str, given: Mapping[str, Any]) -> Properties:
        """Call an operation, without values that are None or that the operation does not have.

        Args:
            service: boto3's name of the service.
            method: boto3's name of the operation.
            given: values of a template, which may be texts where the operation has numbers or truth values.

        Raises:
            ClientError: the service refuses.
        """
        client = self.client(service)
        operation = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method])
        shape = operation.input_shape
        known = shape.members if shape is not None else {}
        values = {name: value for name, value in given.items() if value is not None and name in known}
        answer: Properties = getattr(client, method)(**template_values.fitted(shape, values) if values else {})
        return answer

    def remove(self, service: str, method: str, given: Mapping[str, Any]) -> None:
        """Call an operation that deletes something. It is no error if that does not exist.

        Raises:
            ClientError: the service refuses.
        """
        from botocore.exceptions import ClientError

        try:
            self.call(service, method, given)
        except ClientError as error:
            if not is_gone(error):
                raise

    def is_there(self, service: str, method: str, given: Mapping[str, Any]) -> bool:
        """Return whether an operation finds the resource that its parameters name.

        Raises:
            ClientError: the service refuses for another reason.
        """
        from botocore.exceptions import ClientError

        try:
            self.call(service, method, given)
        except ClientError as error:
            if is_gone(error):
                return False
            raise
        return True


def is_gone(error: Any) -> bool:
    """Return whether a ClientError says that something does not exist."""
    code = error.response["Error"]["Code"]
    return code in _GONE or code.endswith((".NotFound", "NotFoundException", "NotFoundFault", "DoesNotExist"))


def tags_of(properties: Mapping[str, Any], name: str = "Tags") -> dict[str, str] | None:
    """Return the tags in properties, a map or a list of keys and values, as a map; None: there are none."""
    given = properties.get(name)
    if isinstance(given, list):
        return {tag["Key"]: str(tag["Value"]) for tag in given}
    return given


def changed(before: Mapping[str, Any], after: Mapping[str, Any], *names: str) -> bool:
    """Return whether one of these properties differs."""
    return any(before.get(name) != after.get(name) for name in names)
