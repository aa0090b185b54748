"""Checks the parameters of event source mappings. No side effects.

Source: AWS Lambda API reference, CreateEventSourceMapping; error texts as AWS sends them.
"""

from __future__ import annotations

import importlib.util

from thawd.control.event_source_mapping_records import SourceMapping
from thawd.control.function_records import Parameters
from thawd.errors import InvalidParameterValueException
from thawd.grammar import queue_names, stream_names
from thawd.grammar.destination_names import is_fifo, parse_arn
from thawd.grammar.event_patterns import Pattern, PatternError

MAX_FILTERS = 5
FIFO_BATCH = 10
STREAM_SETTINGS = (
    "StartingPosition",
    "StartingPositionTimestamp",
    "ParallelizationFactor",
    "DestinationConfig",
    "MaximumRecordAgeInSeconds",
    "BisectBatchOnFunctionError",
    "MaximumRetryAttempts",
    "TumblingWindowInSeconds",
)
"""Settings that only streams have."""
# Parameters that AWS has only for sources that thawd does not read.
_OF_OTHERS = (
    "Topics",
    "Queues",
    "SourceAccessConfigurations",
    "AmazonManagedKafkaEventSourceConfig",
    "SelfManagedKafkaEventSourceConfig",
    "DocumentDBEventSourceConfig",
    "ProvisionedPollerConfig",
)
# Sources that AWS Lambda reads and thawd does not: their names in error messages, by the service in their ARN.
_UNREAD = {"kafka": "Kafka topics", "mq": "Amazon MQ queues", "rds": "DocumentDB change streams"}
_READABLE = "name an SQS queue, a Kinesis stream or a DynamoDB stream"
_LEAST_AGE_S = 60
_STREAM_DESTINATIONS = ("sqs", "sns", "s3")


def source_of(parameters: Parameters) -> str:
    """The ARN of the source of a new mapping.

    Raises:
        InvalidParameterValueException: thawd does not read sources of this kind (400).
    """
    arn = parameters.get("EventSourceArn", "")
    service = arn.split(":")[2] if arn else "self-managed Kafka" if "SelfManagedEventSource" in parameters else ""
    if queue_names.parse(arn) is not None or stream_names.parse(arn) is not None:
        if importlib.util.find_spec("boto3") is None:
            raise InvalidParameterValueException(
                "thawd reads queues and streams with boto3, which is not installed; install it with: pip install "
                "'thawd[aws]'"
            )
        return str(arn)
    if service == "sqs":
        raise InvalidParameterValueException(f"{arn} is not the ARN of an SQS queue; {_READABLE}")
    if service in ("kinesis", "dynamodb"):
        raise InvalidParameterValueException(f"{arn} is not the ARN of a stream; {_READABLE}")
    what = _UNREAD.get(service)
    if what is not None:
        raise InvalidParameterValueException(
            f"Unsupported event source: {arn}. thawd does not read {what}; {_READABLE}"
        )
    raise InvalidParameterValueException("Unrecognized event source.")


def check(mapping: SourceMapping, parameters: Parameters) -> None:
    """Refuse a mapping with settings that are not valid for its source.

    Args:
        mapping: the mapping as it would be.
        parameters: the parameters of the request.

    Raises:
        InvalidParameterValueException: a setting is not valid (400).
    """
    foreign = _OF_OTHERS + (("ScalingConfig",) if mapping.is_stream else STREAM_SETTINGS)
    named = [name for name in foreign if parameters.get(name)]
    if named:
        raise InvalidParameterValueException(
            f"Unsupported {', '.join(named)} parameter for given event source mapping type."
        )
    if mapping.is_stream:
        _check_stream(mapping, parameters)
    elif mapping.source.endswith(".fifo"):
        if mapping.window_s:
            raise InvalidParameterValueException("Batching window is not supported for FIFO queues.")
        if mapping.batch_size > FIFO_BATCH:
            raise InvalidParameterValueException(f"Maximum batch size for FIFO queues is {FIFO_BATCH}.")
    elif mapping.batch_size > FIFO_BATCH and not mapping.window_s:
        raise InvalidParameterValueException(
            "Maximum batch window in seconds must be greater than 0 if maximum batch size is greater than 10"
        )
    _check_filters(mapping)


def _check_filters(mapping: SourceMapping) -> None:
    patterns = mapping.patterns
    if len(patterns) > MAX_FILTERS:
        raise InvalidParameterValueException(f"Filters can be at most {MAX_FILTERS}, found {len(patterns)}")
    for text in patterns:
        try:
            Pattern(text)
        except PatternError as error:
            raise InvalidParameterValueException("Invalid filter pattern definition.") from error


def _check_stream(mapping: SourceMapping, parameters: Parameters) -> None:
    position = mapping.given.get("StartingPosition")
    if position is None:
        raise InvalidParameterValueException(
            "1 validation error detected: Value null at 'startingPosition' failed to satisfy constraint: Member must "
            "not be null."
        )
    if position == "AT_TIMESTAMP":
        if mapping.service == "dynamodb":
            raise InvalidParameterValueException(f"Unsupported starting position for arn type: {mapping.source}")
        if "StartingPositionTimestamp" not in mapping.given:
            raise InvalidParameterValueException("StartingPositionTimestamp is required for AT_TIMESTAMP")
    if mapping.tumbling_s and mapping.parallelization_factor > 1:
        raise InvalidParameterValueException(
            "TumblingWindowInSeconds needs a ParallelizationFactor of 1, because a shard has one state"
        )
    if 0 <= mapping.most_age_s < _LEAST_AGE_S:
        raise InvalidParameterValueException(
            f"MaximumRecordAgeInSeconds must be -1 (no limit) or at least {_LEAST_AGE_S} seconds"
        )
    if mapping.on_failure is not None:
        destination = parse_arn(mapping.on_failure)
        if destination is None or destination.kind not in _STREAM_DESTINATIONS or is_fifo(destination):
            raise InvalidParameterValueException(
                f"The provided destination config DestinationConfig(onFailure=OnFailure(destination="
                f"{mapping.on_failure})) is invalid."
            )
