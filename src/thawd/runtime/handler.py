"""The init phase: finds and imports the function's handler, as Lambda's Python runtime does.

Source: error types and wording as observed with `awslambdaric` 4.2.2.
"""

import importlib
import os
import sys
from typing import Any, Callable

from thawd.runtime import sdk, search_path
from thawd.runtime.faults import Fault

Handler = Callable[[Any, Any], Any]

# Source: Python documentation, "inspect", "Code Objects Bit Flags": CO_COROUTINE. Importing `inspect` takes 5 ms.
_COROUTINE = 0x80
_MOST_WRAPPERS = 100


def load(name: str, task_root: str) -> Handler:
    """Import the handler `name`, which is ``module.function``. The module's name may contain dots or slashes.

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
    return handler  # type: ignore[no-any-return]


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


def is_asynchronous(handler: Any) -> bool:
    """Whether the handler is ``async def``: a function, a decorated one, or an object with such a ``__call__``."""
    for _ in range(_MOST_WRAPPERS):
        method = getattr(type(handler), "__call__", None) if not hasattr(handler, "__code__") else None  # noqa: B004
        code = getattr(handler, "__code__", None) or getattr(method, "__code__", None)
        if code is not None and code.co_flags & _COROUTINE:
            return True
        wrapped = getattr(handler, "__wrapped__", None) or getattr(handler, "func", None)  # `func`: functools.partial
        if wrapped is None:
            return False
        handler = wrapped
    return False
