"""Finds what a Python file contains that can be served, for ``thawd run``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thawd.recognition.handlers import handlers_in
from thawd.recognition.imports import imported_by
from thawd.recognition.kinds import Kind, Recognised, recognise
from thawd.recognition.modules import Module, file_of, parse

_HANDLER_NAMES = ("handler", "lambda_handler", "app", "application", "main")


class NothingToServeError(Exception):
    """The file contains nothing that can be served, or more than one thing; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ServedFile:
    """What is served of a file.

    Attributes:
        module: the parsed file.
        handlers: what is served, by name. More than one only if all are typed functions.
    """

    module: Module
    handlers: dict[str, Recognised]


def place_of(file: Path) -> tuple[Path, str]:
    """Return the folder from which a file is imported, and the name of its module there.

    A file in a package (a folder with ``__init__.py``) is imported from the folder that contains the package, for
    example as ``chat.app``, so that its relative imports work. If it imports a file beside it by that file's own name,
    it is imported from its own folder, as a script is.
    """
    root, parts = file.parent, [] if file.stem == "__init__" else [file.stem]
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        parts.insert(0, root.name)
        root = root.parent
    if root != file.parent and _imports_beside(file, root):
        return file.parent, file.stem
    return root, ".".join(parts) or file.stem


def _imports_beside(file: Path, root: Path) -> bool:
    try:
        tops = {name.split(".")[0] for name, _ in imported_by(parse(file).tree)}
    except (SyntaxError, OSError, ValueError):
        return False
    return any(file_of(file.parent, top) is not None and file_of(root, top) is None for top in tops)


def find(file: Path, name: str | None, folder: Path | None = None) -> ServedFile:
    """Find what to serve in a file.

    Args:
        file: the file.
        name: what to serve; None: decide by what is there.
        folder: the code folder, where modules that it imports are looked up; None: that of the file.

    Raises:
        NothingToServeError: there is nothing, or more than one thing.
    """
    try:
        module = parse(file)
    except SyntaxError as error:
        raise NothingToServeError(f"{file}:{error.lineno}: syntax error: {error.msg}") from None
    except (OSError, ValueError) as error:
        raise NothingToServeError(f"{file} cannot be read: {error}") from None
    code = folder or file.parent
    usable = handlers_in(module, code)
    listed = ", ".join(f"{each} ({what})" for each, what in usable.items())
    if name is not None:
        return ServedFile(module, {name: _named(module, name, file, code, listed)})
    typed = {each: what for each, what in usable.items() if what.kind is Kind.TYPED}
    applications = {each: what for each, what in usable.items() if what.kind in (Kind.ASGI, Kind.WSGI)}
    if typed and not applications:
        return ServedFile(module, typed)
    if len(applications) == 1 and not typed:
        return ServedFile(module, applications)
    if not applications and not typed:
        others = [each for each in _HANDLER_NAMES if each in usable or _may_be(module, each, code)]
        if others:
            return ServedFile(module, {others[0]: recognise(module, others[0], code)})
        if len(usable) == 1:
            return ServedFile(module, usable)
    if not usable:
        raise NothingToServeError(
            f"{file} contains nothing to serve: an application (app = FastAPI()), a function with @thawd.function "
            "above it, or a handler: def handler(event, context)"
        )
    raise NothingToServeError(f"{file} contains several things to serve: {listed}; name one: thawd run {file}:NAME")


def _may_be(module: Module, name: str, code: Path) -> bool:
    return name in module.names and recognise(module, name, code).kind is Kind.OTHER


def _named(module: Module, name: str, file: Path, code: Path, listed: str) -> Recognised:
    if name not in module.names and not module.is_open:
        raise NothingToServeError(f"{file} has no {name}; there is {listed or 'nothing to serve'}")
    recognised = recognise(module, name, code) if name in module.names else Recognised(Kind.OTHER)
    if recognised.kind is Kind.WRONG:
        raise NothingToServeError(f"{name} in {file} cannot be served: {recognised.detail}")
    return recognised
