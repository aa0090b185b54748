"""Records of ``logging`` as JSON objects, with the keys that Lambda's Python runtime gives them.

Source: AWS Lambda developer guide, "Log and monitor Python Lambda functions", "Using structured JSON logs with Python".
"""

import json
import logging
import time
import traceback
from typing import Any, Dict

# What every record has, to tell apart what the user added. The name of a task is None outside of asyncio, and left out.
_COMMON = frozenset(vars(logging.makeLogRecord({}))) - {"taskName"} | {"message", "asctime", "aws_request_id"}


class JsonFormatter(logging.Formatter):
    """Each record on one line, whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        """JSON text with a newline; values that JSON does not know are written as texts."""
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
            fields["errorMessage"] = str(error[1])
            fields["location"] = "%s:%s:%d" % (record.pathname, record.funcName, record.lineno)
        fields["requestId"] = getattr(record, "aws_request_id", None) or None  # none while init runs
        for key, value in vars(record).items():
            if key not in _COMMON and key not in fields:
                fields[key] = value
        return encode({key: value for key, value in fields.items() if value is not None}) + "\n"


def encode(fields: Dict[str, Any]) -> str:
    """JSON text of one line."""
    try:
        return json.dumps(fields, default=str, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # keys that are no texts, or a value that holds itself
        return json.dumps({str(key): _plain(value) for key, value in fields.items()}, ensure_ascii=False)


def _plain(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value


def timestamp(seconds: float) -> str:
    """``2026-11-20T12:00:00.123Z``."""
    milliseconds = int(seconds * 1000)
    return "%s.%03dZ" % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000)), milliseconds % 1000)
