"""Makes the data of `test_taken_over.py`. Run it with the interpreter of the thawd version that is to make the data.

    /where/that/version/is/.venv/bin/python tests/earlier/make.py tests/earlier/NAME.tar.xz

The archive holds a project folder as a killed server left it: `thawd.toml`, code, a bucket with objects, and the data
folder. That has a catalog, rows of a table, waiting events, a dead letter, and a function made through the API. Images
are left out, because they work only on the kernel that they were made on.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

CONFIGURATION = """
[server]
port = 0
retry_wait_s = 0.05

[functions.recorder]
handler = "app.record"
code = "function"
memory_mb = 256
timeout_s = 20

[functions.waiting]
handler = "app.record_event"
code = "function"
reserved_concurrency = 1

[functions.failing]
handler = "app.fail"
code = "function"
maximum_retry_attempts = 0

[buckets.uploads]
path = "uploads"

[[buckets.uploads.notify]]
function = "recorder"

[tables.rows]

[routes]
"GET /rows/{id}" = "recorder"

[functions.recorder.url]
auth_type = "NONE"

[schedules.yearly]
schedule = "cron(0 0 1 1 ? *)"
function = "recorder"
"""
CODE = """
import time

import thawd


def record(event, context):
    table = thawd.table("rows")
    if "Records" not in event:
        table.put("gate", event)
        return event
    for one in event["Records"]:
        key = one["s3"]["object"]["key"]
        held = table.get(key)
        table.put(key, {"times": 1 + (held["times"] if held else 0), "size": one["s3"]["object"]["size"]})


def record_event(event, context):
    while thawd.table("rows").get("gate") is None:
        time.sleep(0.05)
    thawd.table("rows").put(event["id"], {"times": 1})


def fail(event, context):
    raise ValueError("of no use")
"""
MADE = (
    "import os\n\n\ndef handler(event, context):\n    return [os.environ['COLOUR'], context.function_version, event]\n"
)


def client(url: str, service: str) -> Any:
    """Return a boto3 client of the server."""
    return boto3.client(
        service, endpoint_url=url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, read_timeout=60),
    )  # fmt: skip


def until(condition: Callable[[], Any]) -> Any:
    """Wait until the condition holds, for at most two minutes."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise SystemExit(f"{condition} did not become true")


def packed(code: str) -> bytes:
    """Return a deployment package of one module."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("made.py", code)
    return target.getvalue()


def fill(url: str) -> None:
    """Bring the server into the state that the archive is to hold."""
    functions, objects = client(url, "lambda"), client(url, "s3")
    for number in range(3):
        objects.put_object(Bucket="uploads", Key=f"before-{number}", Body=b"x" * (number + 1))
    functions.create_function(
        FunctionName="made",
        Runtime="python3.11",
        Role="arn:aws:iam::000000000000:role/any",
        Handler="made.handler",
        Code={"ZipFile": packed(MADE)},
        Environment={"Variables": {"COLOUR": "green"}},
        Tags={"team": "vision"},
        Publish=True,
    )
    functions.get_waiter("published_version_active").wait(FunctionName="made", Qualifier="1")
    functions.get_waiter("function_active_v2").wait(FunctionName="made")
    functions.create_alias(FunctionName="made", Name="live", FunctionVersion="1")
    functions.update_function_configuration(FunctionName="made", Environment={"Variables": {"COLOUR": "blue"}})
    functions.get_waiter("function_updated_v2").wait(FunctionName="made")
    for number in range(5):
        payload = json.dumps({"id": f"event-{number}"})
        functions.invoke(FunctionName="waiting", InvocationType="Event", Payload=payload)
    functions.invoke(FunctionName="failing", InvocationType="Event", Payload=b'{"id": "lost"}')


def main() -> None:
    """Make the archive that the command line names."""
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        (root / "function").mkdir(parents=True)
        (root / "uploads").mkdir()
        (root / "thawd.toml").write_text(CONFIGURATION)
        (root / "function/app.py").write_text(CODE)
        ready = root / "ready.json"
        command = [sys.executable, "-m", "thawd", "up", "--ready-file", str(ready)]
        server = subprocess.Popen(command, cwd=root)
        until(ready.exists)
        fill(json.loads(ready.read_text())["url"])

        def settled() -> bool:
            run = [sys.executable, "-m", "thawd"]
            rows = subprocess.run([*run, "table", "rows"], cwd=root, capture_output=True, text=True).stdout
            letters = subprocess.run([*run, "dead", "list"], cwd=root, capture_output=True, text=True).stdout
            return rows.count("before-") == 3 and "failing" in letters

        until(settled)
        server.kill()  # killed so that waiting events are left, and one that has started
        server.wait()
        ready.unlink(missing_ok=True)
        for name in ("snapshots", "tmp", "ready.json"):
            shutil.rmtree(root / ".thawd" / name, ignore_errors=True)
        with tarfile.open(target, "w:xz") as archive:
            archive.add(root, "project")
    print(target, target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
