"""The init phase: finds and imports the function's handler, as Lambda's Python runtime does.

Source: error types and wording as observed with `awslambdaric` 4.2.2.
"""

import importlib
import os
import sys
from typing import Any, Callable

from thawd.runtime import handler_kinds, sdk, search_path
from thawd.runtime.faults import Fault

Handler = Callable[[Any, Any], Any]


def load(name: str, task_root: str) -> Handler:
    """Import the handler `name`, which is ``module.function``. The module's name may contain dots or slashes.

    If it is a web application, the result is an object that calls the application with events.

    Args:
        name: the ``_HANDLER`` variable.
        task_root: folder of the function's code; becomes the first entry of ``sys.path`` and, unless
            ``THAWD_WORKING_FOLDER`` names another one, the working directory. The layers in ``THAWD_LAYERS`` come next.

    Raises:
        Fault: the name is malformed, the module cannot be imported or does not parse, or the function is missing or
            cannot be called. The fault has Lambda's error type.
        BaseException: any exception that the module itself raised during its import.
    """
    os.chdir(os.environ.get(search_path.WORKING_FOLDER, task_root))
    search_path.set_up(task_root)
    sys.argv = [name]
    module_name, dot, function_name = name.rpartition(".")
    if not dot or not module_name or not function_name:
        raise Fault("Runtime.MalformedHandlerName", "Bad handler '%s': it must be module.function" % name)
    module_name = module_name.replace("/", ".")
    module = _import(module_name)
    handler = getattr(module, function_name, None)
    if handler is None:
        raise Fault("Runtime.HandlerNotFound", "Handler '%s' missing on module '%s'" % (function_name, module_name))
    if not callable(handler):
        raise Fault(
            "Runtime.HandlerNotFound",
            "Handler '%s' on module '%s' cannot be called: it is a %s"
            % (function_name, module_name, type(handler).__name__),
        )
    return handler_kinds.adapted(handler)  # type: ignore[no-any-return]


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        message = "Unable to import module '%s': %s" % (module_name, error)
        if hint := sdk.hint(error):
            message += " (%s)" % hint
        raise Fault("Runtime.ImportModuleError", message, error) from error
    except SyntaxError as error:
        message = "Syntax error in module '%s': %s" % (module_name, error)
        raise Fault("Runtime.UserCodeSyntaxError", message, error) from error
