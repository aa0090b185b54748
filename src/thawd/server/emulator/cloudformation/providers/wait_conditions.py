"""Makes wait conditions of stacks, and the handles to which signals are sent.

Programs on this machine can reach the URL of a handle. A wait condition without a handle, or with a count of 0, is
complete immediately.

Source: CloudFormation template reference, "AWS::CloudFormation::WaitCondition".
"""

from __future__ import annotations

import contextlib
import json
import queue
import time
from typing import Any

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.callback_server import Callbacks
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted


def kinds(callbacks: Callbacks) -> dict[str, Kind]:
    """Return the kinds of wait conditions and of their handles, by type."""
    handles: dict[str, queue.Queue[dict[str, Any]]] = {}
    open_handles = contextlib.ExitStack()

    def make_handle(aws: Aws, wanted: Wanted) -> Made:
        url, signals = open_handles.enter_context(callbacks.expect())
        handles[url] = signals
        return Made(url)

    def wait(aws: Aws, wanted: Wanted) -> Made:
        properties = wanted.properties
        count = int(properties.get("Count", 1)) if "Handle" in properties else 0
        if count and properties["Handle"] not in handles:
            raise ResourceError("the handle was made before thawd started, and gets no signals; replace it")
        until_s = time.monotonic() + float(properties.get("Timeout", 0))
        data: dict[str, Any] = {}
        while len(data) < count:
            try:
                signal = handles[properties["Handle"]].get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                raise ResourceError(
                    f"WaitCondition timed out. Received {len(data)} conditions when expecting {count}"
                ) from None
            if signal.get("Status") != "SUCCESS":
                raise ResourceError(f"WaitCondition received failed message: '{signal.get('Reason', '')}'")
            data[str(signal.get("UniqueId"))] = signal.get("Data")
        return Made(wanted.name, {"Data": json.dumps(data)})

    def nothing(aws: Aws, *given: Any) -> None:
        """Do nothing: there is nothing to delete."""

    return {
        "AWS::CloudFormation::WaitConditionHandle": Kind(make_handle, nothing, nothing),
        "AWS::CloudFormation::WaitCondition": Kind(wait, nothing, nothing),
    }
