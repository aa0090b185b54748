"""Claims about `thawd.runtime.batches`: what a handler that takes lists gets, and what becomes of what it returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.interpreters_here import INTERPRETERS
from tests.unit.runtime_process import Process, ready, running
from thawd.wire import frames

CODE = """
    import json, logging, os, sys
    def handler(events, context):
        if events[0] == "raise":
            raise ValueError("all of them")
        if events[0] == "exit":
            sys.exit(4)
        if events[0] == "log":
            logging.warning("from the batch")
        return [answer(event, item, context) for event, item in zip(events, context.items)]
    def answer(event, item, context):
        if event == "raised":
            try:
                raise KeyError("with a trace")
            except KeyError as error:
                return error
        if event == "facts":
            client = item.client_context.custom if item.client_context else None
            return [item.aws_request_id, item.invoked_function_arn, context.aws_request_id,
                    context.invoked_function_arn, client, context.client_context is None,
                    os.environ.get("_X_AMZN_TRACE_ID"), item.function_name]
        return eval(event[1:]) if isinstance(event, str) and event[0] == "=" else event
"""


def batch(process: Process, *events: Any, heads: list[dict[str, Any]] | None = None) -> list[tuple[bool, Any]]:
    """Whether each item failed, and its answer."""
    for item, event in enumerate(events):
        head = {"id": f"rid-{item}", "arn": "arn:aws:lambda:r:0:function:f", "left_ms": 3000}
        head |= {"item": item, "of": len(events)} | (heads[item] if heads else {})
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        process.control.sendall(frames.encode(frames.INVOKE, head, body))
    answers = []
    for item in range(len(events)):
        frame = process.receive()
        assert frame is not None, process.printed()
        assert (frame.kind, frame.head.get("item", 0)) == (frames.RESULT, item)
        answers.append((frame.head["failed"], json.loads(frame.body)))
    return answers


@pytest.mark.parametrize("python", INTERPRETERS)
def test_a_bad_item_fails_alone_and_the_handler_gets_the_good_ones(tmp_path: Path, python: str) -> None:
    with running(tmp_path, CODE, python=python, THAWD_BATCH="1") as process:
        ready(process)
        answers = batch(process, 1, b"{not JSON", "raised", "=object()", "=ValueError('returned')", b"[" * 100_000, 7)
        assert [failed for failed, _ in answers] == [False, True, True, True, True, True, False]
        assert (answers[0][1], answers[6][1]) == (1, 7)
        types = [answer["errorType"] for failed, answer in answers if failed]
        assert types == ["Runtime.UnmarshalError", "KeyError", "Runtime.MarshalError", "ValueError", "RecursionError"]
        assert [answer["requestId"] for failed, answer in answers if failed] == [f"rid-{item}" for item in range(1, 6)]
        assert "raise KeyError" in "".join(answers[2][1]["stackTrace"])
        assert batch(process, b"{", b"{")[1][1]["errorType"] == "Runtime.UnmarshalError"
        printed = process.printed()
        assert "[ERROR] RequestId: rid-2 KeyError: 'with a trace'" in printed
        assert "[ERROR] RequestId: rid-1 Runtime.UnmarshalError" in printed


def test_the_context_has_the_facts_of_each_item(tmp_path: Path) -> None:
    client = json.dumps({"custom": {"a": 1}})
    arn = "arn:aws:lambda:r:0:function:f"
    with running(tmp_path, CODE, THAWD_BATCH="1") as process:
        ready(process)
        heads = [{"arn": f"{arn}:live", "trace": "Root=1"}, {"trace": "Root=2", "client": client}]
        one, two = batch(process, "facts", "facts", heads=heads)
        assert one == (False, ["rid-0", f"{arn}:live", "rid-0,rid-1", arn, None, True, None, "f"])
        assert two == (False, ["rid-1", arn, "rid-0,rid-1", arn, {"a": 1}, True, None, "f"])
        (alone,) = batch(process, "facts", heads=[{"trace": "Root=3", "client": client}])
        assert alone == (False, ["rid-0", arn, "rid-0", arn, {"a": 1}, False, "Root=3", "f"])


def test_what_the_handler_raises_fails_each_item_and_is_logged_once(tmp_path: Path) -> None:
    with running(tmp_path, CODE, THAWD_BATCH="1") as process:
        ready(process)
        answers = batch(process, "raise", 2, 3)
        assert [(failed, answer["errorType"], answer["requestId"]) for failed, answer in answers] == [
            (True, "ValueError", f"rid-{item}") for item in range(3)
        ]
        assert process.printed().count("[ERROR] ValueError: all of them") == 1


@pytest.mark.parametrize(
    ("returns", "found"),
    [
        ("[1]", "a list of 1"),
        ("[1, 2, 3]", "a list of 3"),
        ("None", "None"),
        ("{1: 2, 3: 4}", "an object of type dict"),
        ("'ab'", "an object of type str"),
        ("(each for each in events)", "an object of type generator"),
    ],
)
def test_anything_but_a_list_of_as_many_answers_fails_each_item(tmp_path: Path, returns: str, found: str) -> None:
    with running(tmp_path, f"def handler(events, context): return {returns}", THAWD_BATCH="1") as process:
        ready(process)
        for failed, answer in batch(process, 1, 2):
            assert failed
            assert answer["errorType"] == "Runtime.InvalidBatchResponse"
            assert answer["errorMessage"].endswith(
                f"return a list of 2 answers, in the same order, but returned {found}"
            )


def test_a_tuple_of_answers_is_a_list_of_answers(tmp_path: Path) -> None:
    with running(tmp_path, "def handler(events, context): return tuple(events)", THAWD_BATCH="1") as process:
        ready(process)
        assert batch(process, 1, 2) == [(False, 1), (False, 2)]


def test_changing_the_lists_that_the_handler_got_mixes_nothing_up(tmp_path: Path) -> None:
    code = """
        def handler(events, context):
            context.items.clear()
            answers = list(events)
            events.clear()
            return answers
    """
    with running(tmp_path, code, THAWD_BATCH="1") as process:
        ready(process)
        assert batch(process, 1, 2) == [(False, 1), (False, 2)]


def test_log_records_of_a_batch_name_the_request_ids_of_its_items(tmp_path: Path) -> None:
    with running(tmp_path, CODE, THAWD_BATCH="1") as process:
        ready(process)
        batch(process, "log", b"{", 3)
        assert "\trid-0,rid-2\tfrom the batch" in process.printed()


def test_an_exit_ends_the_process_and_the_batch_has_no_answers(tmp_path: Path) -> None:
    with running(tmp_path, CODE, THAWD_BATCH="1") as process:
        ready(process)
        for item in range(2):
            head = {"id": f"rid-{item}", "arn": "arn:f", "left_ms": 3000, "item": item, "of": 2}
            process.control.sendall(frames.encode(frames.INVOKE, head, b'"exit"'))
        assert process.receive() is None
        assert process.process.wait(120) == 4
        assert "[ERROR] Runtime.ExitError: the handler called sys.exit(4)" in process.printed()


def test_the_platform_that_dies_in_the_middle_of_a_batch_ends_the_process(tmp_path: Path) -> None:
    with running(tmp_path, CODE, THAWD_BATCH="1") as process:
        ready(process)
        head = {"id": "rid-0", "arn": "arn:f", "left_ms": 3000, "item": 0, "of": 2}
        process.control.sendall(frames.encode(frames.INVOKE, head, b"1"))
        process.control.close()
        assert process.process.wait(120) == 0


def test_failures_in_json_logs_are_objects_with_the_request_id_of_the_item(tmp_path: Path) -> None:
    with running(tmp_path, CODE, THAWD_BATCH="1", AWS_LAMBDA_LOG_FORMAT="JSON") as process:
        ready(process)
        batch(process, 1, "raised")
        (line,) = [json.loads(line) for line in process.printed().splitlines()]
        assert (line["requestId"], line["errorType"], line["log_level"]) == ("rid-1", "KeyError", "ERROR")


def test_a_streaming_handler_is_refused_at_init(tmp_path: Path) -> None:
    code = "from thawd import streaming\n@streaming.handler\ndef handler(event, context):\n    yield 'a'\n"
    with running(tmp_path, code, THAWD_BATCH="1") as process:
        frame = process.receive()
        assert frame is not None
        assert (frame.kind, frame.head["type"]) == (frames.INIT_ERROR, "Runtime.InvalidBatchHandler")
