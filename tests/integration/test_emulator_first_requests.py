"""The emulator's first requests: moto's modules are changed although they are imported only then, by many threads."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from tests.clients import client_of
from thawd.resources import ACCOUNT_ID

ARN = f"arn:aws:states:us-east-1:{ACCOUNT_ID}:stateMachine:absent"
TARGET = {"Arn": ARN, "RoleArn": "arn:aws:iam::000000000000:role/r"}
# Each call is one that only changed modules answer like this. `describe_stacks` is there because it imports most.
CALLS: list[tuple[str, str, dict[str, Any], str]] = [
    ("cloudformation", "describe_stacks", {"StackName": "absent"}, "ValidationError"),
    ("stepfunctions", "start_sync_execution", {"stateMachineArn": ARN}, "StateMachineDoesNotExist"),
    ("apigateway", "flush_stage_authorizers_cache", {"restApiId": "a", "stageName": "s"}, "NotFoundException"),
    ("apigatewayv2", "get_authorizers", {"ApiId": "absent"}, "NotFoundException"),
    ("events", "put_rule", {"Name": "r", "ScheduleExpression": "at(2090-01-01T00:00:00)"}, "ValidationException"),
    (
        "scheduler",
        "create_schedule",
        {"Name": "s", "ScheduleExpression": "no", "FlexibleTimeWindow": {"Mode": "OFF"}, "Target": TARGET},
        "ValidationException",
    ),
    ("dynamodbstreams", "get_records", {"ShardIterator": "nothing"}, "ValidationException"),
]


@contextlib.contextmanager
def emulator() -> Iterator[str]:
    """Run the emulator alone, in a new interpreter that has imported nothing; yields its URL."""
    program = subprocess.Popen(
        [sys.executable, "-m", "thawd.server.emulator.moto_program"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "MOTO_ACCOUNT_ID": ACCOUNT_ID},
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(program.stdout.readline())}"
        program.stdin.write(json.dumps({"url": url, "access_key": "test", "secret": "test"}).encode() + b"\n")
        program.stdin.flush()
        yield url
    finally:
        program.stdin.close()
        program.stdout.close()
        program.wait(60)


def test_services_whose_first_requests_come_together_are_changed_before_they_answer() -> None:
    found: list[tuple[str, str]] = []
    calls = [*CALLS, *reversed(CALLS)]
    with emulator() as url:
        clients = {
            service: client_of(url, service, read_timeout=120, inject_host_prefix=False) for service, *_ in CALLS
        }
        together = threading.Barrier(len(calls))

        def work(service: str, operation: str, asked: dict[str, Any]) -> None:
            together.wait(60)
            try:
                getattr(clients[service], operation)(**asked)
                found.append((service, "no error"))
            except ClientError as error:
                found.append((service, error.response["Error"]["Code"]))

        threads = [threading.Thread(target=work, args=call[:3]) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
    assert sorted(found) == sorted((service, code) for service, _, _, code in calls)
