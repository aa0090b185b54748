"""Decides what the object behind a name in a module is."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thawd.recognition.modules import Definition, Import, Module, file_of, parse

_MOST_IMPORTS = 8


class Kind(enum.Enum):
    """What a handler is. The value is how ``thawd check`` describes it."""

    LAMBDA = "Lambda handler"
    ASYNC = "Lambda handler, async def"
    GENERATOR = "generator: streams its answer"
    STREAMING = "streaming handler"
    ASGI = "ASGI application"
    WSGI = "WSGI application"
    TYPED = "typed function"
    OTHER = "object that only the import can tell"
    WRONG = "no handler"

    @property
    def serves_http(self) -> bool:
        """Whether it takes HTTP requests of any path itself."""
        return self in (Kind.ASGI, Kind.WSGI, Kind.TYPED)

    @property
    def streams(self) -> bool:
        """Whether it may send its answer part by part."""
        return self not in (Kind.LAMBDA, Kind.ASYNC)


# What makes an application, by the beginning of its full name.
_ASGI_MAKERS = (
    "fastapi.FastAPI",
    "fastapi.applications.FastAPI",
    "starlette.applications.Starlette",
    "litestar.Litestar",
    "quart.Quart",
    "falcon.asgi.App",
    "blacksheep.Application",
    "sanic.Sanic",
    "connexion.AsyncApp",
    "django.core.asgi.get_asgi_application",
    "django.core.handlers.asgi.ASGIHandler",
    "gradio.mount_gradio_app",
    "socketio.ASGIApp",
    "asgiref.wsgi.WsgiToAsgi",
    "mcp.server.fastmcp.FastMCP.streamable_http_app",
)
_WSGI_MAKERS = (
    "flask.Flask",
    "bottle.Bottle",
    "bottle.default_app",
    "falcon.App",
    "falcon.API",
    "django.core.wsgi.get_wsgi_application",
    "django.core.handlers.wsgi.WSGIHandler",
    "apiflask.APIFlask",
    "werkzeug.middleware.proxy_fix.ProxyFix",
)
_LAMBDA_MAKERS = ("mangum.Mangum", "mangum.adapter.Mangum", "apig_wsgi.make_lambda_handler")
_DECORATED = "decorated"
_TYPED_DECORATORS = ("thawd.function", "thawd.typed.function.function")
_STREAMING_DECORATORS = ("thawd.streaming.handler",)


@dataclass(frozen=True, slots=True)
class Recognised:
    """What an object is.

    Attributes:
        kind: its kind.
        detail: further words: the framework of an application; for `Kind.WRONG`, why it is no handler.
    """

    kind: Kind
    detail: str = ""

    @property
    def is_decorated(self) -> bool:
        """Whether the function has decorators, which may make something else of it."""
        return self.detail.startswith(_DECORATED)

    @property
    def with_article(self) -> str:
        """The words for it, such as ``an ASGI application (fastapi)``."""
        return f"{'an' if self.kind is Kind.ASGI else 'a'} {self}"

    def __str__(self) -> str:
        return f"{self.kind.value} ({self.detail})" if self.detail else self.kind.value


_UNKNOWN = Recognised(Kind.OTHER)


def recognise(module: Module, name: str, folder: Path, *, depth: int = 0) -> Recognised:
    """Recognise the object behind a top-level name of a module.

    Args:
        module: the module.
        name: one of its names.
        folder: the code folder, where modules that it imports are looked up.
        depth: how many imports have been followed.
    """
    return _recognise(module, module.names.get(name), folder, depth)


def _recognise(  # noqa: PLR0911 - a case each
    module: Module, defined: Definition, folder: Path, depth: int
) -> Recognised:
    match defined:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _function(module, defined)
        case ast.ClassDef(name=name):
            return Recognised(Kind.OTHER, f"class {name}")
        case Import():
            return _imported(module, defined, folder, depth)
        case ast.Name(id=name) if depth < _MOST_IMPORTS:
            return _recognise(module, module.names.get(name), folder, depth + 1)
        case ast.Call():
            return _call(module, defined, folder, depth)
        case ast.Lambda(args=args):
            return _by_parameters(_positional(args), len(args.defaults), has_more=args.vararg is not None)
        case ast.Constant() | ast.Dict() | ast.List() | ast.Tuple() | ast.Set() | ast.JoinedStr():
            return Recognised(Kind.WRONG, f"it is {_described(defined)}, which cannot be called")
        case _:
            return _UNKNOWN


def _described(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return f"the value {value.value!r}"[:60]
    return f"a {type(value).__name__.lower()}"


def _imported(module: Module, imported: Import, folder: Path, depth: int) -> Recognised:
    if imported.name is None:
        return Recognised(Kind.WRONG, f"it is the module {imported.module}, which cannot be called")
    if depth >= _MOST_IMPORTS:
        return _UNKNOWN
    base = imported.module
    if imported.level:
        package = module.file.parent
        for _ in range(imported.level - 1):
            package = package.parent
        file = file_of(package, base) if base else package / "__init__.py"
    else:
        file = file_of(folder, base)
    if file is None or not file.is_file():
        return _UNKNOWN
    try:
        other = parse(file)
    except (SyntaxError, OSError, ValueError):
        return _UNKNOWN
    return recognise(other, imported.name, folder, depth=depth + 1)


def _call(module: Module, call: ast.Call, folder: Path, depth: int) -> Recognised:
    maker = module.function_of(dotted(call.func))
    for kind, makers in ((Kind.ASGI, _ASGI_MAKERS), (Kind.WSGI, _WSGI_MAKERS), (Kind.LAMBDA, _LAMBDA_MAKERS)):
        if maker in makers:
            return Recognised(kind, maker.split(".")[0])
    if maker in _TYPED_DECORATORS:
        return Recognised(Kind.TYPED)
    if maker in _STREAMING_DECORATORS:
        return Recognised(Kind.STREAMING)
    made = module.names.get(dotted(call.func).split(".")[0])
    if isinstance(made, ast.FunctionDef) and depth < _MOST_IMPORTS:
        return _returned(module, made, folder, depth + 1)
    return Recognised(Kind.OTHER, f"made by {maker}") if maker else _UNKNOWN


def _returned(module: Module, factory: ast.FunctionDef, folder: Path, depth: int) -> Recognised:
    """What a factory such as ``create_app`` returns."""
    local: dict[str, ast.expr] = {}
    for node in own_nodes(factory):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            local[node.targets[0].id] = node.value
    for node in own_nodes(factory):
        if isinstance(node, ast.Return) and node.value is not None:
            value = node.value
            if isinstance(value, ast.Name):
                value = local.get(value.id, value)
            return _recognise(module, value, folder, depth)
    return _UNKNOWN


def _function(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Recognised:
    decorators = [module.function_of(dotted(each)) for each in function.decorator_list]
    if any(each in _TYPED_DECORATORS for each in decorators):
        return Recognised(Kind.TYPED)
    if any(each in _STREAMING_DECORATORS for each in decorators):
        return Recognised(Kind.STREAMING)
    if decorators:
        return Recognised(_plain_kind(function), f"{_DECORATED} by {decorators[0]}".removesuffix(" by "))
    arguments = function.args
    found = _by_parameters(_positional(arguments), len(arguments.defaults), has_more=arguments.vararg is not None)
    return Recognised(_plain_kind(function)) if found.kind is Kind.LAMBDA else found


def _plain_kind(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Kind:
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own_nodes(function)):
        return Kind.GENERATOR
    return Kind.ASYNC if isinstance(function, ast.AsyncFunctionDef) else Kind.LAMBDA


def _by_parameters(names: list[str], defaults: int, *, has_more: bool) -> Recognised:
    if names[:3] == ["scope", "receive", "send"]:
        return Recognised(Kind.ASGI)
    if len(names) >= 2 and (names[0] == "environ" or names[1] == "start_response"):
        return Recognised(Kind.WSGI)
    required = len(names) - defaults
    if required > 2 or (len(names) < 2 and not has_more):
        taken = ", ".join(names) or "nothing"
        return Recognised(
            Kind.WRONG,
            f"it takes ({taken}), but a handler takes (event, context); put @thawd.function above it to make an "
            "endpoint of it",
        )
    return Recognised(Kind.LAMBDA)


def _positional(arguments: ast.arguments) -> list[str]:
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args)]


def own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """All nodes in a function's body, those of functions and classes within it excluded."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting[:0] = ast.iter_child_nodes(node)


def dotted(node: ast.expr) -> str:
    """A dotted name, such as ``streaming.handler``; empty if the expression is none. A decorator's call is left out."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""
