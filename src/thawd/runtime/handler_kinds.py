"""Finds out what kind of handler a function has, and makes a web application callable with events.

Kinds: a function of Lambda's with (event, context), which may be ``async def``; a generator, which streams its answer;
a streaming handler of `thawd.streaming`; an ASGI or a WSGI application; a function that `thawd.function` has decorated.

`thawd check` decides by the source, with the same rules: `thawd.recognition.handlers`.
"""

from typing import Any, List, Optional

# Source: Python documentation, "inspect", "Code Objects Bit Flags": CO_VARARGS, CO_GENERATOR, CO_COROUTINE,
# CO_ASYNC_GENERATOR. Importing `inspect` takes 5 ms.
_VARARGS, _GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x04, 0x20, 0x80, 0x200
_ASGI_PARAMETERS = ["scope", "receive", "send"]
_MOST_WRAPPERS = 100


def adapted(handler: Any) -> Any:
    """Return a handler that the runtime can call: the handler itself, or an object that calls it.

    What only some kinds need is imported only for them.

    Raises:
        Fault: the startup of an ASGI application has failed.
    """
    if getattr(handler, "streams", None) is True:
        return handler
    if getattr(handler, "is_typed_function", None) is True:
        from thawd.runtime.http_apps.typed_functions import TypedHandler

        return TypedHandler(handler)
    if is_asgi(handler):
        from thawd.runtime.http_apps.asgi import AsgiHandler

        return AsgiHandler(handler)
    if is_wsgi(handler):
        from thawd.runtime.http_apps.wsgi import WsgiHandler

        return WsgiHandler(handler)
    if is_generator(handler):
        from thawd import streaming

        return streaming.StreamingHandler(handler, text=True)
    return handler


def is_asgi(handler: Any) -> bool:
    """Whether the handler is an ASGI application: it takes (scope, receive, send)."""
    names = _parameters(handler)
    return names is not None and names[:3] == _ASGI_PARAMETERS


def is_wsgi(handler: Any) -> bool:
    """Whether the handler is a WSGI application: it takes two arguments, ``environ`` and ``start_response``.

    One of the names suffices, because servers pass the arguments by position.
    """
    names = _parameters(handler)
    return names is not None and len(names) >= 2 and (names[0] == "environ" or names[1] == "start_response")


def is_asynchronous(handler: Any) -> bool:
    """Whether the handler is ``async def``: a function, a decorated one, or an object with such a ``__call__``.

    A handler that yields may be ``async def``, too.
    """
    return _has_flags(handler, _COROUTINE | _ASYNC_GENERATOR)


def is_generator(handler: Any) -> bool:
    """Whether the handler is a generator function, ``async def`` or not."""
    return _has_flags(handler, _GENERATOR | _ASYNC_GENERATOR)


def _has_flags(handler: Any, flags: int) -> bool:
    for _ in range(_MOST_WRAPPERS):
        code = _code(handler)
        if code is not None and code.co_flags & flags:
            return True
        wrapped = getattr(handler, "__wrapped__", None) or getattr(handler, "func", None)  # `func`: functools.partial
        if wrapped is None:
            return False
        handler = wrapped
    return False


def _code(handler: Any) -> Any:
    method = getattr(type(handler), "__call__", None) if not hasattr(handler, "__code__") else None  # noqa: B004
    return getattr(handler, "__code__", None) or getattr(method, "__code__", None)


def _parameters(handler: Any) -> Optional[List[str]]:
    """The names of the positional parameters of a function, or of an object's ``__call__``; None: they are unknown."""
    for _ in range(_MOST_WRAPPERS):
        code = _code(handler)
        if code is None:
            return None
        names = list(code.co_varnames[: code.co_argcount])
        is_bound = not hasattr(handler, "__code__") or getattr(handler, "__self__", None) is not None
        if is_bound and names:
            del names[0]
        if names or not code.co_flags & _VARARGS:
            return names
        # A decorator's wrapper takes (*args, **kwargs): look at what it wraps.
        wrapped = getattr(handler, "__wrapped__", None)
        if wrapped is None:
            return names
        handler = wrapped
    return None
