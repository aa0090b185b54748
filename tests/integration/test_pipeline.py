"""From bucket to function to table or destination, in good and bad conditions: nothing accepted is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from .conftest import Project, Running, eventually

CODE = """
import urllib.parse
import thawd

def handler(event, context):
    record = event["Records"][0]
    bucket = record["s3"]["bucket"]["name"]
    key = urllib.parse.unquote_plus(record["s3"]["object"]["key"])
    data = thawd.bucket(bucket).read(key)
    if data.startswith(b"poison"):
        raise ValueError("cannot read this: " + key)
    item = {"size": len(data), "name": record["eventName"], "text": data[:20].decode(errors="replace")}
    thawd.table("sizes").put(key, item)
    return item
"""
CONFIG = """
[functions.measure]
handler = "app.handler"
maximum_retry_attempts = 1
on_failure = "bucket:failed"
[buckets.uploads]
notify = [{ function = "measure", prefix = "in/", suffix = ".txt" }]
[buckets.failed]
[tables.sizes]
"""


def rows(project: Project, table: str = "sizes") -> dict[str, Any]:
    return project.rows(table)


def left(running: Running) -> int:
    """Count the events that have not ended, from a single status document."""
    measure = running.function("measure")
    return int(measure["queued"]) + int(measure["leased"])


@pytest.fixture
def measuring(project: Project) -> Project:
    project.code(CODE)
    project.config(CONFIG)
    return project


def test_objects_become_rows_by_prefix_and_suffix(measuring: Project) -> None:
    with measuring.up():
        folder = measuring.root / "uploads" / "in" / "deep er"
        folder.mkdir(parents=True)
        for name in ("a.txt", "é +%.txt"):
            (folder / name).write_text("hello")
        (folder / "b.png").write_text("not wanted")
        (measuring.root / "uploads" / "out.txt").write_text("not wanted")
        eventually(lambda: len(rows(measuring)) == 2, what="two rows")
        assert set(rows(measuring)) == {"in/deep er/a.txt", "in/deep er/é +%.txt"}
        assert rows(measuring)["in/deep er/a.txt"] == {"size": 5, "name": "ObjectCreated:Put", "text": "hello"}


def test_objects_that_arrive_while_thawd_is_down_are_found_once(measuring: Project) -> None:
    folder = measuring.root / "uploads" / "in"
    folder.mkdir(parents=True)
    (folder / "before.txt").write_text("1")
    with measuring.up() as running:
        eventually(lambda: len(rows(measuring)) == 1, what="the first row")
        eventually(lambda: running.function("measure")["invocations"], what="the end of the invocation")
    (folder / "between.txt").write_text("22")
    with measuring.up() as running:
        eventually(lambda: len(rows(measuring)) == 2, what="the second row")
        eventually(lambda: left(running) == 0, what="rest")
        assert sum(kind["count"] for kind in running.function("measure")["invocations"].values()) == 1


def test_a_put_over_http_becomes_a_row(measuring: Project) -> None:
    with measuring.up() as running:
        s3 = running.s3()
        for number in range(50):
            s3.put_object(Bucket="uploads", Key=f"in/{number}.txt", Body=b"x" * number)
        eventually(lambda: len(rows(measuring)) == 50, what="50 rows")
        eventually(lambda: left(running) == 0, what="rest")
        assert sum(kind["count"] for kind in running.function("measure")["invocations"].values()) == 50


def test_s3_clients_are_told_of_buckets_that_do_not_exist(measuring: Project) -> None:
    with measuring.up() as running:
        s3 = running.s3()
        assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == ["failed", "uploads"]
        with pytest.raises(s3.exceptions.NoSuchBucket):
            s3.list_objects_v2(Bucket="nobody")


def test_a_poison_object_ends_in_the_failure_destination_and_the_others_go_on(measuring: Project) -> None:
    with measuring.up() as running:
        folder = measuring.root / "uploads" / "in"
        folder.mkdir(parents=True)
        (folder / "bad.txt").write_text("poison")
        (folder / "good.txt").write_text("fine")
        record_files = eventually(
            lambda: list((measuring.root / "failed").glob("[!.]*.json")), what="the failure record"
        )
        record = json.loads(record_files[0].read_text())
        assert record["requestContext"]["condition"] == "RetriesExhausted"
        assert record["responsePayload"]["errorMessage"] == "cannot read this: in/bad.txt"
        eventually(lambda: set(rows(measuring)) == {"in/good.txt"}, what="the good row")
        assert eventually(lambda: running.function("measure")["dead"] == 1, what="the dead letter")


def test_results_go_to_a_destination_table_under_the_objects_key(project: Project) -> None:
    project.code("def handler(event, context):\n    return {'n': len(event['Records'])}\n")
    project.config(
        """
        [functions.count]
        handler = "app.handler"
        on_success = "table:counts"
        [buckets.uploads]
        notify = [{ function = "count" }]
        [tables.counts]
        """
    )
    with project.up():
        (project.root / "uploads" / "one.bin").write_bytes(b"1")
        eventually(lambda: rows(project, "counts") == {"one.bin": {"n": 1}}, what="the row")
    assert project.command("table", "counts", "--csv").stdout == "key,n\none.bin,1\n"
    assert project.command("table", "counts").stdout.split() == ["key", "n", "one.bin", "1"]


def test_a_killed_server_loses_and_repeats_nothing_it_had_stored(measuring: Project) -> None:
    folder = measuring.root / "uploads" / "in"
    folder.mkdir(parents=True)
    for number in range(200):
        (folder / f"{number}.txt").write_text(str(number))
    for _ in range(3):
        with measuring.up() as running:
            eventually(
                lambda running=running: (
                    sum(kind["count"] for kind in running.function("measure")["invocations"].values()) >= 10
                ),
                what="some invocations",
            )
            running.process.kill()
            running.process.wait()
    with measuring.up() as running:
        eventually(lambda: len(rows(measuring)) == 200, what="all rows")
        eventually(lambda: left(running) == 0, what="rest")


def can_mount() -> bool:
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not shutil.which("unshare") or not can_mount(), reason="needs the right to mount")
def test_a_full_disk_is_a_clear_error_and_nothing_accepted_is_lost(measuring: Project) -> None:
    """Events are refused while the disk is full, and accepted again when there is room."""
    measuring.data.mkdir()
    script = f'mount -t tmpfs -o size=6m tmpfs "{measuring.data}" && exec "$0" "$@"'
    wrapper = measuring.root / "in-a-small-disk"
    wrapper.write_text(f"#!/bin/sh\nexec unshare -m sh -c '{script}' '{sys.executable}' \"$@\"\n")
    wrapper.chmod(0o755)
    with measuring.up(python=str(wrapper)) as running:
        disk = Path(f"/proc/{running.process.pid}/root{measuring.data}")
        client = running.client()
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:  # unbuffered, because closing a buffered file would write again
            try:
                while True:
                    file.write(b"x" * 65536)
            except OSError:
                pass
        payload = json.dumps({"Records": [], "padding": "x" * 200_000})
        with pytest.raises(client.exceptions.ServiceException) as refused:
            for _ in range(50):
                client.invoke(FunctionName="measure", InvocationType="Event", Payload=payload)
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] in (500, 503)
        assert "full" in str(refused.value)
        assert running.status()["functions"]["measure"]["state"] == "Active"
        filler.unlink()
        (measuring.root / "uploads" / "in").mkdir(parents=True, exist_ok=True)
        (measuring.root / "uploads" / "in" / "after.txt").write_text("there is room again")
        eventually(lambda: count(running) == 1, what="the row")


def count(running: Running) -> int:
    with urllib.request.urlopen(f"{running.url}/_thawd/tables/sizes", timeout=30) as answer:
        return int(json.loads(answer.read())["count"])
