"""Parses names and ARNs of functions, versions and layers as callers write them, and makes ARNs. No side effects.

Source: AWS Lambda API reference, ``FunctionName``, ``Qualifier``, ``LayerVersionArn``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException, ValidationException
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
        ValidationException: `reference` does not name a function (400).
        InvalidParameterValueException: `reference` and the query have different qualifiers (400).
        ResourceNotFoundException: `reference` names another account or region (404).
    """
    match = _FUNCTION.fullmatch(reference)
    if match is None or len(match["name"]) > MAX_FUNCTION_NAME:
        raise ValidationException(
            f"1 validation error detected: Value '{reference}' at 'functionName' failed to satisfy constraint: Member "
            f"must be a function's name of at most {MAX_FUNCTION_NAME} letters, digits, hyphens and underscores, a "
            "partial ARN or a full ARN"
        )
    in_reference = match["qualifier"]
    if in_reference and qualifier and in_reference != qualifier:
        raise InvalidParameterValueException(
            f"The derived qualifier from the function name ({in_reference}) does not match the specified qualifier."
        )
    qualifier = qualifier or in_reference
    name = match["name"]
    if (match["account"] or ACCOUNT_ID) != ACCOUNT_ID or (match["region"] or REGION) != REGION:
        place = f"{match['region'] or REGION}:{match['account'] or ACCOUNT_ID}"
        raise ResourceNotFoundException(f"Function not found: arn:aws:lambda:{place}:function:{name}")
    return FunctionName(name, qualifier)


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


def is_version(qualifier: str) -> bool:
    """Whether `qualifier` is ``$LATEST`` or a version number, rather than an alias."""
    return qualifier == LATEST or qualifier.isdigit()
