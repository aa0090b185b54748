"""A sample that ``thawd up`` serves: starts the server, waits for the stacks, and calls what they contain."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import boto3
from botocore.config import Config

_INSTALLED = re.compile(r"^  packages  .* installed in (\d+\.\d) s$", re.MULTILINE)
_API = re.compile(r"https://(\w+)\.execute-api\.[\w-]+\.amazonaws\.com/?")
_STOP_S = 30.0
Found = TypeVar("Found")


class WrongAnswerError(Exception):
    """A sample did not answer, or answered wrongly. The message says what."""


@dataclass(slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: str

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


@dataclass(slots=True)
class Served:
    """A running server with the stacks of one sample.

    Attributes:
        folder: where the sample is.
        url: the server's URL.
        process: the server.
        log: the server's output.
        started: when the server was started, in seconds of `time.monotonic`.
        limit_s: how long to wait for the stacks, and for each thing that happens later.
    """

    folder: Path
    url: str
    process: subprocess.Popen[bytes]
    log: Path
    started: float
    limit_s: float
    _clients: dict[str, Any] = field(default_factory=dict)
    _resources: dict[str, str] | None = None
    _outputs: dict[str, str] | None = None

    def client(self, service: str) -> Any:
        """A client of boto3."""
        if service not in self._clients:
            config = Config(
                retries={"total_max_attempts": 1}, read_timeout=self.limit_s, s3={"addressing_style": "path"}
            )
            session = boto3.Session("test", "test", region_name="us-east-1")
            self._clients[service] = session.client(service, endpoint_url=self.url, config=config)
        return self._clients[service]

    def wait(self, stacks: int) -> None:
        """Wait until the stacks are complete.

        Raises:
            WrongAnswerError: a stack failed, or the server ended.
        """
        deadline = time.monotonic() + self.limit_s
        while time.monotonic() < deadline:
            output = self.log.read_text(errors="replace")
            if output.count("  stack     ") >= stacks:
                return
            if failure := re.search(r"thawd: (stack .*(?:\n\S.*)*|.*(?:Error|there is no|is built by).*)", output):
                raise WrongAnswerError(failure.group(1))
            if self.process.poll() is not None:
                raise WrongAnswerError(f"the server ended: {output[-600:]}")
            time.sleep(0.02)
        raise WrongAnswerError(f"no stack after {self.limit_s:.0f} s: {output[-600:]}")

    @property
    def installing_s(self) -> float:
        """How long thawd has installed packages, as its output says."""
        return sum(map(float, _INSTALLED.findall(self.log.read_text(errors="replace"))))

    @property
    def outputs(self) -> dict[str, str]:
        """The outputs of all stacks, by name."""
        if self._outputs is None:
            stacks = self.client("cloudformation").describe_stacks()["Stacks"]
            self._outputs = {one["OutputKey"]: one["OutputValue"] for each in stacks for one in each.get("Outputs", [])}
        return self._outputs

    def physical(self, logical_id: str) -> str:
        """The physical id of a resource. A CDK app's logical ids end with a hash, which may be left out."""
        if self._resources is None:
            client = self.client("cloudformation")
            listed = [
                one
                for stack in client.describe_stacks()["Stacks"]
                for one in client.describe_stack_resources(StackName=stack["StackName"])["StackResources"]
            ]
            self._resources = {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in listed}
        if logical_id in self._resources:
            return self._resources[logical_id]
        found = [each for name, each in self._resources.items() if re.fullmatch(rf"{logical_id}[0-9A-F]{{8}}", name)]
        if len(found) != 1:
            raise WrongAnswerError(f"there are {len(found)} resources {logical_id} among {sorted(self._resources)}")
        return found[0]

    def invoke(self, function: str, event: object, *, kind: str = "RequestResponse", alias: str = "$LATEST") -> Any:
        """Invoke a function, and return its answer.

        Raises:
            WrongAnswerError: the function failed.
        """
        answer = self.client("lambda").invoke(
            FunctionName=self.physical(function), Payload=json.dumps(event), InvocationType=kind, Qualifier=alias
        )
        text = answer["Payload"].read().decode()
        if "FunctionError" in answer:
            raise WrongAnswerError(f"{function}: {text[:600]}")
        return json.loads(text) if text else None

    def request(
        self, url: str, *, method: str = "GET", body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send an HTTP request. Addresses of APIs at AWS become those of the server."""
        local = _API.sub(lambda each: f"{self.url}/_aws/execute-api/{each.group(1)}/", url)
        data = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        every = {"content-type": "application/json"} if data is not None else {}
        asked = urllib.request.Request(local, data, {**every, **(headers or {})}, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=self.limit_s) as answered:
                return Answer(answered.status, answered.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode(errors="replace"))

    def api(self, logical_id: str, path: str) -> str:
        """The URL of an API's path, which begins with the stage if the API is a REST API."""
        return f"{self.url}/_aws/execute-api/{self.physical(logical_id)}/{path}"

    def until_logged(self, function: str, text: str) -> None:
        """Wait until a function has logged a text."""
        group = f"/aws/lambda/{self.physical(function)}"

        def logged() -> str:
            pages = self.client("logs").get_paginator("filter_log_events").paginate(logGroupName=group)
            return "\n".join(event["message"] for page in pages for event in page["events"])

        self.until(lambda: text in logged(), f"{function} has not logged {text!r}")

    def until_row(self, table: str, key: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for an item of a table, and return it."""
        client, name = self.client("dynamodb"), self.physical(table)
        return dict(
            self.until(lambda: client.get_item(TableName=name, Key=key).get("Item"), f"no item {key} in {name}")
        )

    def until(self, found: Callable[[], Found | None], complaint: str) -> Found:
        """Ask until there is something. Errors of services count as nothing.

        Raises:
            WrongAnswerError: there was nothing.
        """
        deadline, last = time.monotonic() + self.limit_s, ""
        while time.monotonic() < deadline:
            try:
                if thing := found():
                    return thing
            except Exception as error:  # a service's error: the thing is not there yet
                last = f" ({error})"
            time.sleep(0.05)
        raise WrongAnswerError(f"{complaint} after {self.limit_s:.0f} s{last}")

    def stop(self) -> None:
        """End the server."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def expect(what: bool, answer: object) -> None:
    """Judge an answer.

    Raises:
        WrongAnswerError: it is wrong.
    """
    if not what:
        raise WrongAnswerError(f"wrong answer: {str(answer)[:600]}")


def serve(
    folder: Path, thawd: str, options: list[str], environ: Mapping[str, str], log: Path, limit_s: float
) -> Served:
    """Start ``thawd up`` in a folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            [thawd, "up", "--port", str(port), *options],
            cwd=folder,
            env=dict(environ),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Served(folder, f"http://127.0.0.1:{port}", process, log, started, limit_s)
