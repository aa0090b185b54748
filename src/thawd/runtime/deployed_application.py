"""The handler of a web application in a function of a stack: Lambda calls it, and it calls the application.

``thawd deploy aws`` puts this module, with those that it imports, into the layer with the package ``thawd``. They use
only the standard library. WEB_APPLICATION names the application, as a handler is named. The answer is returned whole,
because Lambda's Python runtimes do not stream.
"""

import atexit
import importlib
import os
import traceback
from typing import Any

from thawd.runtime import handler_kinds
from thawd.runtime.http_apps import handler as http_handlers


def _report(error: BaseException, context: Any) -> None:
    """Write an exception to the log. Lambda logs what a function writes to standard error."""
    traceback.print_exception(type(error), error, error.__traceback__)


def _application() -> Any:
    module, _, name = os.environ["WEB_APPLICATION"].replace("/", ".").rpartition(".")
    return getattr(importlib.import_module(module), name)


http_handlers.report_exception = _report
handler = handler_kinds.adapted(_application())
if getattr(handler, "closing", None) is not None:
    atexit.register(handler.closing)  # Lambda usually kills the process instead
