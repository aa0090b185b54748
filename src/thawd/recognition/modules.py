"""Finds modules' files in a code folder, parses them, and finds the names that they define at their top level."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DYNAMIC = ("globals", "setattr", "exec", "locals", "vars")


@dataclass(frozen=True, slots=True)
class Import:
    """A name that an import statement defines.

    Attributes:
        module: the module imported from, with its dots.
        name: the name in that module; None: the module itself.
        level: number of leading dots.
    """

    module: str
    name: str | None
    level: int = 0


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr | Import | None
"""What defines a name: a statement, the value assigned, an import; None: another statement."""


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module.

    Attributes:
        file: its file.
        names: its top-level names, each with what defined it last.
        is_open: whether it may have further names, which the source does not show.
        tree: its syntax tree.
    """

    file: Path
    names: dict[str, Definition]
    is_open: bool
    tree: ast.Module

    def function_of(self, name: str) -> str:
        """The full name, such as ``fastapi.FastAPI``, of what a dotted name in this module stands for."""
        first, dot, rest = name.partition(".")
        defined = self.names.get(first)
        if isinstance(defined, Import):
            full = defined.module if defined.name is None else f"{defined.module}.{defined.name}"
            return f"{full}{dot}{rest}"
        return name


def file_of(folder: Path, name: str) -> Path | None:
    """The file of a module with this dotted name in a code folder; None: there is none."""
    place = folder.joinpath(*name.split("."))
    for file in (place / "__init__.py", place.with_name(place.name + ".py")):
        if file.is_file():
            return file
    return None


def parse(file: Path, *, version: tuple[int, int] | None = None) -> Module:
    """Parse a module.

    Args:
        file: its file.
        version: the Python version whose syntax is allowed; None: that of this interpreter.

    Raises:
        SyntaxError: the module does not parse.
        OSError: the file cannot be read.
        ValueError: the file contains a NUL byte or is not text.
    """
    tree = ast.parse(file.read_bytes(), str(file), feature_version=version)
    names: dict[str, Definition] = {}
    is_open = False
    for statement in _statements(tree.body):
        is_open |= _defines_more(statement)
        names.update(_names(statement))
    return Module(file, names, is_open or "__getattr__" in names, tree)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements that run when the module is imported, those in blocks included."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)
        for case in getattr(statement, "cases", []):
            yield from _statements(case.body)


def _defines_more(statement: ast.stmt) -> bool:
    """Whether a statement can define names that it does not show."""
    if isinstance(statement, ast.ImportFrom):
        return any(alias.name == "*" for alias in statement.names)
    if not isinstance(statement, ast.Expr | ast.Assign):
        return False
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _DYNAMIC
        for node in ast.walk(statement)
    )


def _names(statement: ast.stmt) -> dict[str, Definition]:  # noqa: PLR0911 - a case each
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name: statement}
        case ast.Import(names=names):
            return {
                alias.asname or alias.name.split(".")[0]: Import(
                    alias.name if alias.asname else alias.name.split(".")[0], None
                )
                for alias in names
            }
        case ast.ImportFrom(module=module, names=names, level=level):
            return {
                alias.asname or alias.name: Import(module or "", alias.name, level)
                for alias in names
                if alias.name != "*"
            }
        case ast.Assign(targets=targets, value=value):
            return {name: defined for target in targets for name, defined in _assigned(target, value)}
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return {} if value is None else {name: value}
        case ast.With(items=items) | ast.AsyncWith(items=items):
            targets = [item.optional_vars for item in items if item.optional_vars is not None]
            return {name: None for target in targets for name, _ in _assigned(target, None)}
        case ast.For(target=target):
            return {name: None for name, _ in _assigned(target, None)}
        case _:
            expressions = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)]
            return {
                node.target.id: node.value
                for expression in expressions
                for node in ast.walk(expression)
                if isinstance(node, ast.NamedExpr)
            }


def _assigned(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _assigned(element, None)
