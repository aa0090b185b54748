"""Python's logging inside a function, set up as on Lambda, as text or as JSON; the environment variables say which.

Text: level WARNING, one line with level, time and request id. JSON: one object a line, level INFO unless
``AWS_LAMBDA_LOG_LEVEL`` says otherwise. What is printed stays as it is.
"""

import logging
import os
import sys
import time
from typing import Any, Optional

from thawd.runtime import faults

_request_id = ""
_handler: "Optional[_ToStandardOutput]" = None
_level = ""

# Lambda's names of levels that logging does not have. Source: AWS Lambda developer guide, "Log-level filtering".
_LEVELS = {"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL"}


def set_request_id(request_id: str) -> None:
    """Which invocation the records from now on belong to."""
    global _request_id  # noqa: PLW0603 - one invocation at a time is what an environment is
    _request_id = request_id


class _RequestId(logging.Filter):
    def filter(self, record: Any) -> bool:
        record.aws_request_id = _request_id
        return True


class _ToStandardOutput(logging.Handler):
    """Writes to whatever ``sys.stdout`` is at the time, so that a redirection by the user holds."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stdout.write(self.format(record))
        except Exception:  # a record that cannot be formatted is reported the way logging does it
            self.handleError(record)


def install() -> None:
    """Give the root logger Lambda's handler and format."""
    global _handler  # noqa: PLW0603 - one root logger is what a process has
    _handler = _ToStandardOutput()
    _handler.addFilter(_RequestId())
    configure()
    logging.root.addHandler(_handler)


def configure() -> None:
    """Take format and level from the environment variables; again in a copy, whose variables may be others."""
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
        # Only then: init may have set another one, which a copy keeps.
        logging.root.setLevel(_LEVELS.get(level, level))


def _text_formatter() -> logging.Formatter:
    formatter = logging.Formatter(
        "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s\n", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    return formatter


def _json_formatter() -> logging.Formatter:
    from thawd.runtime.json_logs import JsonFormatter  # text needs none of it

    return JsonFormatter()
