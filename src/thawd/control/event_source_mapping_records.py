"""An event source mapping: how the state file stores it, and how the Lambda API shows it.

Source: AWS Lambda API reference, ``EventSourceMappingConfiguration``.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from thawd.control.names import function_arn
from thawd.grammar import stream_names
from thawd.resources import ACCOUNT_ID, REGION, SqsSource

DEFAULT_BATCH, DEFAULT_STREAM_BATCH = 10, 100
PARTIAL = "ReportBatchItemFailures"
UNPROCESSED = "No records processed"
_STREAM_DEFAULTS: dict[str, Any] = {
    "BisectBatchOnFunctionError": False,
    "DestinationConfig": {"OnFailure": {}},
    "MaximumRecordAgeInSeconds": -1,
    "MaximumRetryAttempts": -1,
    "ParallelizationFactor": 1,
    "TumblingWindowInSeconds": 0,
}


class SourceMapping(msgspec.Struct, omit_defaults=True):
    """One queue or stream whose messages or records invoke one function.

    Attributes:
        uuid: the mapping's identifier in the API.
        source: ARN of the queue or stream.
        function: name of the function.
        qualifier: version or alias; None: the function was named without one.
        given: the settings that the request or thawd.toml names, by their names in the API.
        enabled: whether the source should be read.
        modified: when the mapping was last changed, seconds since the epoch.
        url: URL of the queue, if thawd.toml names the queue by URL.
        declared: whether thawd.toml declares the mapping. If so, the state file does not contain it.
        tags: keys and values.
    """

    uuid: str
    source: str
    function: str
    qualifier: str | None = None
    given: dict[str, Any] = {}
    enabled: bool = True
    modified: float = 0.0
    url: str | None = None
    declared: bool = False
    tags: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The mapping's readable name: ``FUNCTION/QUEUE``, or ``FUNCTION/STREAM`` with the name of stream or table."""
        qualified = self.function if self.qualifier is None else f"{self.function}:{self.qualifier}"
        stream = stream_names.parse(self.source)
        return f"{qualified}/{self.source.rpartition(':')[2] if stream is None else stream.name}"

    @property
    def service(self) -> str:
        """The source's service: ``sqs``, ``kinesis`` or ``dynamodb``."""
        return self.source.split(":")[2]

    @property
    def is_stream(self) -> bool:
        """Whether the source is a stream, not a queue."""
        return self.service != "sqs"

    @property
    def batch_size(self) -> int:
        """Highest number of messages or records in one invocation."""
        return int(self.given.get("BatchSize") or (DEFAULT_STREAM_BATCH if self.is_stream else DEFAULT_BATCH))

    @property
    def window_s(self) -> int:
        """How long messages are collected for a batch, seconds."""
        return int(self.given.get("MaximumBatchingWindowInSeconds") or 0)

    @property
    def maximum_concurrency(self) -> int | None:
        """Highest number of batches that run at the same time; None: as many as the function can have environments."""
        most = self.given.get("ScalingConfig", {}).get("MaximumConcurrency")
        return None if most is None else int(most)

    @property
    def starting_position(self) -> str:
        """Where a stream is read first: ``TRIM_HORIZON``, ``LATEST`` or ``AT_TIMESTAMP``."""
        return str(self.given.get("StartingPosition", "TRIM_HORIZON"))

    @property
    def starting_timestamp(self) -> float:
        """The time of ``AT_TIMESTAMP``, seconds since the epoch."""
        return float(self.given.get("StartingPositionTimestamp") or 0.0)

    @property
    def parallelization_factor(self) -> int:
        """How many batches of one shard run at the same time."""
        return int(self.given.get("ParallelizationFactor") or 1)

    @property
    def tumbling_s(self) -> int:
        """Length of a stream's tumbling windows, seconds; 0: there are none."""
        return int(self.given.get("TumblingWindowInSeconds") or 0)

    @property
    def most_retries(self) -> int:
        """How often a stream's batch is tried again before it is discarded; -1: without limit."""
        return int(self.given.get("MaximumRetryAttempts", -1))

    @property
    def most_age_s(self) -> int:
        """Age at which a stream's record is discarded, seconds; -1: never."""
        return int(self.given.get("MaximumRecordAgeInSeconds", -1))

    @property
    def bisects(self) -> bool:
        """Whether a stream's batch that failed is tried again in halves."""
        return bool(self.given.get("BisectBatchOnFunctionError"))

    @property
    def on_failure(self) -> str | None:
        """ARN of the destination for descriptions of discarded batches of a stream; None: there is none."""
        destination: str | None = (self.given.get("DestinationConfig") or {}).get("OnFailure", {}).get("Destination")
        return destination or None

    @property
    def patterns(self) -> list[str]:
        """Event patterns; a message must match one of them. An empty list accepts all messages."""
        filters = self.given.get("FilterCriteria", {}).get("Filters", [])
        return [one["Pattern"] for one in filters if one.get("Pattern")]

    @property
    def reports_failures(self) -> bool:
        """Whether the handler's answer names the messages that failed."""
        return PARTIAL in self.given.get("FunctionResponseTypes", [])

    def document(self, *, state: str, last_result: str = UNPROCESSED) -> dict[str, Any]:
        """The mapping as the API's ``EventSourceMappingConfiguration``; for queues, AWS shows no last result.

        Args:
            state: the mapping's state.
            last_result: result of the last batch.
        """
        shown = {
            "BatchSize": self.batch_size,
            "MaximumBatchingWindowInSeconds": self.window_s,
            "FunctionResponseTypes": [],
            **({**_STREAM_DEFAULTS, "LastProcessingResult": last_result} if self.is_stream else {}),
            **{name: value for name, value in self.given.items() if value not in ({}, {"Filters": []})},
        }
        return {
            **shown,
            "UUID": self.uuid,
            "EventSourceArn": self.source,
            "EventSourceMappingArn": f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:event-source-mapping:{self.uuid}",
            "FunctionArn": function_arn(self.function, self.qualifier),
            "LastModified": self.modified,
            "State": state,
            "StateTransitionReason": "User action" if self.is_stream else "USER_INITIATED",
        }


def declared_mapping(function: str, source: SqsSource, *, arn: str, modified: float) -> SourceMapping:
    """A mapping that thawd.toml declares. Its UUID is computed from function and queue, so it is always the same.

    Args:
        function: name of the function.
        source: the queue and its settings, as declared.
        arn: ARN of the queue.
        modified: when the mapping was last changed, seconds since the epoch.
    """
    settings: dict[str, Any] = {"BatchSize": source.batch_size, "MaximumBatchingWindowInSeconds": source.window_s}
    if source.maximum_concurrency is not None:
        settings["ScalingConfig"] = {"MaximumConcurrency": source.maximum_concurrency}
    if source.filters:
        settings["FilterCriteria"] = {"Filters": [{"Pattern": text} for text in source.filters]}
    if source.report_batch_item_failures:
        settings["FunctionResponseTypes"] = [PARTIAL]
    return SourceMapping(
        uuid=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{function_arn(function)} {arn}")),
        source=arn,
        function=function,
        given=settings,
        enabled=source.enabled,
        modified=modified,
        url=None if source.sqs == arn else source.sqs,
        declared=True,
    )
