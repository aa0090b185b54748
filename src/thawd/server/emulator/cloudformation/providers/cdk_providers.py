"""Does the work of CDK's framework for providers of custom resources, which calls functions of the stack.

The framework consists of functions for Node that answer only to addresses with HTTPS. They are recorded and not made;
the functions of the user that they would call are called from here.

Source: AWS CDK API reference, `custom_resources.Provider`: "Handling lifecycle events: onEvent" and "Asynchronous
providers: isComplete".
"""

from __future__ import annotations

import json
import time
from typing import Any

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.resource_kind import Made, Wanted

_PREFIX = "thawd-does-provider"
_ON_EVENT, _IS_COMPLETE = "USER_ON_EVENT_FUNCTION_ARN", "USER_IS_COMPLETE_FUNCTION_ARN"
_HANDLERS = ("framework.onEvent", "framework.isComplete", "framework.onTimeout")
# Interval and time limit of the calls that ask a provider whether its work is complete. CDK's defaults: 5 s, 30 min.
_ASK_S, _LONGEST_S = 1.0, 1800.0

Properties = dict[str, Any]


def recorded(wanted: Wanted) -> Made | None:
    """Return the record of a function of the framework; None: the function is another one."""
    variables = (wanted.properties.get("Environment") or {}).get("Variables") or {}
    if wanted.properties.get("Handler") not in _HANDLERS or _ON_EVENT not in variables:
        return None
    names = [str(variables.get(name, "")).partition(":function:")[2] for name in (_ON_EVENT, _IS_COMPLETE)]
    name = ":".join([_PREFIX, *(one.partition(":")[0] for one in names)])
    arn = f"arn:aws:lambda:{wanted.stack.region}:{wanted.stack.account}:function:{name}"
    return Made(wanted.name, {"Arn": arn}, {"is_recorded": True})


def is_provider(function: str) -> bool:
    """Return whether the function with this ARN is one of the framework, as `recorded` has made it."""
    return f":function:{_PREFIX}:" in function


def provide(aws: Aws, function: str, event: Properties) -> Properties:
    """Make a provider create, change or delete a resource.

    Args:
        aws: clients, to invoke the provider's functions.
        function: ARN of the framework's function.
        event: the request, without an address for the answer.

    Raises:
        ResourceError: a function of the provider failed, or the work did not complete in time.
    """
    on_event, _, is_complete = function.partition(f":function:{_PREFIX}:")[2].partition(":")
    answer = _invoked(aws, on_event, event)
    former = event.get("PhysicalResourceId") or event["RequestId"]
    answer["PhysicalResourceId"] = answer.get("PhysicalResourceId") or former
    if event["RequestType"] == "Delete" and answer["PhysicalResourceId"] != former:
        raise ResourceError(f"DELETE: cannot change the physical resource ID from {former}")
    if not is_complete:
        return answer
    until_s = time.monotonic() + _LONGEST_S
    while True:
        found = _invoked(aws, is_complete, {**event, **answer})
        if found.get("IsComplete"):
            return {**answer, "Data": {**(answer.get("Data") or {}), **(found.get("Data") or {})}}
        if time.monotonic() > until_s:
            raise ResourceError("Operation timed out")
        time.sleep(_ASK_S)


def _invoked(aws: Aws, name: str, event: Properties) -> Properties:
    answer = aws.client("lambda").invoke(FunctionName=name, Payload=json.dumps(event, default=str).encode())
    found = json.loads(answer["Payload"].read() or b"null")
    if "FunctionError" in answer:
        raise ResourceError(f"The function {name} failed: {found.get('errorType')}: {found.get('errorMessage')}")
    if found is not None and not isinstance(found, dict):
        raise ResourceError(f"The function {name} returned no JSON object")
    return dict(found or {})
