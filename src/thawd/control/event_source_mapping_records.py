"""An event source mapping: how the state file stores it, and how the Lambda API shows it."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from thawd.control.names import function_arn
from thawd.resources import ACCOUNT_ID, REGION, SqsSource

DEFAULT_BATCH = 10
PARTIAL = "ReportBatchItemFailures"
UNPROCESSED = "No records processed"


class SourceMapping(msgspec.Struct, omit_defaults=True):
    """One queue whose messages invoke one function.

    Attributes:
        uuid: the mapping's identifier in the API.
        source: ARN of the queue.
        function: name of the function.
        qualifier: version or alias; None: the function was named without one.
        given: the settings that the request or thawd.toml names, by their names in the API.
        enabled: whether the queue should be read.
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
        """The mapping's readable name, ``FUNCTION/QUEUE``."""
        qualified = self.function if self.qualifier is None else f"{self.function}:{self.qualifier}"
        return f"{qualified}/{self.source.rpartition(':')[2]}"

    @property
    def batch_size(self) -> int:
        """Highest number of messages in one invocation."""
        return int(self.given.get("BatchSize") or DEFAULT_BATCH)

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
    def patterns(self) -> list[str]:
        """Event patterns; a message must match one of them. An empty list accepts all messages."""
        filters = self.given.get("FilterCriteria", {}).get("Filters", [])
        return [one["Pattern"] for one in filters if one.get("Pattern")]

    @property
    def reports_failures(self) -> bool:
        """Whether the handler's answer names the messages that failed."""
        return PARTIAL in self.given.get("FunctionResponseTypes", [])

    def document(self, *, state: str) -> dict[str, Any]:
        """The mapping as the API's ``EventSourceMappingConfiguration``; for queues, AWS shows no last result."""
        shown = {
            "BatchSize": self.batch_size,
            "MaximumBatchingWindowInSeconds": self.window_s,
            "FunctionResponseTypes": [],
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
            "StateTransitionReason": "USER_INITIATED",
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
