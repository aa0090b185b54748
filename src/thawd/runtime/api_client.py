"""The runtime as a client of the Runtime API, for functions whose code contains both extensions and a wrapper script.

For such a function the platform starts the wrapper, and the wrapper executes this program. For all other functions, the
runtime exchanges frames with the platform over a socketpair.

Source: AWS Lambda developer guide, "Using the Lambda runtime API for custom runtimes".
"""

import http.client
import json
import os
import sys
import time
from typing import Any, Dict, NoReturn

from thawd.runtime import aws_guard, faults, invoking, logs, loop, process, sdk
from thawd.runtime.faults import Fault
from thawd.runtime.handler import load
from thawd.snapshot import hooks

_BASE = "/2018-06-01/runtime"


def run() -> NoReturn:
    """Run init, then answer invocations until the platform ends the process."""
    process.set_up_output()
    logs.install()
    hooks.install()
    sdk.install()
    aws_guard.install()
    api = _Api(os.environ["AWS_LAMBDA_RUNTIME_API"])
    try:
        handler = load(os.environ["_HANDLER"], os.environ["LAMBDA_TASK_ROOT"])
    except BaseException as error:  # anything the user's module raised
        if isinstance(error, SystemExit):
            error = Fault("Runtime.ExitError", "Runtime exited with error: exit status %s" % error.code, error)
        report = faults.report(error)
        process.flush_output()
        faults.write_log(report.text)
        api.post("/init/error", report.document, report.error_type)
        os._exit(loop.INIT_FAILED)
    owner = os.getpid()
    while True:
        head, event = api.next()
        body, failed = invoking.invoke(handler, head, event, now_s=time.monotonic())
        process.flush_output()
        if os.getpid() != owner:
            os._exit(0)  # this is a child that the handler forked and that also returned from the handler
        place = "/invocation/%s/%s" % (head["id"], "error" if failed else "response")
        api.post(place, body, str(json.loads(body)["errorType"]) if failed else None)


class _Api:
    """A persistent connection to the Runtime API."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address)

    def next(self) -> "tuple[Dict[str, Any], bytes]":
        """Wait for the next invocation; returns the head that `invoking.invoke` takes, and the event."""
        self._connection.request("GET", _BASE + "/invocation/next")
        answer = self._connection.getresponse()
        event = answer.read()
        headers = answer.headers
        if answer.status != 200:
            sys.exit("thawd: the Runtime API answers %d: %r" % (answer.status, event))
        head = {
            "id": headers["Lambda-Runtime-Aws-Request-Id"],
            "arn": headers["Lambda-Runtime-Invoked-Function-Arn"],
            "left_ms": int(headers["Lambda-Runtime-Deadline-Ms"]) - time.time() * 1000,
            "trace": headers.get("Lambda-Runtime-Trace-Id"),
            "client": headers.get("Lambda-Runtime-Client-Context"),
            "tenant": headers.get("Lambda-Runtime-Aws-Tenant-Id"),
        }
        return head, event

    def post(self, place: str, body: bytes, error_type: "str | None") -> None:
        """Send the platform an answer or an error."""
        headers = {"Content-Type": "application/json"}
        if error_type is not None:
            # The name of a class may have any letters, and a header only those of ASCII.
            headers["Lambda-Runtime-Function-Error-Type"] = error_type.encode("ascii", "backslashreplace").decode()
        self._connection.request("POST", _BASE + place, body, headers)
        self._connection.getresponse().read()
