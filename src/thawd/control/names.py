"""Parses names and ARNs of functions, versions and layers as callers write them, and makes ARNs. No side effects.

Source: AWS Lambda API reference, ``FunctionName``, ``Qualifier``, ``LayerVersionArn``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from thawd.errors import AccessDeniedException, InvalidParameterValueException, ResourceNotFoundException
from thawd.resources import ACCOUNT_ID, LATEST, REGION

_FUNCTION = re.compile(
    r"(?:arn:(?:aws[a-zA-Z-]*)?:lambda:)?(?:(?P<region>[a-z]{2}(?:-[a-z]+)+-\d):)?(?:(?P<account>\d{12}):)?(?:function:)?"
    r"(?P<name>[a-zA-Z0-9-_]+)(?::(?P<qualifier>\$LATEST|[a-zA-Z0-9-_]+))?"
)
_LAYER = re.compile(
    r"(?:arn:(?:aws[a-zA-Z-]*)?:lambda:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):layer:)?(?P<name>[a-zA-Z0-9-_]{1,140})"
    r"(?::(?P<version>\d+))?"
)
ALIAS_NAME = re.compile(r"(?!^[0-9]+$)([a-zA-Z0-9-_]+)")
MAX_FUNCTION_NAME = 64


class FunctionName(NamedTuple):
    """A function as a caller named it.

    Attributes:
        name: the function's name.
        qualifier: version or alias; None: the caller gave no qualifier.
    """

    name: str
    qualifier: str | None


def function_arn(name: str, qualifier: str | None = None) -> str:
    """Amazon Resource Name of a function, or of a version or alias of it."""
    arn = f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{name}"
    return arn if qualifier is None else f"{arn}:{qualifier}"


def layer_arn(name: str, version: int | None = None) -> str:
    """Amazon Resource Name of a layer, or of a version of it."""
    arn = f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:layer:{name}"
    return arn if version is None else f"{arn}:{version}"


def parse_function(reference: str, qualifier: str | None = None) -> FunctionName:
    """Parse a caller's reference to a function.

    Args:
        reference: a function's name, a partial ARN or a full ARN, with or without a qualifier.
        qualifier: the qualifier in the query of the request; None: the query has none.

    Raises:
        AccessDeniedException: `reference` names another account (403).
        InvalidParameterValueException: `reference` and the query have different qualifiers (400).
        ResourceNotFoundException: `reference` names another region, or no function can have this name (404).
    """
    match = _FUNCTION.fullmatch(reference)
    if match is None:
        raise not_found(reference, qualifier)
    in_reference = match["qualifier"]
    if in_reference and qualifier and in_reference != qualifier:
        raise InvalidParameterValueException(
            "The derived qualifier from the function name does not match the specified qualifier."
        )
    check_place(match["region"], match["account"])
    qualifier = qualifier or in_reference
    if len(match["name"]) > MAX_FUNCTION_NAME:
        raise not_found(match["name"], qualifier)
    return FunctionName(match["name"], qualifier)


def name_in(reference: str) -> str | None:
    """The function's name in a caller's reference, which may be of another region or account; None: there is none."""
    match = _FUNCTION.fullmatch(reference)
    return None if match is None else match["name"]


def check_place(region: str | None, account: str | None) -> None:
    """Refuse a reference to a function of another region or account; None: the reference does not name it.

    Raises:
        AccessDeniedException: the account is another one (403); as on AWS, without a message.
        ResourceNotFoundException: the region is another one (404).
    """
    if region is not None and region != REGION:
        raise ResourceNotFoundException(f"Functions from '{region}' are not reachable in this region ('{REGION}')")
    if account is not None and account != ACCOUNT_ID:
        raise AccessDeniedException("")


def check_length(name: str) -> None:
    """Check the length of the name that a new function is to have.

    Raises:
        InvalidParameterValueException: the name is too long (400).
    """
    if len(name) > MAX_FUNCTION_NAME and ":" not in name:
        raise InvalidParameterValueException(
            f"1 validation error detected: Value '{name}' at 'functionName' failed to satisfy constraint: Member must "
            f"have length less than or equal to {MAX_FUNCTION_NAME}"
        )


def not_found(name: str, qualifier: str | None = None) -> ResourceNotFoundException:
    """The error for a function, version or alias that does not exist."""
    return ResourceNotFoundException(f"Function not found: {function_arn(name, qualifier)}")


def parse_layer(reference: str) -> tuple[str, int | None]:
    """Return the name and the version number of a layer, from its name or an ARN; None: `reference` has no version.

    Raises:
        ResourceNotFoundException: `reference` names another account or region (404).
        InvalidParameterValueException: `reference` does not name a layer (400).
    """
    match = _LAYER.fullmatch(reference)
    if match is None:
        raise InvalidParameterValueException(f"{reference!r} is not the name or ARN of a layer")
    if (match["account"] or ACCOUNT_ID) != ACCOUNT_ID or (match["region"] or REGION) != REGION:
        raise ResourceNotFoundException("The resource you requested does not exist.")
    return match["name"], None if match["version"] is None else int(match["version"])


def check_layer_region(arn: str) -> None:
    """Check that a function may use a layer: it is in this region and account.

    Raises:
        AccessDeniedException: the layer belongs to another account, whose layers thawd does not have (403).
        InvalidParameterValueException: the layer is in another region (400).
    """
    parts = arn.split(":")
    if len(parts) > 6 and parts[3] == REGION and parts[4] != ACCOUNT_ID:
        raise AccessDeniedException(
            f"User: arn:aws:iam::{ACCOUNT_ID}:root is not authorized to perform: lambda:GetLayerVersion on resource: "
            f"{arn} because no resource-based policy allows the lambda:GetLayerVersion action"
        )
    if len(parts) > 3 and parts[0] == "arn" and parts[3] != REGION:
        raise InvalidParameterValueException(
            f"Layers are not in the same region as the function. Layers are expected to be in region {REGION}."
        )


def is_version(qualifier: str) -> bool:
    """Whether `qualifier` is ``$LATEST`` or a version number, rather than an alias."""
    return qualifier == LATEST or qualifier.isdigit()
