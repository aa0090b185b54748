"""`thawd.runtime.logs`: environment variables decide, in a copy too; any record can be logged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import thawd
from tests.unit.runtime_process import ready, running
from thawd.environments.result_frames import decode_head
from thawd.wire import frames

SOURCE = str(Path(thawd.__file__).parents[1])


def run(code: str, **variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": SOURCE, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_a_copy_takes_format_and_level_from_its_own_variables() -> None:
    lines = run(
        """
        import logging, os
        from thawd.runtime import logs
        logs.install()
        logging.info("left out"); logging.warning("text")
        os.environ.update(AWS_LAMBDA_LOG_FORMAT="JSON", AWS_LAMBDA_LOG_LEVEL="TRACE")
        logs.configure()
        logging.debug("json")
        os.environ["AWS_LAMBDA_LOG_FORMAT"] = "Text"
        logs.configure()
        logging.info("left out"); logging.warning("text again")
        """
    )
    assert [line.endswith(text) for line, text in zip(lines, ("text", "}", "text again"), strict=True)] == [True] * 3
    assert json.loads(lines[1])["message"] == "json"


def test_a_level_that_init_chose_is_kept_where_the_variables_are_the_same() -> None:
    lines = run(
        """
        import logging
        from thawd.runtime import logs
        logs.install()
        logging.getLogger().setLevel(logging.DEBUG)
        logs.configure()
        logging.debug("kept")
        """,
        AWS_LAMBDA_LOG_FORMAT="JSON",
    )
    assert json.loads(lines[0])["message"] == "kept"


def test_no_value_is_too_odd_for_a_line() -> None:
    lines = run(
        """
        import logging
        from thawd.runtime import logs
        logs.install()
        own = []; own.append(own)
        logging.error("a\\nb \\u2028 \\ud800", extra={"own": own, "keys": {(1, 2): 3}, "b": b"x", "message_": 1})
        logging.error("%s", logging)
        logging.error("bare", exc_info=True)
        """,
        AWS_LAMBDA_LOG_FORMAT="JSON",
        PYTHONIOENCODING="utf-8:backslashreplace",
    )
    assert len(lines) == 3
    odd = json.loads(lines[0])
    assert odd["message"].startswith("a\nb")
    assert odd["own"] == "[[...]]"
    assert odd["message_"] == 1
    assert "errorType" not in json.loads(lines[2])


def test_text_loads_none_of_what_json_needs() -> None:
    code = "import sys\nfrom thawd.runtime import logs\nlogs.install()\nprint('thawd.runtime.json_logs' in sys.modules)"
    assert run(code) == ["False"]


LOGS_EXCEPTIONS = """
    import logging
    def handler(event, context):
        for message in event:
            try:
                raise ValueError(message)
            except ValueError as error:
                logging.warning("not as an error", exc_info=True)
                if message != "warned":
                    logging.getLogger("web").exception("request failed")
        return {"statusCode": 500}
"""


def test_the_last_exception_that_an_invocation_has_logged_as_an_error_is_reported_with_its_answer(
    tmp_path: Path,
) -> None:
    with running(tmp_path, LOGS_EXCEPTIONS) as process:
        ready(process)
        seen = []
        for number, messages in enumerate((["first", "last"], ["warned"], [], ["\ud800"], ["long" * 2100])):
            head = {"id": f"rid-{number}", "arn": "arn:f", "left_ms": 3000}
            process.control.sendall(frames.encode(frames.INVOKE, head, json.dumps(messages).encode()))
            frame = process.receive()
            assert frame is not None and json.loads(frame.body) == {"statusCode": 500}
            seen.append(decode_head(json.dumps(frame.head)).logged)
    assert seen == [("ValueError", "last"), None, None, ("ValueError", "?"), ("ValueError", "long" * 2048)]


def test_values_and_errors_whose_text_fails_are_logged() -> None:
    lines = run(
        """
        import logging
        from thawd.runtime import logs
        class Odd(Exception):
            def __str__(self): raise RuntimeError
            __repr__ = __str__
        logs.install()
        logging.error("value", extra={"odd": Odd(), "same": {Odd(): 1}})
        try:
            raise Odd
        except Odd:
            logging.exception("error")
        """,
        AWS_LAMBDA_LOG_FORMAT="JSON",
    )
    value, error = map(json.loads, lines)
    text = "<no text: Odd raised RuntimeError>"
    assert (value["message"], value["odd"], error["errorMessage"]) == ("value", text, text)


def test_a_stream_that_raises_any_error_does_not_end_the_process() -> None:
    code = """
        import os, sys
        from thawd.runtime import faults, process
        class Stream:
            def write(self, text): raise RuntimeError
            flush = write
        sys.stdout = sys.stderr = Stream()
        os.dup2(1, 2)
        process.flush_output()
        faults.write_log("the error\\n")
        os._exit(0)  # Python itself flushes both streams at the exit
        """
    assert run(code) == ["the error"]
