"""Reads the ``[buckets.NAME]`` and ``[tables.NAME]`` tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from thawd.config import kinds
from thawd.config.findings import KeyPath, one_of
from thawd.config.options import stores as options
from thawd.config.sections.reader import Reader
from thawd.config.store_urls import read_bucket_url, read_table_url
from thawd.resources import Bucket, Notification, RemoteBucket, Table

# SQLite appends "-journal" to the file's name, and Linux allows names of 255 bytes.
_LONGEST_TABLE_FILE = 255 - len("-journal")


def read_buckets(
    document: Mapping[str, object], reader: Reader, *, environ: Mapping[str, str]
) -> tuple[dict[str, Bucket], dict[str, RemoteBucket]]:
    """Read the ``[buckets.*]`` tables: buckets that are folders, and remote buckets."""
    buckets = {}
    remote = {}
    for name, table in reader.named(document, "buckets", names=options.BUCKET_NAME):
        path = ("buckets", name)
        values = reader.table(table, path=path, known=(*options.BUCKET, *options.REMOTE_BUCKET))
        notify = tuple(
            _notification(entry, reader, path=(*path, "notify", index))
            for index, entry in enumerate(values.get("notify", []))
        )
        if "url" in values:
            remote_bucket = _remote_bucket(name, values, reader, environ=environ)
            if remote_bucket is not None:
                remote[name] = msgspec.structs.replace(remote_bucket, notify=notify)
            continue
        for option in ("poll_s", "existing", "notifications"):
            if option in values:
                reader.findings.add((*path, option), found=option, allowed="nothing: the option needs a url")
        folder = reader.absolute(values.get("path", name))
        buckets[name] = Bucket(name=name, path=folder, notify=notify)
    return buckets, remote


def _remote_bucket(
    name: str, values: Mapping[str, Any], reader: Reader, *, environ: Mapping[str, str]
) -> RemoteBucket | None:
    path = ("buckets", name)
    if "path" in values:
        reader.findings.add((*path, "path"), found="both path and url", allowed="either path or url")
    place = read_bucket_url(values["url"], reader.findings, path=(*path, "url"), environ=environ)
    if place is None:
        return None
    listing = {option: values[option] for option in ("poll_s", "existing", "notifications") if option in values}
    if "notifications" in listing:
        for option in ("poll_s", "existing"):
            if option in listing:
                allowed = "nothing: a bucket with notifications is not listed"
                reader.findings.add((*path, option), found=option, allowed=allowed)
        if place["url"].scheme != "s3":
            found = f"a queue for {place['url']}"
            reader.findings.add((*path, "notifications"), found=found, allowed="notifications only with s3://")
    return RemoteBucket(name=name, **place, **listing)


def _notification(table: object, reader: Reader, *, path: KeyPath) -> Notification:
    values = reader.table(table, path=path, known=options.NOTIFICATION)
    if "events" in values:
        for index, event in enumerate(values["events"]):
            if event not in options.EVENT_TYPES:
                allowed = one_of(str(event), options.EVENT_TYPES, what="event types")
                reader.findings.add((*path, "events", index), found=kinds.spell(event), allowed=allowed)
        values["events"] = tuple(values["events"])
    return Notification(**values)


def read_tables(
    document: Mapping[str, object], reader: Reader, *, data: Path, environ: Mapping[str, str]
) -> dict[str, Table]:
    """Read the ``[tables.*]`` tables. A table without path and URL is stored in ``tables/NAME.db`` in `data`."""
    tables = {}
    for name, table in reader.named(document, "tables", names=options.TABLE_NAME):
        path = ("tables", name)
        values = reader.table(table, path=path, known=options.TABLE)
        if "url" in values:
            if "path" in values:
                reader.findings.add((*path, "path"), found="both path and url", allowed="either path or url")
            url = read_table_url(values["url"], reader.findings, path=(*path, "url"), table=name, environ=environ)
            if url is not None:
                tables[name] = Table(name=name, url=url)
            continue
        file = reader.absolute(values["path"]) if "path" in values else data / "tables" / f"{name}.db"
        if len(file.name.encode()) > _LONGEST_TABLE_FILE:
            found = f"a file name of {len(file.name.encode())} bytes"
            allowed = f"a path whose last part has at most {_LONGEST_TABLE_FILE} bytes"
            reader.findings.add(("tables", name, "path"), found=found, allowed=allowed)
        tables[name] = Table(name=name, path=file)
    return tables
