"""Web applications as handlers: the layer with thawd's modules that make an ASGI or WSGI application callable.

Lambda calls `thawd.runtime.deployed_application` in the layer. It imports the application that a variable names.
"""

from __future__ import annotations

from pathlib import Path

import thawd
from thawd.recognition.handlers import examine
from thawd.recognition.kinds import Kind
from thawd.resources import Function

HANDLER = "thawd.runtime.deployed_application.handler"
VARIABLE = "WEB_APPLICATION"
"""Environment variable with the application, named as a handler is."""

_MODULES = (
    "runtime/__init__.py",
    "runtime/coroutines.py",
    "runtime/deployed_application.py",
    "runtime/faults.py",
    "runtime/handler_kinds.py",
    "runtime/http_apps/__init__.py",
    "runtime/http_apps/asgi.py",
    "runtime/http_apps/handler.py",
    "runtime/http_apps/lifespan.py",
    "runtime/http_apps/requests.py",
    "runtime/http_apps/responses.py",
    "runtime/http_apps/wsgi.py",
    "streaming.py",
)


def application_of(function: Function) -> str | None:
    """Return what web application the handler is, in words; None: it is none, or its code is in an image."""
    if function.image is not None or not (function.runtime or "python").startswith("python"):
        return None
    recognised = examine(function, version=None, has_layers=True).recognised
    return str(recognised) if recognised.kind in (Kind.ASGI, Kind.WSGI) else None


def layer_files() -> dict[str, bytes]:
    """Return the files of the layer that applications need, by name."""
    package = Path(thawd.__file__).parent
    return {f"python/thawd/{name}": (package / name).read_bytes() for name in _MODULES}
