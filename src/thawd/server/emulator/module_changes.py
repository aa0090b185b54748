"""Changes moto's modules when they are imported for the first time. Runs in the emulator's own process.

Importing all modules of moto that thawd changes takes longer than the rest of the emulator's start. Most of that time
is for CloudFormation, EC2 and Step Functions. So each change is made when its module is imported.

Guarantees:
- a change runs directly after the code of its module, before any other code sees the module;
- only one thread at a time imports modules of moto. Other threads wait at their own imports of moto. So a change may
  import further modules, and no thread sees a service with only a part of its changes;
- if a change fails, the import of its module fails. The next import of the module repeats both.

The garbage collector rests while modules are imported. They make hundreds of thousands of objects, all of which stay,
and it would take a fifth of the time.

Source: docs.python.org, "The import system", 5.3.4 and 5.5; `builtins.__import__`.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Change = Callable[[], None]


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Disable the garbage collector, and enable it again if it was enabled."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ModuleChanges(importlib.abc.MetaPathFinder):
    """The changes of the modules in one package.

    Args:
        package: name of the package. It contains no dot.
        changes: for each module, the functions that change it. `install` changes modules that are already imported.
    """

    def __init__(self, package: str, changes: Mapping[str, Sequence[Change]]) -> None:
        self._package = package
        self._changes = dict(changes)
        self._lock = threading.RLock()

    def install(self) -> None:
        """Begin to change modules when they are imported. Call this before a second thread runs."""
        sys.meta_path.insert(0, self)
        setattr(builtins, "__import__", self._one_at_a_time(builtins.__import__, _package_of))  # noqa: B010
        by_name = self._one_at_a_time(importlib.import_module, lambda name, package=None: package or name)
        setattr(importlib, "import_module", by_name)  # noqa: B010 - mypy forbids to assign to a function
        # These come last, because their changes may import other modules that have changes.
        for name in [name for name in self._changes if name in sys.modules]:
            if name in self._changes:
                self._change(name)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module that has changes, and make them run after its code. None: the module has no changes."""
        if fullname not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module: types.ModuleType) -> None:
            execute(module)
            self._change(fullname)

        setattr(spec.loader, "exec_module", execute_and_change)  # noqa: B010 - mypy forbids to assign to a method
        return spec

    def _change(self, name: str) -> None:
        for change in self._changes[name]:
            change()
        self._changes.pop(name, None)

    def _one_at_a_time(self, load: Callable[..., Any], package_of: Callable[..., str]) -> Callable[..., Any]:
        """Wrap a function that imports a module, so that only one thread at a time imports modules of the package."""

        def load_alone(*given: Any, **named: Any) -> Any:
            if package_of(*given, **named).partition(".")[0] != self._package:
                return load(*given, **named)
            with self._lock, without_collector():
                return load(*given, **named)

        return load_alone


def _package_of(
    name: str, globals: Mapping[str, Any] | None = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> str:
    """Return the module that a statement imports. For a relative import, return the package that it is relative to."""
    return str((globals or {}).get("__package__") or "") if level else name
