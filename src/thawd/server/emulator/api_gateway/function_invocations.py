"""Invokes functions for APIs through thawd's Lambda API, and waits for their answers at most as long as API Gateway."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_FUNCTION = re.compile(r"(?:^|/functions/)(arn:aws[a-z-]*:lambda:[^/]+)(?:/invocations)?$")
_STAGE_VARIABLE = re.compile(r"\$\{stageVariables\.([A-Za-z0-9_]+)\}")


class InvocationFailed(Exception):
    """A function could not be invoked: it does not exist, is throttled, or thawd refused. The message says why."""


class InvocationTimeout(Exception):
    """The function has not answered in time. Its invocation continues, as on AWS."""


@dataclass(frozen=True, slots=True)
class FunctionAnswer:
    """The answer of a function.

    Attributes:
        payload: the answer, or the error, as JSON.
        is_error: whether the function failed.
    """

    payload: bytes
    is_error: bool


class ApiFunctions:
    """Invokes functions.

    Args:
        client: returns a boto3 client for thawd's Lambda API that waits for the longest invocations and does not retry.
    """

    def __init__(self, client: Callable[[], Any]) -> None:
        self._client = client
        self._traced: Any = None  # the client that sends the trace header

    def invoke(
        self, arn: str, event: bytes, *, timeout_s: float, is_asynchronous: bool = False, trace: str = ""
    ) -> FunctionAnswer:
        """Invoke a function and wait for its answer.

        Args:
            arn: ARN or name of the function.
            event: the event, as JSON.
            timeout_s: how long to wait, seconds.
            is_asynchronous: whether to queue the event only. The answer is then empty.
            trace: value of the trace header; "": thawd makes a new one.

        Raises:
            InvocationFailed: the function could not be invoked.
            InvocationTimeout: it has not answered in time.
        """
        answers: queue.SimpleQueue[FunctionAnswer | Exception] = queue.SimpleQueue()
        kind = "Event" if is_asynchronous else "RequestResponse"

        def work() -> None:
            try:
                answers.put(self._invoked(arn, event, kind, trace))
            except Exception as error:  # whatever fails, the request is answered
                answers.put(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            answer = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise InvocationTimeout(f"{arn} has not answered within {timeout_s:g} s") from None
        if isinstance(answer, Exception):
            raise InvocationFailed(f"{arn} could not be invoked: {answer}") from answer
        return answer

    def _invoked(self, arn: str, event: bytes, kind: str, trace: str) -> FunctionAnswer:
        _trace.value = trace
        client = self._client()
        if client is not self._traced:
            client.meta.events.register("before-call.lambda.Invoke", _add_trace)
            self._traced = client
        answer = client.invoke(FunctionName=arn, InvocationType=kind, Payload=event)
        return FunctionAnswer(answer["Payload"].read(), "FunctionError" in answer)


class _Trace(threading.local):
    value = ""


_trace = _Trace()


def _add_trace(params: dict[str, Any], **_: Any) -> None:
    if _trace.value:
        params["headers"]["X-Amzn-Trace-Id"] = _trace.value


def function_in(uri: str) -> str | None:
    """Return the ARN of the function in the URI of an integration or authorizer.

    The URI may also be the ARN itself. None: the URI contains no function's ARN.
    """
    match = _FUNCTION.search(uri)
    return match[1] if match else None


def with_variables(text: str, variables: Mapping[str, str]) -> str:
    """Return a URI with the values of its stage variables: ``${stageVariables.name}``."""
    return _STAGE_VARIABLE.sub(lambda match: variables.get(match[1], ""), text)
