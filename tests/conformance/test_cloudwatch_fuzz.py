"""Random requests to the Logs API and the metrics API: each is answered in time, without a server error, and with an
error that AWS documents for the operation.

`THAWD_FUZZ=100000` sends so many; `THAWD_FUZZ_SEED` sets another beginning.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.session import get_session

from thawd.gateway.lambda_api import inputs

from .conftest import Lambda

COUNT = int(os.environ.get("THAWD_FUZZ", "1500"))
SEED = int(os.environ.get("THAWD_FUZZ_SEED", "1"))
SLOWEST_S = 20.0
SERVICES = {
    "logs": ("Logs_20140328", "1.1", inputs.inputs("thawd.gateway.logs", "logs_operations.json")),
    "cloudwatch": (
        *("GraniteServiceVersion20100801", "1.0"),
        inputs.inputs("thawd.gateway.metrics", "metrics_operations.json"),
    ),
}
# Source: "Common Errors" of both API references.
COMMON = {"SerializationException", "ValidationError", "InvalidParameterException", "ResourceNotFoundException"}
# GetMetricData documents only one error, and answers those of the other operations, too.
COMMON |= {"InvalidParameterValueException", "RequestTooLargeException"}
_ARN = "arn:aws:%s:us-east-1:000000000000:"
TEXTS = (
    *("", " ", "x", "/aws/lambda/configured", "made", "s", "../..", "\0", "\u00e9\u4e16\U0001f600", "\ud800"),
    *("{ $.a = 1 }", "[a, b]", "fields @message | limit 1", "stats count(*) by bin(1m)", "m1 + 1", "Sum", "p99"),
    *(_ARN % "logs" + "log-group:made", _ARN % "lambda" + "function:configured", "x" * 600, "$.x"),
    *("AWS/Lambda", "Duration", "FunctionName", "configured", "f/1", "0/5", "null", "e1"),
)
OTHERS = (None, True, [], {}, [None], {"a": None}, "text", 7, -1, 1e308, {"": ""})


class Requests:
    """Makes random documents for shapes.

    Args:
        seed: number that determines the documents.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def document(self, members: Mapping[str, Any]) -> Any:
        """Make an input, which is sound in half of all cases."""
        oddness = self._random.choice((0.0, 0.0, 0.1, 0.4))
        return self._members(members, oddness)

    def _members(self, members: Mapping[str, Any], oddness: float) -> dict[str, Any]:
        often = self._random.choice((0.1, 0.5))
        return {
            name: self._value(shape, oddness, name)
            for name, shape in members.items()
            if self._random.random() < (1 - oddness / 2 if shape.get("required") else often)
        }

    def _value(self, shape: Mapping[str, Any], oddness: float, name: str = "") -> Any:
        choose = self._random
        if choose.random() < oddness:
            return choose.choice((*OTHERS, *TEXTS))
        kind = shape["type"]
        if kind == "structure":
            return self._members(shape["members"], oddness)
        if kind == "list":
            return [self._value(shape["member"], oddness) for _ in range(choose.choice((1, 1, 2, 3)))]
        if kind == "map":
            return {f"k{index}": self._value(shape["value"], oddness) for index in range(choose.choice((1, 2)))}
        if kind == "string":
            return self._text(name, shape)
        return choose.random() < 0.5 if kind == "boolean" else self._number(name, shape)

    def _text(self, name: str, shape: Mapping[str, Any]) -> str:
        named = {"logGroupName": "made", "logStreamName": "s", "Namespace": "AWS/Lambda", "Stat": "Sum"}
        if name in named and self._random.random() < 0.8:
            return named[name]
        return str(self._random.choice(shape.get("enum") or TEXTS))

    def _number(self, name: str, shape: Mapping[str, Any]) -> Any:
        now = time.time()
        if "ime" in name:  # startTime, timestamp, StartTime
            return self._random.choice((int(now * 1000), int(now), int(now) - 3600, 0))
        least, most = shape.get("min", 0), min(shape.get("max", 3600), 3600)
        return self._random.choice((least, most, 7, 60, 300))


@pytest.mark.parametrize("service", SERVICES)
def test_random_requests_are_answered_as_documented(aws: Lambda, service: str) -> None:
    """Source: AWS's service models, the errors of each operation."""
    prefix, version, inputs = SERVICES[service]
    model = get_session().get_service_model(service)
    requests, choose = Requests(SEED), random.Random(SEED)
    address = urlsplit(aws.running.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=SLOWEST_S)
    names = [name for name in inputs if name != "StartLiveTail"]  # its answer does not end
    answers: Counter[tuple[str, int]] = Counter()
    problems: list[str] = []
    for index in range(COUNT):
        name = choose.choice(names)
        body = json.dumps(requests.document(inputs[name])).encode()
        if choose.random() < 0.02:
            body = choose.choice((b"{", b"[]", b"\xff", b"7", b"[" * 5000, body[:-1]))
        headers = {"X-Amz-Target": f"{prefix}.{name}", "Content-Type": f"application/x-amz-json-{version}"}
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        answers[name, answer.status] += 1
        problem = None
        if answer.status >= 500 or not answer.headers["x-amzn-requestid"]:
            problem = "a server error, or no request id"
        elif answer.status >= 400:
            code = json.loads(content)["__type"]
            documented = {shape.name for shape in model.operation_model(name).error_shapes} | COMMON
            if code not in documented:
                problem = f"{code} is not documented"
        if problem is not None:
            problems.append(
                f"request {index}, {name}: {problem}\n  {body[:500]!r}\n  -> {answer.status} {content[:300]!r}"
            )
    connection.close()
    assert not problems, f"{len(problems)} problems, the first ones:\n" + "\n".join(problems[:8])
    succeeded = {name for name, status in answers if status == 200}
    if COUNT >= 1500:
        assert len(succeeded) >= len(names) * 0.6, f"nothing succeeded with {set(names) - succeeded}"
