"""Makes the events for a change in the catalog of objects. No side effects; only the request ids are random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from thawd.invocation import new_request_id
from thawd.resources import REGION, Notification
from thawd.sources.buckets import s3_event
from thawd.sources.buckets.files import WrittenFile
from thawd.sources.buckets.notification_rules import functions_for
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.objects.catalog import ObjectChange


class BucketSource(NamedTuple):
    """The bucket that events come from.

    Attributes:
        name: the bucket's name in the configuration.
        bucket: the bucket's name in events; for a remote bucket, its name in the object store.
        notify: the bucket's notifications.
        region: the bucket's region.
    """

    name: str
    bucket: str
    notify: Sequence[Notification]
    region: str = REGION


def events_of(
    source: BucketSource,
    change: ObjectChange,
    sequencer: int,
    *,
    at_s: float,
    traces: Mapping[bytes, WrittenFile] = MappingProxyType({}),
) -> list[NewEvent]:
    """Return the events for a change, one for each function that the bucket notifies of it.

    Args:
        source: the bucket.
        change: the change of an object.
        sequencer: S3's sequencer for the change; it orders the events of a key.
        at_s: when the change was found, seconds since the epoch.
        traces: files that requests have just written, by key; their events belong to the traces of these requests.
    """
    name = s3_event.REMOVED if change.now is None else s3_event.CREATED
    written = traces.get(change.key)
    trace_id = None if written is None else written.trace_id
    events = []
    for function in functions_for(source.notify, key=change.key, event_name=name):
        happened = s3_event.ObjectEvent(
            name=name,
            bucket=source.bucket,
            key=change.key,
            size=change.now.size if change.now else None,
            etag=change.now.etag if change.now else None,
            sequencer=sequencer,
            at_s=at_s,
            request_id=new_request_id(),
            region=source.region,
        )
        events.append(
            NewEvent(
                function=function,
                payload=s3_event.encode(happened, configuration_id=function),
                request_id=happened.request_id,
                source=f"bucket:{source.name}",
                row_key=s3_event.row_key(change.key),
                trace_id=trace_id,
            )
        )
    return events
