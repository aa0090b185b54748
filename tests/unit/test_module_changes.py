"""`thawd.server.emulator.module_changes`: a module is never seen without its changes, by any of several threads."""

from __future__ import annotations

import builtins
import gc
import importlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thawd.server.emulator.module_changes import ModuleChanges

_numbers = itertools.count(1)
_hooks = SimpleNamespace(run=lambda: None)
"""What the module ``models`` calls while it is imported."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with the modules ``models`` and ``responses``, each of which has a number; imports as they were after
    the test."""
    name = f"changed{next(_numbers)}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("from .models import number\n")
    (folder / "models.py").write_text(f"from {__name__} import _hooks\n_hooks.run()\nnumber = 1\n")
    (folder / "responses.py").write_text("from .models import number as imported\nnumber = 10\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(builtins, "__import__", builtins.__import__)
    monkeypatch.setattr(importlib, "import_module", importlib.import_module)
    monkeypatch.setattr(_hooks, "run", lambda: None)
    yield name
    for loaded in [one for one in sys.modules if one.partition(".")[0] == name]:
        del sys.modules[loaded]


def set_to(module: str, number: int) -> Callable[[], None]:
    def change() -> None:
        vars(sys.modules[module])["number"] = number

    return change


def test_a_change_runs_before_other_modules_import_names_of_its_module(package: str) -> None:
    ModuleChanges(package, {f"{package}.models": [set_to(f"{package}.models", 2)]}).install()
    assert f"{package}.models" not in sys.modules
    assert importlib.import_module(f"{package}.responses").imported == 2
    assert importlib.import_module(package).number == 2


def test_the_garbage_collector_rests_while_a_module_is_imported_and_not_longer(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[bool] = []
    monkeypatch.setattr(_hooks, "run", lambda: enabled.append(gc.isenabled()))
    ModuleChanges(package, {}).install()
    importlib.import_module(f"{package}.responses")
    assert enabled == [False]
    assert gc.isenabled()


def test_a_module_that_is_imported_already_is_changed_immediately(package: str) -> None:
    module = importlib.import_module(f"{package}.models")
    ModuleChanges(package, {f"{package}.models": [set_to(f"{package}.models", 2)]}).install()
    assert module.number == 2


@pytest.mark.parametrize("is_imported", [True, False])
def test_a_change_may_import_further_modules_that_have_changes(package: str, is_imported: bool) -> None:
    seen: list[Any] = []
    if is_imported:
        importlib.import_module(package)
    ModuleChanges(
        package,
        {
            package: [lambda: seen.append(importlib.import_module(f"{package}.responses").number)],
            f"{package}.responses": [set_to(f"{package}.responses", 20)],
        },
    ).install()
    importlib.import_module(f"{package}.models")
    assert seen == [20]


def test_after_a_change_that_failed_the_next_import_tries_it_again(package: str) -> None:
    failures = [RuntimeError("not now")]

    def change() -> None:
        if failures:
            raise failures.pop()
        set_to(f"{package}.models", 2)()

    ModuleChanges(package, {f"{package}.models": [change]}).install()
    with pytest.raises(RuntimeError, match="not now"):
        importlib.import_module(package)
    assert importlib.import_module(package).number == 2


@pytest.mark.parametrize("second", ["{}.models", "{}.responses", "{}"])
def test_a_second_thread_waits_until_the_package_is_changed_whatever_it_imports(package: str, second: str) -> None:
    began, may_go_on = threading.Event(), threading.Event()
    seen: list[Any] = []

    def wait() -> None:
        began.set()
        assert may_go_on.wait(60)

    def work(name: str) -> None:
        seen.append(vars(__import__(name, fromlist=["number"]))["number"])

    _hooks.run = wait
    change = set_to(f"{package}.models", 2)

    def change_all() -> None:
        change()
        set_to(package, 2)()

    ModuleChanges(
        package, {package: [change_all], f"{package}.responses": [set_to(f"{package}.responses", 2)]}
    ).install()
    threads = [threading.Thread(target=work, args=(name,)) for name in (f"{package}.models", second.format(package))]
    threads[0].start()
    assert began.wait(60)
    threads[1].start()
    threads[1].join(0.05)
    assert seen == []
    may_go_on.set()
    for thread in threads:
        thread.join(60)
    assert seen == [2, 2]


def test_modules_of_other_packages_are_imported_without_waiting(package: str) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        assert may_go_on.wait(60)

    _hooks.run = wait
    ModuleChanges(package, {}).install()
    thread = threading.Thread(target=importlib.import_module, args=(package,))
    thread.start()
    assert began.wait(60)
    assert importlib.import_module("json.tool") is sys.modules["json.tool"]
    may_go_on.set()
    thread.join(60)
