"""The program that runs the private server of the pytest fixture ``thawd``, with all functions of a configuration.

Its buckets are empty folders, and its tables are empty files, also those that the configuration has in an object store
or a database, so that a test changes nothing that belongs to the user. What notifies functions of objects works. No
schedule runs, no queue is read, and nothing is sent to webhooks, to AWS, or to a collector of traces.

    python -m thawd.server.measurement.testing CONDITIONS_AS_JSON
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from thawd.bench.measurement_server import Place
from thawd.config import Settings
from thawd.resources import Bucket, Destination, Function, RemoteBucket
from thawd.server.measurement.serving import alone, serve

_INSIDE = ("table", "bucket", "s3", "function")
"""Kinds of destinations that the private server has itself."""


class TestConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What the private server serves.

    Attributes:
        place: files and folders of the private server.
    """

    __test__ = False  # pytest would take the class for tests

    place: Place


def main() -> int:
    """Serve until SIGTERM, or until the process that started this one ends."""
    conditions = msgspec.json.decode(sys.argv[1], type=TestConditions)
    return serve(conditions.place, lambda settings: settings_of(settings, conditions))


def settings_of(settings: Settings, conditions: TestConditions) -> Settings:
    """The configuration with other buckets and tables, and without what is outside: schedules, queues, webhooks."""
    data = Path(conditions.place.data)
    private = alone(
        settings,
        map(_without_outside, settings.functions.values()),
        data=data,
        environments=settings.server.max_environments or 32,
        traces=None,
    )
    declared: dict[str, Bucket | RemoteBucket] = {**settings.buckets, **settings.remote_buckets}
    buckets = {
        name: Bucket(name=name, path=data / "buckets" / name, notify=bucket.notify) for name, bucket in declared.items()
    }
    tables = {
        name: msgspec.structs.replace(table, path=data / "tables" / f"{name}.db", url=None)
        for name, table in settings.tables.items()
    }
    return msgspec.structs.replace(private, buckets=buckets, remote_buckets={}, tables=tables, urls=settings.urls)


def _without_outside(function: Function) -> Function:
    """The function without destinations that are outside of the private server."""
    destinations = {"on_success": _inside(function.on_success), "on_failure": _inside(function.on_failure)}
    return msgspec.structs.replace(function, **destinations)


def _inside(destination: Destination | None) -> Destination | None:
    return destination if destination is not None and destination.kind in _INSIDE else None


if __name__ == "__main__":
    sys.exit(main())
