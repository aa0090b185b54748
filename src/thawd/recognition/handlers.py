"""Examines the handler of one function of the configuration, in its source."""

from __future__ import annotations

import ast
import difflib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from thawd.recognition.imports import has
from thawd.recognition.kinds import Kind, Recognised, recognise
from thawd.recognition.modules import Module, file_of, parse
from thawd.resources import Function

_MOST_NAMED = 6
# Names of functions that open files or make paths have a word that begins so: read_csv, loadtxt, InferenceSession.
_OPENING = ("open", "read", "load", "path", "join", "session", "pretrained")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


@dataclass(slots=True)
class Examined:
    """What is known about a function's handler.

    Attributes:
        recognised: what the handler is.
        mistakes: what will make its import or its calls fail, and what to do.
        module: the parsed module; None: it was not found or does not parse.
    """

    recognised: Recognised
    mistakes: list[str] = field(default_factory=list)
    module: Module | None = None


def examine(  # noqa: PLR0911 - a case each
    function: Function, *, version: tuple[int, int] | None, has_layers: bool = False
) -> Examined:
    """Examine a Python function's handler.

    Args:
        function: the function; its code is a folder.
        version: version of its interpreter; None: that of this one.
        has_layers: whether its handler may be in a layer or in a package of its requirements.
    """
    module_name, _, name = function.handler.replace("/", ".").rpartition(".")
    file = file_of(function.code, module_name)
    if file is None:
        if has_layers or not _looks_local(module_name, function.code):
            return Examined(Recognised(Kind.OTHER, "its module is not in the code folder"))
        return _wrong(_no_module(module_name, name, function.code))
    try:
        module = parse(file, version=version)
    except SyntaxError as error:
        if version is not None and version > sys.version_info[:2]:
            newest = ".".join(map(str, sys.version_info[:2]))
            return Examined(Recognised(Kind.OTHER, f"its source is not Python {newest}, with which thawd reads it"))
        return _wrong(f"{file.name}:{error.lineno}: {_syntax(error, file, version)}")
    except (OSError, ValueError) as error:
        return _wrong(f"{file.name} cannot be read: {error}")
    if name not in module.names:
        if module.is_open:
            return Examined(Recognised(Kind.OTHER, "its module makes names while it is imported"), module=module)
        return _wrong(_no_name(module, module_name, name, function.code), module)
    recognised = recognise(module, name, function.code)
    examined = Examined(recognised, module=module)
    if recognised.kind is Kind.WRONG:
        examined.mistakes.append(f"{module_name}.{name} is no handler: {recognised.detail}")
    examined.mistakes += (
        f"{module_name}.{name} is {recognised.with_article}, which cannot have the option {why}"
        for why in _impossible_options(function, recognised)
    )
    return examined


def _impossible_options(function: Function, recognised: Recognised) -> Iterator[str]:
    """Options of the function that such a handler cannot have, and what to do.

    `thawd.runtime.batches` and `thawd.runtime.concurrent` refuse the same when they import the handler.
    """
    kind = recognised.kind
    if function.batch is not None and kind.streams and kind not in (Kind.OTHER, Kind.WRONG):
        yield "batch; remove the option"
    if function.concurrency > 1 and kind not in (Kind.OTHER, Kind.WRONG, Kind.ASGI, Kind.ASYNC):
        if kind is not Kind.LAMBDA:
            yield "concurrency; remove the option"
        elif not recognised.is_decorated:  # a decorator may return anything
            yield "concurrency: make it `async def`, or remove the option"


def left_out(module: Module, code: Path, is_left_out: Callable[[Path], bool]) -> Iterator[str]:
    """Files that the module names in a text, that exist in the code folder, and that copies of the folder do not have.

    Args:
        module: the handler's module.
        code: the code folder.
        is_left_out: whether a file is left out of copies, by its path.
    """
    seen = set()
    for text, line in _texts_of_paths(module.tree):
        if (
            text in seen
            or not 0 < len(text) < 256
            or "\0" in text
            or "\n" in text
            or text.startswith("/")
            or ".." in text
        ):
            continue
        seen.add(text)
        path = code / text
        try:
            exists = path.exists() and path != code
        except OSError:
            continue
        if exists and is_left_out(path):
            yield f"{module.file.name}:{line} names {text}, which copies of the code do not contain"


