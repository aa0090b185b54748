"""What is stored of a log group besides its events: the records, as JSON documents in the state file."""

from __future__ import annotations

import msgspec


class SubscriptionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription filter.

    Attributes:
        name: name of the filter.
        pattern: which events are delivered.
        destination: ARN of the function or stream that gets them.
        created_ms: when it was put first, milliseconds since 1970.
        role: ARN of the role in the request; thawd does not use it.
        distribution: how events are spread over the shards of a Kinesis stream: ``ByLogStream`` or ``Random``.
    """

    name: str
    pattern: str
    destination: str
    created_ms: int
    role: str | None = None
    distribution: str = "ByLogStream"


class MetricFilterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A metric filter.

    Attributes:
        name: name of the filter.
        pattern: which events count.
        created_ms: when it was put first, milliseconds since 1970.
        namespace: namespace of the metric.
        metric: name of the metric.
        value: a number, or a selector such as ``$.took``.
        unit: unit of the metric.
        default: the value for an event that the pattern does not match; None: such an event does not count.
        dimensions: names of dimensions, and selectors of their values.
    """

    name: str
    pattern: str
    created_ms: int
    namespace: str
    metric: str
    value: str
    unit: str = "None"
    default: float | None = None
    dimensions: dict[str, str] = {}

    @property
    def needs_document(self) -> bool:
        """Whether a value is taken from a JSON message."""
        return self.value.startswith("$") or bool(self.dimensions)


class GroupRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A log group.

    Attributes:
        created_ms: when it was created, milliseconds since 1970; 0: the first line of its files says when.
        retention_days: how long events are retained; None: until they are rotated away.
        tags: its tags.
        log_class: ``STANDARD`` or another class; thawd treats all alike.
        kms_key: ARN of the key in the request; thawd does not encrypt logs.
        is_protected: whether the group cannot be deleted.
        subscriptions: its subscription filters.
        metric_filters: its metric filters.
        hidden: streams of functions that were deleted: their events up to this time, in milliseconds since 1970, are
            gone.
    """

    created_ms: int = 0
    retention_days: int | None = None
    tags: dict[str, str] = {}
    log_class: str = "STANDARD"
    kms_key: str | None = None
    is_protected: bool = False
    subscriptions: tuple[SubscriptionRecord, ...] = ()
    metric_filters: tuple[MetricFilterRecord, ...] = ()
    hidden: dict[str, int] = {}
