"""Sets up Python's logging inside a function as on Lambda. Environment variables select text or JSON.

With text, the level is WARNING, and each record is a line with level, time and request id. With JSON, each record is an
object on its own line, and the level is INFO unless ``AWS_LAMBDA_LOG_LEVEL`` names another. Output of `print` is not
changed.
"""

import logging
import os
import sys
import time
from typing import Any, Callable, Optional

from thawd.runtime import faults

# Returns the request id for a record. `concurrent` replaces it, because several invocations run at a time there.
find_request_id: Callable[[], str]
_request_id = ""
_handler: "Optional[_ToStandardOutput]" = None
_level = ""

# Levels that Lambda has and Python's logging does not. Source: AWS Lambda developer guide, "Log-level filtering".
_LEVELS = {"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL"}


def set_request_id(request_id: str) -> None:
    """Set the request id for later records."""
    global _request_id  # noqa: PLW0603 - an environment runs one invocation at a time
    _request_id = request_id


def _of_the_only_invocation() -> str:
    return _request_id


find_request_id = _of_the_only_invocation


class _RequestId(logging.Filter):
    def filter(self, record: Any) -> bool:
        record.aws_request_id = find_request_id()
        if record.exc_info and record.levelno >= logging.ERROR and record.exc_info[1] is not None:
            faults.note_logged(record.aws_request_id, record.exc_info[1])
        return True


class _ToStandardOutput(logging.Handler):
    """Writes to the current ``sys.stdout``, so that the user can redirect it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stdout.write(self.format(record))
        except Exception:  # `handleError` is how logging itself reports a record that cannot be formatted
            self.handleError(record)


def install() -> None:
    """Add a handler with Lambda's format to the root logger."""
    global _handler  # noqa: PLW0603 - a process has one root logger
    _handler = _ToStandardOutput()
    _handler.addFilter(_RequestId())
    configure()
    logging.root.addHandler(_handler)


def configure() -> None:
    """Set format and level from the environment variables. A copy calls this again: its variables may differ."""
    global _level  # noqa: PLW0603
    if _handler is None:
        return
    as_json = os.environ.get("AWS_LAMBDA_LOG_FORMAT", "").upper() == "JSON"
    if as_json != faults.as_json or _handler.formatter is None:
        faults.as_json = as_json
        _handler.setFormatter(_json_formatter() if as_json else _text_formatter())
    level = os.environ.get("AWS_LAMBDA_LOG_LEVEL", "INFO").upper() if as_json else "WARNING"
    if level != _level:
        _level = level
        # Set only if the variable has changed: init may have set another level itself, and a copy keeps that level.
        logging.root.setLevel(_LEVELS.get(level, level))


def _text_formatter() -> logging.Formatter:
    formatter = logging.Formatter(
        "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s\n", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    return formatter


def _json_formatter() -> logging.Formatter:
    from thawd.runtime.json_logs import JsonFormatter  # imported only for JSON logs, to keep other starts fast

    return JsonFormatter()
