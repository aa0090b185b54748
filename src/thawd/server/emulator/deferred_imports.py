"""Defers imports that modules of moto make when they are imported, until the modules use what they import.

moto's CloudFormation imports the models of all services whose resources its stacks can have: two dozen services, which
take longer to import than the rest of the emulator. thawd's engine makes the stacks, and a stack needs few services.

Guarantees:
- only the imports at the top level of the named modules are deferred;
- a deferred name behaves like the imported object wherever moto uses one: attributes, items, calls, ``isinstance``. It
  cannot stand in an ``except`` clause, so imports of exceptions must not be deferred.

Source: docs.python.org, `builtins.__import__`; "The import statement", for what ``from`` asks of a module.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable, Mapping
from typing import Any


class DeferredImports:
    """The deferred imports of some modules.

    Args:
        importers: for each module, whether a module that it imports is to be imported later.
    """

    def __init__(self, importers: Mapping[str, Callable[[str], bool]]) -> None:
        self._importers = importers
        self._deferred: dict[tuple[str, str], _Deferred] = {}

    def install(self) -> None:
        """Begin to defer imports. Modules that are already imported stay as they are."""
        setattr(builtins, "__import__", self._deferring(builtins.__import__))  # noqa: B010

    def complete(self) -> None:
        """Import everything that was deferred until now."""
        for each in list(self._deferred.values()):
            each.found()

    def _deferring(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the function that carries out ``import`` statements."""

        def load_or_defer(
            name: str, globals: Mapping[str, Any] | None = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> Any:
            # A statement at the top level of a module passes the module's variables as its local ones, too.
            is_candidate = globals is not None and locals is globals and fromlist and not level
            defers = self._importers.get(str(globals.get("__name__"))) if is_candidate and globals else None
            if defers is None or not defers(name):
                return load(name, globals, locals, fromlist, level)
            return _Names(lambda wanted: self._deferred.setdefault((name, wanted), _Deferred(name, wanted)))

        return load_or_defer


class _Names:
    """Stands for a module in the statement ``from … import …``: each of its attributes is deferred."""

    def __init__(self, defer: Callable[[str], _Deferred]) -> None:
        self._defer = defer

    def __getattr__(self, name: str) -> _Deferred:
        return self._defer(name)


class _Deferred:
    """Stands for what a deferred statement imports.

    Args:
        module: the module after ``from``.
        name: the name after ``import``.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def found(self) -> Any:
        """Carry out the import, and return what the statement would have bound to the name."""
        module = importlib.import_module(self._module)
        if not hasattr(module, self._name):
            return importlib.import_module(f"{self._module}.{self._name}")
        return getattr(module, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.found(), name)

    def __getitem__(self, key: Any) -> Any:
        return self.found()[key]

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.found()(*given, **named)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self.found())
