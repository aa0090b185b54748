"""The function of `tests.integration.test_runtime_kinds`, for thawd's own Python runtime and for awslambdaric."""

import os
import time
from pathlib import Path

COUNTER = 0

if os.environ.get("FAIL") == "init":
    raise ValueError("no luck")
if os.environ.get("FAIL") == "exit":
    os._exit(7)
print("initialised")


def handler(event, context):
    """Do what the event says."""
    global COUNTER  # noqa: PLW0603 - one environment is what a process is
    COUNTER += 1
    action = event.get("do") if isinstance(event, dict) else None
    if action == "error":
        raise ValueError("boom")
    if action == "sleep":
        time.sleep(60)
    if action == "exit":
        os._exit(7)
    if action == "large":
        return "x" * event["bytes"]
    if action == "print":
        print("a line from the handler")
    if action == "context":
        client = context.client_context
        return {
            "id": context.aws_request_id,
            "arn": context.invoked_function_arn,
            "left_ms": context.get_remaining_time_in_millis(),
            "client": None if client is None else {"custom": client.custom},
            "trace": os.environ.get("_X_AMZN_TRACE_ID"),
        }
    if action == "environ":
        return {"cwd": str(Path.cwd()), "variables": [f"{name}={value}" for name, value in os.environ.items()]}
    return {"event": event, "counter": COUNTER}
