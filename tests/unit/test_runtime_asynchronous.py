"""Claims about handlers that are `async def`: alone on an event loop, and several invocations at the same time."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.interpreters_here import INTERPRETERS
from tests.unit.runtime_process import Process, ready, running
from thawd.runtime.handler_kinds import is_asynchronous
from thawd.wire import frames

CODE = """
    import asyncio, json, logging, os, sys, time
    gates = {}
    loops = set()
    logging.getLogger().setLevel("INFO")
    async def handler(event, context):
        loops.add(id(asyncio.get_running_loop()))
        do = event.get("do")
        logging.info("begin %s", event.get("n"))
        if do == "wait":
            gates[event["n"]] = asyncio.Event()
            try:
                await asyncio.wait_for(gates[event["n"]].wait(), 60)
            except asyncio.CancelledError:
                print("cancelled", event["n"])
                raise
            logging.info("after the wait of %s", event["n"])
        if do == "open":
            gates[event["n"]].set()
        if do == "raise":
            raise KeyError("no")
        if do == "exit":
            sys.exit(4)
        if do == "cancelled":
            raise asyncio.CancelledError("its own")
        if do == "object":
            return object()
        if do == "child" and not os.fork():
            return "child"
        trace = os.environ.get("_X_AMZN_TRACE_ID")
        return {"n": event.get("n"), "id": context.aws_request_id, "loops": len(loops), "trace": trace}
    async def items(events, context):
        await asyncio.sleep(0)
        return [event["n"] for event in events]
    def ordinary(event, context):
        return event
"""


def send(process: Process, number: int, event: Any, **head: Any) -> None:
    whole = {"id": f"rid-{number}", "arn": "arn:f", "left_ms": 3000, "number": number, **head}
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    process.control.sendall(frames.encode(frames.INVOKE, whole, body))


def answers(process: Process, count: int) -> dict[int, tuple[bool, Any]]:
    """By number: whether the invocation failed, and its answer; in the order of the answers."""
    found = {}
    for _ in range(count):
        frame = process.receive()
        assert frame is not None, process.printed()
        assert frame.kind == frames.RESULT
        assert frame.head["duration_ms"] >= 0
        found[frame.head["number"]] = (frame.head["failed"], json.loads(frame.body))
    return found


@pytest.mark.parametrize("python", INTERPRETERS)
def test_an_asynchronous_handler_runs_alone_and_always_on_the_same_loop(tmp_path: Path, python: str) -> None:
    with running(tmp_path, CODE, python=python) as process:
        ready(process)
        for number in range(3):
            answer = process.invoke({"n": number}, trace="Root=1")
            assert answer == (False, {"n": number, "id": "rid-1", "loops": 1, "trace": "Root=1"})
        assert process.invoke({"do": "raise"})[1]["errorType"] == "KeyError"
        assert process.invoke({"do": "cancelled"})[1]["errorType"] == "CancelledError"
        assert process.invoke({"n": 9})[1]["n"] == 9


@pytest.mark.parametrize("python", INTERPRETERS)
def test_invocations_run_at_the_same_time_and_each_gets_its_own_answer(tmp_path: Path, python: str) -> None:
    with running(tmp_path, CODE, python=python, THAWD_CONCURRENCY="8") as process:
        ready(process)
        for number in range(3):
            send(process, number, {"do": "wait", "n": number}, trace="Root=1")
        for number, opened in ((3, 2), (4, 0), (5, 1)):
            send(process, number, {"do": "open", "n": opened})
            found = answers(process, 2)
            for each in (number, opened):
                answer = {"n": opened, "id": f"rid-{each}", "loops": 1, "trace": None}
                assert found[each] == (False, answer)
        printed = process.printed()
        for number in range(3):
            assert f"\trid-{number}\tafter the wait of {number}\n" in printed, "the record has its own request id"


def test_an_invocation_fails_alone(tmp_path: Path) -> None:
    with running(tmp_path, CODE, THAWD_CONCURRENCY="8") as process:
        ready(process)
        send(process, 0, {"do": "wait", "n": 0})
        for number, event in enumerate([{"do": "raise"}, b"{no JSON", {"do": "object"}, {"do": "cancelled"}], 1):
            send(process, number, event)
        found = answers(process, 4)
        types = [found[number][1]["errorType"] for number in range(1, 5)]
        assert types == ["KeyError", "Runtime.UnmarshalError", "Runtime.MarshalError", "CancelledError"]
        assert [found[number][1]["requestId"] for number in range(1, 5)] == [f"rid-{n}" for n in range(1, 5)]
        send(process, 9, {"do": "open", "n": 0})
        assert answers(process, 2)[0] == (False, {"n": 0, "id": "rid-0", "loops": 1, "trace": None})
        assert "[ERROR] RequestId: rid-1 KeyError: 'no'" in process.printed()


def test_an_invocation_that_is_given_up_is_cancelled_and_not_answered(tmp_path: Path) -> None:
    with running(tmp_path, CODE, THAWD_CONCURRENCY="8") as process:
        ready(process)
        for number in range(2):
            send(process, number, {"do": "wait", "n": number})
        send(process, 3, {})
        answers(process, 1)  # those before it have begun, too
        for number in (0, 7):  # there is no invocation 7: it has ended already
            process.control.sendall(frames.encode(frames.CANCEL, {"number": number}))
        send(process, 2, {"do": "open", "n": 1})
        assert sorted(answers(process, 2)) == [1, 2]
        assert "cancelled 0\n" in process.printed()


def test_a_handler_that_exits_ends_the_process_and_one_that_forks_answers_once(tmp_path: Path) -> None:
    with running(tmp_path, CODE, THAWD_CONCURRENCY="8") as process:
        ready(process)
        send(process, 0, {"do": "child", "n": 1})
        assert answers(process, 1)[0][1]["n"] == 1
        send(process, 1, {"do": "exit"})
        assert process.receive() is None
        assert process.process.wait(120) == 4
        assert "the handler called sys.exit(4)" in process.printed()


@pytest.mark.parametrize("handler", ["app.ordinary", "app.streaming"])
def test_a_handler_that_is_not_asynchronous_fails_its_init_with_the_way_out(tmp_path: Path, handler: str) -> None:
    streaming = """
    from thawd import streaming as s
    streaming = s.handler(lambda event, stream, context: None)
    """
    with running(tmp_path, CODE + streaming, handler=handler, THAWD_CONCURRENCY="8") as process:
        frame = process.receive()
        assert frame is not None
        assert (frame.kind, frame.head["type"]) == (frames.INIT_ERROR, "Runtime.InvalidConcurrentHandler")
        assert "remove the option" in frame.head["message"]


def test_an_asynchronous_handler_can_take_lists(tmp_path: Path) -> None:
    with running(tmp_path, CODE, handler="app.items", THAWD_BATCH="1") as process:
        ready(process)
        assert process.invoke({"n": 3}) == (False, 3)


async def _plain(event: Any, context: Any) -> None:
    """An asynchronous handler."""


class _Callable:
    async def __call__(self, event: Any, context: Any) -> None:
        """An asynchronous handler."""


@functools.wraps(_plain)
def _wrapping(event: Any, context: Any) -> Any:
    return _plain(event, context)


def test_what_counts_as_asynchronous() -> None:
    assert all(map(is_asynchronous, [_plain, _Callable(), _wrapping, functools.partial(_plain, 1)]))
    assert not any(map(is_asynchronous, [lambda event, context: None, print, _Callable, int, object()]))