def _texts_of_paths(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The texts of a module that may be paths, each with the number of its line.

    A word with neither a slash nor a dot is one only if it is passed to something that opens files or joins paths, or
    if it follows a slash, as in ``folder / "model"``. Keys and texts that are compared are none.
    """
    for parent in ast.walk(tree):
        if isinstance(parent, (ast.Subscript, ast.Compare, ast.Expr, ast.MatchValue, ast.JoinedStr)):
            continue
        opens = (isinstance(parent, ast.Call) and _opens(parent.func)) or (
            isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div)
        )
        # The keyword argument in load(path="model") stands between the call and its text.
        values = [keyword.value for keyword in parent.keywords] if isinstance(parent, ast.Call) else []
        keys = [key for key in parent.keys if key is not None] if isinstance(parent, ast.Dict) else []
        for node in [*ast.iter_child_nodes(parent), *values]:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                is_word = "/" not in node.value and "." not in node.value
                if (opens or not is_word) and not any(node is key for key in keys):
                    yield node.value, node.lineno


def _opens(function: ast.expr) -> bool:
    """Whether a call of this function opens a file or makes a path, by its name."""
    name = (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
    return any(word.lower().startswith(_OPENING) for word in _WORD.findall(name))


def _wrong(mistake: str, module: Module | None = None) -> Examined:
    return Examined(Recognised(Kind.WRONG), [mistake], module)


def _looks_local(module_name: str, code: Path) -> bool:
    """Whether a module that is not found must be one of the code folder: it is not a part of an installed package."""
    top = module_name.partition(".")[0]
    return (code / top).is_dir() or not has(top)


def _no_module(module_name: str, name: str, code: Path) -> str:
    there = sorted(file.stem for file in code.glob("*.py"))
    there += sorted(file.parent.name for file in code.glob("*/__init__.py"))
    inner = module_name.rpartition(".")[0]
    if inner and (module := file_of(code, inner)) is not None:
        # As in "app.app.handler": a name too many.
        return f"there is no module {module_name} in {code}, but a file {module.name}; did you mean {inner}.{name}?"
    close = difflib.get_close_matches(module_name, there, n=1)
    if close:
        return f"there is no module {module_name} in {code}; did you mean {close[0]}.{name}?"
    listed = ", ".join(there[:_MOST_NAMED]) or "no Python file"
    return f"there is no module {module_name} in {code}; there is {listed}"


def _no_name(module: Module, module_name: str, name: str, code: Path) -> str:
    close = difflib.get_close_matches(name, module.names, n=1)
    usable = [each for each in handlers_in(module, code) if each != name]
    if close and close[0] in usable:
        hint = f"did you mean {module_name}.{close[0]}?"
    else:
        listed = ", ".join(f"`{each}`" for each in usable[:_MOST_NAMED])
        hint = f"there is {listed}" if listed else "nothing in it can be a handler"
    return f"{module.file.name} has no `{name}`; {hint}"


def handlers_in(module: Module, code: Path) -> dict[str, Recognised]:
    """The public names of a module that can be handlers, and what they are."""
    found = {}
    for name in module.names:
        if not name.startswith("_"):
            recognised = recognise(module, name, code)
            is_defined_here = isinstance(module.names[name], ast.FunctionDef | ast.AsyncFunctionDef | ast.expr)
            if is_defined_here and recognised.kind not in (Kind.WRONG, Kind.OTHER):
                found[name] = recognised
    return found


def _syntax(error: SyntaxError, file: Path, version: tuple[int, int] | None) -> str:
    if version is not None:
        try:
            parse(file)
        except SyntaxError:
            pass
        else:
            return (
                f"syntax that Python {version[0]}.{version[1]} does not have: {error.msg}; set `python` to a newer one"
            )
    return f"syntax error: {error.msg}"
