"""Destinations in requests of the Lambda API: parses their ARNs and refuses invalid ones as AWS does.

Source: AWS Lambda API reference, "PutFunctionEventInvokeConfig", "CreateFunction"; developer guide, "Capturing records
of Lambda asynchronous invocations".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException
from thawd.grammar.destination_names import function_of, is_fifo, parse_arn, parse_dead_letter
from thawd.resources import Destination

_OUTCOMES = ("OnSuccess", "OnFailure")


def configured_arns(configuration: Mapping[str, Any]) -> dict[str, str]:
    """The ARNs of an event invoke configuration, by ``OnSuccess`` and ``OnFailure``."""
    config = configuration.get("DestinationConfig") or {}
    arns = {outcome: (config.get(outcome) or {}).get("Destination") for outcome in _OUTCOMES}
    return {outcome: arn for outcome, arn in arns.items() if arn}


def destinations_of(configuration: Mapping[str, Any]) -> dict[str, Destination]:
    """The destinations of a stored event invoke configuration, by ``OnSuccess`` and ``OnFailure``."""
    found = {outcome: parse_arn(arn) for outcome, arn in configured_arns(configuration).items()}
    return {outcome: destination for outcome, destination in found.items() if destination is not None}


def check_destinations(
    function: str, configuration: Mapping[str, Any], *, exists: Callable[[str, str | None], object]
) -> None:
    """Refuse an event invoke configuration with a destination that cannot be used.

    Args:
        function: name of the function.
        configuration: its event invoke configuration.
        exists: called with a function's name and a qualifier; raises `ResourceNotFoundException` if there is none.

    Raises:
        InvalidParameterValueException: a destination is the function itself, is a function that does not exist, or is
            of an unsupported kind, for example a FIFO queue or topic, or an S3 bucket for OnSuccess (400).
    """
    arns = configured_arns(configuration)
    for outcome, arn in arns.items():
        destination = parse_arn(arn)
        if destination is not None and destination.kind == "sns" and is_fifo(destination):
            raise InvalidParameterValueException("FIFO-type Amazon SNS topics aren't supported as a destination.")
        if arn.split(":")[2:3] == ["lambda"]:
            _check_function(function, arn, destination, exists)
        elif destination is None or is_fifo(destination) or (destination.kind == "s3" and outcome == "OnSuccess"):
            raise InvalidParameterValueException(
                f"The provided destination config DestinationConfig({', '.join(_spelled(arns))}) is invalid."
            )


def _check_function(
    function: str, arn: str, destination: Destination | None, exists: Callable[[str, str | None], object]
) -> None:
    if destination is None:
        raise InvalidParameterValueException(f"The destination ARN {arn} is invalid.")
    name, qualifier = function_of(destination)
    if name == function:
        raise InvalidParameterValueException("You can't specify the function as a destination for itself.")
    try:
        exists(name, qualifier)
    except ResourceNotFoundException:
        raise InvalidParameterValueException(f"The destination ARN {arn} is invalid.") from None


def _spelled(arns: Mapping[str, str]) -> list[str]:
    """The destinations as AWS's error text spells them."""
    parts = []
    for outcome in _OUTCOMES:
        value = f"{outcome}(destination={arns[outcome]})" if outcome in arns else "null"
        parts.append(f"{outcome[0].lower()}{outcome[1:]}={value}")
    return parts


def dead_letter_of(shown: Mapping[str, Any]) -> Destination | None:
    """The dead-letter queue or topic in a function's ``shown`` parameters; None: there is none."""
    arn = (shown.get("DeadLetterConfig") or {}).get("TargetArn")
    return parse_dead_letter(arn) if arn else None


def check_dead_letter(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters whose dead-letter queue or topic cannot be used.

    Raises:
        InvalidParameterValueException: the ARN is not that of a standard queue or topic (400).
    """
    arn = (parameters.get("DeadLetterConfig") or {}).get("TargetArn")
    if not arn:
        return
    destination = dead_letter_of(parameters)
    if destination is None:
        raise InvalidParameterValueException(
            f"Invalid dead letter queue ARN: {arn} is not the ARN of an SQS queue or an SNS topic"
        )
    if is_fifo(destination):
        kind = "SQS queue" if destination.kind == "sqs" else "SNS topic"
        raise InvalidParameterValueException(
            f"Invalid dead letter queue ARN: FIFO {kind} is not supported for dead letter configuration"
        )
