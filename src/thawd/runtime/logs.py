"""Python's logging inside a function, set up as on Lambda: level WARNING, one line with level, time and request id."""

import logging
import sys
import time
from typing import Any

_request_id = ""


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
    handler = _ToStandardOutput()
    formatter = logging.Formatter(
        "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s\n", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    handler.addFilter(_RequestId())
    logging.root.addHandler(handler)
