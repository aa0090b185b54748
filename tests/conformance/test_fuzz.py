"""Random requests to a real server, from several clients at once: each is answered in time, without a server error, and
with an error that AWS documents for the operation; afterwards everything is consistent, also after a restart.

`THAWD_FUZZ=100000` sends so many; `THAWD_FUZZ_SEED` sets another beginning.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from .conftest import NOWHERE, Lambda, configured
from .random_requests import INVOKING, NAMES, Requests
from .wire import Answer, Request, Wire, operation

COUNT = int(os.environ.get("THAWD_FUZZ", "1500"))
SEED = int(os.environ.get("THAWD_FUZZ_SEED", "1"))
CLIENTS = 6
SLOWEST_S = 60.0
# Source: AWS Lambda API reference, "Common Errors", and answers of AWS's front end.
COMMON = {
    "AccessDeniedException",
    "InvalidRequestContentException",
    "RequestEntityTooLargeException",
    "RequestTooLargeException",
    "SerializationException",
    "ValidationException",
}
# A request that was damaged may be for no operation at all, or for another one.
UNROUTED = {"MethodNotAllowedException", "ResourceNotFoundException"}


def problem_of(name: str, request: Request, answer: Answer) -> str | None:
    """Return what is wrong with an answer; None: nothing."""
    described = operation(name)
    if answer.status >= 500:
        return "a server error"
    if not answer.headers.get("x-amzn-requestid") and request.method not in ("OPTIONS", "HEAD"):
        return "no request id"
    if answer.status >= 400:
        documented = {shape.name for shape in described.error_shapes} | COMMON
        was_damaged = request.method != described.http["method"] or answer.code in UNROUTED
        if answer.code not in documented and not was_damaged:
            return f"{answer.code} is not documented for {name}"
        if request.method != "HEAD" and not isinstance(answer.document, dict):
            return "the error has no document"
    return None


class Client(threading.Thread):
    """Sends random requests and remembers what is wrong with their answers."""

    def __init__(self, url: str, seed: int, count: int) -> None:
        super().__init__()
        self._wire = Wire(url, timeout_s=SLOWEST_S)
        self._requests = Requests(seed)
        self._seed, self._count = seed, count
        self.problems: list[str] = []
        self.answers: Counter[tuple[str, int, str]] = Counter()

    def run(self) -> None:
        """Send the requests."""
        for index in range(self._count):
            name, request = self._requests.next()

            try:
                answer = self._wire.send(request)
                problem = problem_of(name, request, answer)
                self._requests.learn(answer)
                self.answers[name, answer.status, answer.code] += 1
            except (TimeoutError, http.client.HTTPException, OSError, ValueError) as error:
                problem, answer = f"no answer: {error!r}", Answer(0, {}, b"")
                self._wire.close()
            if problem is not None:
                self.problems.append(
                    f"seed {self._seed}, request {index}, {name}: {problem}\n"
                    f"  {request.method} {request.target[:300]}\n"
                    f"  {request.body[:600]!r}\n  -> {answer.status} {answer.code} {answer.body[:300]!r}"
                )
        self._wire.close()


def everything(aws: Lambda) -> dict[str, Any]:
    """Return all that the API shows, without what depends on time: states, links, optimisations."""
    client = aws.client

    def pages(operation: str, what: str, **parameters: Any) -> list[Any]:
        return list(client.get_paginator(operation).paginate(**parameters).search(what))

    shown: dict[str, Any] = {}
    for name in [function["FunctionName"] for function in pages("list_functions", "Functions[]")]:
        versions = pages("list_versions_by_function", "Versions[]", FunctionName=name)
        aliases = pages("list_aliases", "Aliases[]", FunctionName=name)
        numbers = {version["Version"] for version in versions}
        for alias in aliases:
            weights = alias.get("RoutingConfig", {}).get("AdditionalVersionWeights", {})
            assert {alias["FunctionVersion"], *weights} <= numbers, f"{alias} is for a version that is not there"
        for version in versions:
            for changing in ("SnapStart", "RevisionId", *(("LastModified",) if name == "configured" else ())):
                version.pop(changing)
        urls = pages("list_function_url_configs", "FunctionUrlConfigs[]", FunctionName=name)
        shown[name] = {
            "versions": versions,
            "aliases": aliases,
            "events": pages("list_function_event_invoke_configs", "FunctionEventInvokeConfigs[]", FunctionName=name),
            "urls": [url["AuthType"] for url in urls],
            "tags": client.get_function(FunctionName=name).get("Tags"),
            "concurrency": client.get_function_concurrency(FunctionName=name).get("ReservedConcurrentExecutions"),
        }
    shown["layers"] = [layer["LatestMatchingVersion"] for layer in client.list_layers()["Layers"]]
    mappings = client.list_event_source_mappings()["EventSourceMappings"]
    shown["mappings"] = sorted((one["UUID"], one["FunctionArn"], one["BatchSize"]) for one in mappings)
    shown["signing"] = client.list_code_signing_configs()["CodeSigningConfigs"]
    return json.loads(json.dumps(shown, default=str))  # type: ignore[no-any-return]


def test_random_requests_are_answered_as_documented_and_leave_everything_consistent(tmp_path: Path) -> None:
    """Source: AWS's service model, the errors of each operation; API reference, "Common Errors"."""
    project = configured(tmp_path)
    with project.up(environ=NOWHERE) as running:
        aws = Lambda(running)
        for name in NAMES[:3]:
            aws.create(name)
            aws.publish(name)
            aws.client.create_alias(FunctionName=name, Name="live", FunctionVersion="1")
        clients = [Client(running.url, SEED * 1000 + number, COUNT // CLIENTS) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        problems = [problem for client in clients for problem in client.problems]
        assert not problems, f"{len(problems)} problems, the first ones:\n" + "\n".join(problems[:10])
        answers = sum((client.answers for client in clients), Counter())
        assert sum(answers.values()) == COUNT // CLIENTS * CLIENTS
        names = {name for name, _, _ in answers}
        if COUNT >= 1500:
            assert names >= set(INVOKING)
        before = everything(aws)
    with project.up(environ=NOWHERE) as running:
        assert everything(Lambda(running)) == before, "a restart changes nothing"
