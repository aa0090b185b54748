"""Finds the imports of packages with which a handler's module begins.

Until the first other statement, nothing of the function has run. So what these imports do depends only on what a
process has at its start, and a base may do them in advance (see `package_bases`). Imports of the standard library are
left out: they may come earlier or later without a difference.
"""

from __future__ import annotations

import ast
import sys
import threading

from thawd.environments.version import Version

# Packages that change how others are imported.
_NOT_BEFORE = {"distutils", "pip", "pkg_resources", "setuptools"}
_HARMLESS = (sys.stdlib_module_names | {"thawd"}) - _NOT_BEFORE
_MOST_BYTES = 1 << 20
# Python 3.11 counts the depth of syntax trees for all threads together, and raises SystemError if two threads make
# trees at the same time. Source: CPython issue 106905.
_PARSING = threading.Lock()


def leading_imports(version: Version) -> tuple[str, ...]:
    """Return the import statements of packages with which the module of the version's handler begins, without ``as``.

    Reads the module and lists the folder of the function's code. Empty if the module begins otherwise, cannot be read
    or does not parse; then init reports the error.
    """
    module, _, _ = version.function.handler.rpartition(".")
    parts = module.replace("/", ".").split(".")
    if "" in parts:
        return ()
    folders = [version.task_root.joinpath(*parts[:depth]) for depth in range(1, len(parts))]
    path = version.task_root.joinpath(*parts[:-1], f"{parts[-1]}.py")
    try:
        if any((folder / "__init__.py").exists() for folder in folders):
            return ()  # the code of this package runs first
        if any(_first(entry.name) == parts[-1] and entry.name != path.name for entry in path.parent.iterdir()):
            return ()  # Python may load this file or folder instead
        own = {entry.name.partition(".")[0] for entry in version.task_root.iterdir()}
        if path.stat().st_size > _MOST_BYTES:
            return ()
        source = path.read_bytes()
        with _PARSING:
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found: list[str] = []
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        names = _imported(statement)
        if names is None or not _NOT_BEFORE.isdisjoint(names) or not own.isdisjoint(names):
            break
        if (kept := _without_standard_library(statement)) is not None:
            found.append(ast.unparse(kept))
    return tuple(found)


def _imported(statement: ast.stmt) -> set[str] | None:
    """First parts of the names of the modules that a statement imports; None if it is not an absolute import."""
    if isinstance(statement, ast.Import):
        return {_first(alias.name) for alias in statement.names}
    if isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
        return {_first(statement.module)}
    return None


def _without_standard_library(statement: ast.stmt) -> ast.stmt | None:
    if isinstance(statement, ast.Import):
        kept = [ast.alias(alias.name) for alias in statement.names if _first(alias.name) not in _HARMLESS]
        return ast.Import(kept) if kept else None
    assert isinstance(statement, ast.ImportFrom)
    assert statement.module
    if _first(statement.module) in _HARMLESS:
        return None
    return ast.ImportFrom(statement.module, [ast.alias(alias.name) for alias in statement.names], 0)


def _first(name: str) -> str:
    return name.partition(".")[0]
