"""Every name that a module of thawd imports on first use can be imported, and is the one that type checkers see."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import thawd

SOURCE = Path(thawd.__file__).parent


def lazy_modules() -> Iterator[tuple[str, ast.Module]]:
    """Name and syntax tree of each module with a ``__getattr__``."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if "__getattr__" not in text:  # parsing all modules would take long
            continue
        tree = ast.parse(text)
        if any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body):
            parts = ("thawd", *path.relative_to(SOURCE).with_suffix("").parts)
            yield ".".join(parts).removesuffix(".__init__"), tree


def shown_to_type_checkers(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and name of each import under ``if TYPE_CHECKING`` at the top level."""
    for block in tree.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    yield from ((node.module, alias.name) for alias in node.names)


MODULES = dict(lazy_modules())


def test_the_modules_with_lazy_names_are_found() -> None:
    assert set(MODULES) >= {"thawd", "thawd.models", "thawd.snapshot"}


@pytest.mark.parametrize("module", MODULES)
def test_every_lazy_name_can_be_imported(module: str) -> None:
    imported = importlib.import_module(module)
    declared = list(shown_to_type_checkers(MODULES[module]))
    for origin, name in declared:
        assert getattr(imported, name) is getattr(importlib.import_module(origin), name), name
    exported = set(imported.__all__) - {"__version__"}
    assert exported == {name for _, name in declared}
    assert set(getattr(imported, "_PLACES", exported)) == exported


@pytest.mark.parametrize("module", MODULES)
def test_a_name_that_does_not_exist_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module(module).no_such_name  # noqa: B018
