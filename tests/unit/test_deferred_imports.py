"""`thawd.server.emulator.deferred_imports`: modules import others when they use them, and notice no difference."""

from __future__ import annotations

import builtins
import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from thawd.server.emulator.deferred_imports import DeferredImports

_numbers = itertools.count(1)
_IMPORTER = """
from {name}.models import Queue, names
from {name} import models as queue_models
from {name}.models import make

def is_queue(thing):
    return isinstance(thing, Queue)

def use():
    return make(), names["first"], queue_models.names["first"], Queue.limit

def import_here():
    from {name}.models import Queue
    return Queue
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose module ``importer`` imports from its module ``models``; imports as they were after the test."""
    name = f"deferred{next(_numbers)}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "models.py").write_text(
        "class Queue:\n    limit = 3\n\nnames = {'first': 1}\n\ndef make():\n    return 'made'\n"
    )
    (folder / "importer.py").write_text(_IMPORTER.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "__import__", builtins.__import__)
    yield name
    for loaded in [one for one in sys.modules if one.partition(".")[0] == name]:
        del sys.modules[loaded]


def importer_of(package: str, *, defers: bool = True) -> tuple[DeferredImports, ModuleType]:
    imports = DeferredImports({f"{package}.importer": lambda module: defers and module.startswith(package)})
    imports.install()
    return imports, importlib.import_module(f"{package}.importer")


def test_a_module_is_imported_when_what_it_defines_is_used(package: str) -> None:
    _, importer = importer_of(package)
    assert f"{package}.models" not in sys.modules
    assert importer.use() == ("made", 1, 1, 3)
    assert f"{package}.models" in sys.modules


def test_a_deferred_class_recognises_its_instances(package: str) -> None:
    _, importer = importer_of(package)
    assert not importer.is_queue("text")
    assert importer.is_queue(sys.modules[f"{package}.models"].Queue())


def test_imports_inside_functions_are_not_deferred(package: str) -> None:
    _, importer = importer_of(package)
    assert importer.import_here() is sys.modules[f"{package}.models"].Queue


def test_everything_deferred_can_be_imported(package: str) -> None:
    imports, _ = importer_of(package)
    imports.complete()
    assert f"{package}.models" in sys.modules


def test_imports_that_are_not_to_be_deferred_are_carried_out(package: str) -> None:
    _, importer = importer_of(package, defers=False)
    assert importer.Queue is sys.modules[f"{package}.models"].Queue
