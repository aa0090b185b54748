"""Formats ``logging`` records as JSON objects, with the keys that Lambda's Python runtime uses.

Source: AWS Lambda developer guide, "Log and monitor Python Lambda functions", "Using structured JSON logs with Python".
"""

import json
import logging
import time
import traceback
from typing import Any, Callable, Dict

# Attributes of every record; all others were added by user code. `taskName` counts as added, because it is None outside
# asyncio and None is not written.
_COMMON = frozenset(vars(logging.makeLogRecord({}))) - {"taskName"} | {"message", "asctime", "aws_request_id"}


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON, even if JSON cannot represent a value in it."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON text with a newline. Values that JSON cannot represent are written as text."""
        fields: Dict[str, Any] = {
            "timestamp": timestamp(record.created),
            "level": record.levelname,
            "message": record.getMessage(),
            "logger": record.name,
        }
        error = record.exc_info
        if error and error[0] is not None:
            fields["stackTrace"] = traceback.format_tb(error[2])
            fields["errorType"] = error[0].__name__
            fields["errorMessage"] = _text(error[1])
            fields["location"] = "%s:%s:%d" % (record.pathname, record.funcName, record.lineno)
        fields["requestId"] = getattr(record, "aws_request_id", None) or None  # there is no request id during init
        for key, value in vars(record).items():
            if key not in _COMMON and key not in fields:
                fields[key] = value
        return encode({key: value for key, value in fields.items() if value is not None}) + "\n"


def encode(fields: Dict[str, Any]) -> str:
    """`fields` as one line of JSON text."""
    try:
        return json.dumps(fields, default=_text, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # a key is not text, or a value contains itself
        return json.dumps({str(key): _plain(value) for key, value in fields.items()}, ensure_ascii=False)


def _plain(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return _text(value, repr)
    return value


def _text(value: Any, text_of: Callable[[Any], str] = str) -> str:
    try:
        return text_of(value)
    except Exception as error:  # a user's __str__ may itself fail
        return "<no text: %s raised %s>" % (type(value).__name__, type(error).__name__)


def timestamp(seconds: float) -> str:
    """The time `seconds` (since 1970) as text, for example ``2026-11-20T12:00:00.123Z``."""
    milliseconds = int(seconds * 1000)
    return "%s.%03dZ" % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000)), milliseconds % 1000)
