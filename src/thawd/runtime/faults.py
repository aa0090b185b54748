"""Makes Lambda's error documents from Python exceptions. The stack trace contains only the frames of user code.

Source: AWS Lambda developer guide, "Python function errors", and for the field names the Runtime API's page.
"""

import json
import os
import sys
import time
from typing import Any, Dict, List, Optional

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


TOO_LARGE = "Function.ResponseSizeTooLarge"
EXITED = "Runtime.ExitError"
# On AWS, the platform reports these failures and not the runtime, so their documents have only type and message.
_SHORT_DOCUMENTS = {TOO_LARGE: "%s", EXITED: "Error: %s"}
_LONGEST_MESSAGE = 256 * 1024  # CloudWatch's limit for one log event was 256 KiB until 2025
# Whether failures are written to the log as JSON; `logs.configure` sets it.
as_json = False
# Whether a debugger can stop this process (``thawd up --debug``); `thawd.runtime.debugging` sets it.
debugged = False
# The last exception that each running invocation has logged: type and message, by request id.
logged: Dict[str, List[str]] = {}
_MOST_LOGGED = 1000  # some are never taken, because their invocations were given up


class Fault(Exception):
    """A failure that the runtime itself detected, with Lambda's error type for it.

    Attributes:
        error_type: for example ``Runtime.HandlerNotFound``.
        message: what happened.
        cause: the exception that caused the failure. Its frames become the stack trace; None: no stack trace.
    """

    def __init__(self, error_type: str, message: str, cause: Optional[BaseException] = None) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.message = message
        self.cause = cause


class Report:
    """The report of a failure: `document` for the caller, `text` for the log."""

    def __init__(self, error_type: str, message: str, frames: List[str], request_id: str = "") -> None:
        self.error_type = error_type
        self.message = message
        self.frames = frames
        self.request_id = request_id

    @property
    def document(self) -> bytes:
        """The error document, JSON text: errorMessage, errorType, requestId, stackTrace."""
        return self.document_for(self.request_id)

    def document_for(self, request_id: str) -> bytes:
        """The error document for one of several requests that failed together."""
        short = _SHORT_DOCUMENTS.get(self.error_type)
        if short is not None:
            return json.dumps({"errorType": self.error_type, "errorMessage": short % self.message}).encode()
        return json.dumps({**self._fields(), "requestId": request_id}).encode()

    def _fields(self) -> Dict[str, Any]:
        return {
            "errorMessage": self.message,
            "errorType": self.error_type,
            "requestId": self.request_id,
            "stackTrace": self.frames,
        }

    @property
    def text(self) -> str:
        """The lines for the log, ending in a newline; one line if the function logs as JSON."""
        if as_json:
            from thawd.runtime.json_logs import encode, timestamp

            return encode({"timestamp": timestamp(time.time()), "log_level": "ERROR", **self._fields()}) + "\n"
        return self._text("")

    @property
    def text_for_item(self) -> str:
        """As `text`, for an item of a batch: the first line contains the request id."""
        return self.text if as_json else self._text("RequestId: %s " % self.request_id)

    def _text(self, which: str) -> str:
        lines = ["[ERROR] %s%s: %s\n" % (which, self.error_type, self.message)]
        if self.frames:
            lines.append("Traceback (most recent call last):\n")
            lines.extend(self.frames)
        return "".join(lines)


def report(error: BaseException, request_id: str = "") -> Report:
    """The report of `error`, which is a `Fault` or any exception of user code."""
    if isinstance(error, Fault):
        return Report(error.error_type, error.message, _frames(error.cause), request_id)
    return Report(type(error).__name__, _message(error), _frames(error), request_id)


def _message(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception as failure:  # a user's __str__ may itself fail
        return "<no message: __str__ raised %s>" % type(failure).__name__
    if not message and type(error).__name__ == "BdbQuit":
        return "the debugger's user ended it" if debugged else _way_to_debugger()
    if len(message) > _LONGEST_MESSAGE:
        return "%s... (%d characters in total)" % (message[:_LONGEST_MESSAGE], len(message))
    return message


def refuse_breakpoint(*args: Any, **kwargs: Any) -> Any:
    """What ``breakpoint()`` does where no debugger can stop this process: it fails as on Lambda, but says why.

    As `sys.breakpointhook`. If ``PYTHONBREAKPOINT`` is set, Python's own hook does what that says.

    Raises:
        bdb.BdbQuit: always, unless ``PYTHONBREAKPOINT`` is set. pdb raises it when it reaches the end of its input.
    """
    if os.environ.get("PYTHONBREAKPOINT"):
        return sys.__breakpointhook__(*args, **kwargs)
    from bdb import BdbQuit

    raise BdbQuit(_way_to_debugger())


def _way_to_debugger() -> str:
    name = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "FUNCTION")
    return "to stop here: thawd up --debug %s, or thawd run FILE --debug" % name


def _frames(error: Optional[BaseException]) -> List[str]:
    """The formatted frames of `error` that belong to user code, without those of the import machinery."""
    if error is None:
        return []
    import linecache
    import traceback

    linecache.checkcache()
    frames: List[Any] = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    lines = traceback.format_list(frames)
    if isinstance(error, SyntaxError) and not any(error.filename == frame.filename for frame in frames):
        # The frame of a file with a syntax error is not in the traceback, only in the exception itself.
        lines.extend(line for line in traceback.format_exception_only(type(error), error)[:-1])
    return lines


def _is_users(filename: str) -> bool:
    if filename.startswith("<frozen importlib"):
        return False
    return not filename.startswith(_OWN_FOLDER) and filename != sys.modules["importlib"].__file__


def note_logged(request_id: str, error: BaseException) -> None:
    """Remember an exception that the log contains, in case the invocation answers with a server's error.

    Web frameworks handle exceptions themselves: they log them, and answer with status 500.
    """
    from thawd.wire.frames import LONGEST_LOGGED  # not in the layer of `deployed_application`, which does not call this

    if len(logged) >= _MOST_LOGGED:
        logged.clear()
    if isinstance(error, Fault):
        name, message = error.error_type, error.message
    else:
        name, message = type(error).__name__, _message(error)
    # The platform takes valid UTF-8 only.
    logged[request_id] = [text.encode("utf-8", "replace").decode() for text in (name[:200], message[:LONGEST_LOGGED])]


def write_log(text: str) -> None:
    """Write to the function's log through standard error, even if the function has closed or replaced that stream."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except Exception:  # a stream of the function may raise anything
        try:
            os.write(2, text.encode("utf-8", "backslashreplace"))
        except OSError:
            pass
