"""Walks the objects reachable from a function's modules without running any of their code.

``thawd snapshot lint`` searches these objects for state that would be wrong in copies of the process.
This module also has the safe ways to examine an object: its type by ``type()``, its attributes by CPython's own
descriptors, everything else by ``gc.get_referents``. It must not use ``getattr``, ``isinstance``, ``==``, ``len`` or
iteration on a foreign object: ``__getattr__``, ``__class__``, properties and the like are the user's code and may do
anything. Standard library only, Python 3.9 and later. Used by `thawd.snapshot.lint` alone.
"""

from __future__ import annotations

import gc
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

_MRO = type.__dict__["__mro__"]
_CLASS_DICT = type.__dict__["__dict__"]
_CLASS_MODULE = type.__dict__["__module__"]
_CLASS_NAME = type.__dict__["__qualname__"]
_MODULE_DICT = vars(types.ModuleType)["__dict__"]

# Classes are looked up by their ids, because a metaclass may define its own hash and equality.
# Instances of these classes, atoms, refer to no other objects. Each occurrence of an atom is checked, because a secret
# or a time may be in several places.
_ATOMS = frozenset(map(id, [bool, bytes, complex, float, int, str, type(None)]))
_CONTAINERS = {id(container): container for container in (dict, list, tuple, set, frozenset, deque)}
# The walk does not continue from instances of these classes: they are code rather than data, or belong to other code.
_CLOSED_CLASSES = (
    types.CodeType,
    types.FrameType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.ModuleType,
    types.TracebackType,
    types.WrapperDescriptorType,
    weakref.ReferenceType,
)
_CLOSED = frozenset(map(id, _CLOSED_CLASSES))
_CLOSED_NAMES = frozenset(["os._Environ"])
_NEAR_ITEMS = 100
_SHOWN_KEY = 40
_SHOWN_PATH = 240
_OBJECTS_BETWEEN_CLOCK_READINGS = 4096

_names: dict[int, tuple[type, tuple[str, ...]]] = {}
_slots: dict[int, tuple[type, list[tuple[str, Any]]]] = {}


class Reached(NamedTuple):
    """An object and the path to it.

    Attributes:
        path: for example ``app.client.pool[0]``, beginning with the name of a module.
        value: the object.
        near: whether the object belongs to one of the function's own modules, functions or classes, or to an instance
            of such a class, directly or through containers of at most 100 items each. Times and UUIDs are reported
            only where this is true.
    """

    path: str
    value: Any
    near: bool


class _OutOfBoundsError(Exception):
    pass


def is_atom(value: Any) -> bool:
    """Whether `value` is None, a number or a text, and its class is built in (instances of subclasses do not count)."""
    return id(type(value)) in _ATOMS


def mro(cls: type) -> tuple[type, ...]:
    """The method resolution order of `cls`, without running its metaclass's code."""
    classes: tuple[type, ...] = _MRO.__get__(cls)
    return classes


def class_names(cls: type) -> tuple[str, ...]:
    """Qualified names of `cls` and then its base classes; for example ``("ssl.SSLSocket", …)``."""
    known = _names.get(id(cls))
    if known is None:
        known = _names[id(cls)] = (cls, tuple(_qualified(base) for base in mro(cls)))
    return known[1]


def _qualified(cls: type) -> str:
    module, name = class_module(cls), _CLASS_NAME.__get__(cls)
    return f"{module}.{name}"


def class_module(cls: type) -> str:
    """Name of the module that defines `cls`; empty if the class hides it."""
    try:
        module = _CLASS_MODULE.__get__(cls)
    except AttributeError:
        return ""
    return module if type(module) is str else ""


def class_attribute(cls: type, name: str) -> Any:
    """The unbound attribute `name` of `cls` or a base class; None when there is none."""
    for base in mro(cls):
        attributes = _CLASS_DICT.__get__(base)
        if name in attributes:
            return attributes[name]
    return None


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of `value` in its own dict and slots; no property is evaluated."""
    found: dict[str, Any] = {}
    held = instance_dict(value)
    if held is not None:
        found.update((name, item) for name, item in list(dict.items(held)) if type(name) is str)
    for name, slot in _slots_of(type(value)):
        try:
            found[name] = slot.__get__(value)
        except (AttributeError, TypeError):
            continue  # the slot is not set, or the class's C code raises an exception
    return found


def instance_dict(value: Any) -> dict[Any, Any] | None:
    """The object's own dict; None if it has none."""
    for base in mro(type(value)):
        descriptor = _CLASS_DICT.__get__(base).get("__dict__")
        if type(descriptor) is types.GetSetDescriptorType:
            held = descriptor.__get__(value)
            return held if type(held) is dict else None
        if descriptor is not None:
            return None  # the class has replaced `__dict__`
    return None


def _slots_of(cls: type) -> list[tuple[str, Any]]:
    known = _slots.get(id(cls))
    if known is None:
        slots = [
            (name, attribute)
            for base in mro(cls)
            for name, attribute in list(_CLASS_DICT.__get__(base).items())
            if type(attribute) is types.MemberDescriptorType
        ]
        known = _slots[id(cls)] = (cls, slots)
    return known[1]


def walk(
    modules: Iterable[types.ModuleType],
    visit: Callable[[Reached], bool],
    *,
    max_objects: int,
    max_s: float,
) -> bool:
    """Call `visit` with all objects reachable from the modules, nearest first.

    Each object is visited once, but a number, a text or None at every occurrence. From a function, the walk continues
    to its closure, defaults and attributes, not to its module's globals. The walk does not continue from other modules,
    or from classes that `modules` do not define: a library's state does not belong to the function.

    Args:
        modules: the function's own modules.
        visit: called with each object; returns True if the walk must not continue from the object.
        max_objects: stop after this number of objects.
        max_s: stop after this time, seconds.

    Returns:
        Whether all objects were visited.
    """
    roots = {}
    for module in modules:
        held = _MODULE_DICT.__get__(module)
        name = held.get("__name__")
        roots[name if type(name) is str else "?"] = held
    walker = _Walker(frozenset(roots), visit, max_objects, time.monotonic() + max_s)
    try:
        walker.run(roots)
    except _OutOfBoundsError:
        return False
    return True


class _Walker:
    def __init__(
        self, roots: frozenset[str], visit: Callable[[Reached], bool], max_objects: int, deadline_s: float
    ) -> None:
        self._roots = roots
        self._visit = visit
        self._left = max_objects
        self._deadline_s = deadline_s
        # Objects by id. Keeping them alive ensures that no id is reused for another object during the walk.
        self._seen: dict[int, Any] = {}
        self._queue: deque[Reached] = deque()

    def run(self, roots: dict[str, dict[str, Any]]) -> None:
        for held in roots.values():
            self._seen[id(held)] = held
        for name, held in roots.items():
            for key, value in list(held.items()):
                if type(key) is str and not (key.startswith("__") and key.endswith("__")):
                    self._reach(Reached(f"{name}.{key}", value, True))
        while self._queue:
            for child in self._children(self._queue.popleft()):
                self._reach(child)

    def _reach(self, reached: Reached) -> None:
        self._left -= 1
        if self._left < 0:
            raise _OutOfBoundsError
        if self._left % _OBJECTS_BETWEEN_CLOCK_READINGS == 0 and time.monotonic() > self._deadline_s:
            raise _OutOfBoundsError
        if is_atom(reached.value):
            self._visit(reached)
        elif id(reached.value) not in self._seen:
            self._seen[id(reached.value)] = reached.value
            if not self._visit(reached):
                self._queue.append(reached)

    def _children(self, parent: Reached) -> Iterator[Reached]:
        value = parent.value
        cls = type(value)
        classes = mro(cls)
        if cls is types.FunctionType:
            yield from self._children_of_function(parent)
        elif cls is types.MethodType:
            yield Reached(parent.path, value.__self__, False)
            yield Reached(parent.path, value.__func__, parent.near)
        elif any(base is type for base in classes):
            if class_module(value) in self._roots:
                for name, item in list(_CLASS_DICT.__get__(value).items()):
                    if type(name) is str and not name.startswith("__"):
                        yield Reached(_joined(parent.path, f".{name}"), item, True)
        elif not any(id(base) in _CLOSED for base in classes) and _CLOSED_NAMES.isdisjoint(class_names(cls)):
            yield from self._children_of_object(parent, classes)

    def _children_of_function(self, parent: Reached) -> Iterator[Reached]:
        function = parent.value
        near = type(function.__module__) is str and function.__module__ in self._roots
        for index, cell in enumerate(function.__closure__ or ()):
            name = function.__code__.co_freevars[index]
            try:
                yield Reached(_joined(parent.path, f".{name}"), cell.cell_contents, near)
            except ValueError:
                continue  # the variable is not set yet
        for default in function.__defaults__ or ():
            yield Reached(_joined(parent.path, "(default)"), default, near)
        for name, default in dict.items(function.__kwdefaults__ or {}):
            yield Reached(_joined(parent.path, f"({name})"), default, near)
        for name, item in list(dict.items(function.__dict__)):
            yield Reached(_joined(parent.path, f".{name}"), item, near)

    def _children_of_object(self, parent: Reached, classes: tuple[type, ...]) -> Iterator[Reached]:
        value = parent.value
        held = attributes(value) if type(value) is not dict else {}
        is_functions = class_module(type(value)) in self._roots
        for name, item in held.items():
            yield Reached(_joined(parent.path, f".{name}"), item, is_functions)
        container: Any = next((_CONTAINERS[id(base)] for base in classes if id(base) in _CONTAINERS), None)
        if container is dict:
            near = parent.near and dict.__len__(value) <= _NEAR_ITEMS
            for key, item in list(dict.items(value)):
                yield Reached(_joined(parent.path, f"[{_shown(key)}]"), item, near)
                if not is_atom(key):
                    yield Reached(parent.path, key, False)
        elif container is not None:
            yield from _items(parent, container, self._left + 1)
        else:
            # The attributes were visited above, by name. Since Python 3.13 an object refers to them without a dict.
            visited = {id(item) for item in held.values()}
            for item in gc.get_referents(value):
                if id(item) not in visited and (type(item) is not dict or item is not instance_dict(value)):
                    yield Reached(parent.path, item, False)


def _items(parent: Reached, container: Any, limit: int) -> Iterator[Reached]:
    near = parent.near and container.__len__(parent.value) <= _NEAR_ITEMS
    ordered = container is list or container is tuple
    # Copied in one step, because other threads may change the container during the loop.
    for index, item in enumerate(list(islice(container.__iter__(parent.value), limit))):
        yield Reached(_joined(parent.path, f"[{index}]") if ordered else parent.path, item, near)


def _shown(key: Any) -> str:
    if type(key) is str:
        return repr(key if len(key) <= _SHOWN_KEY else key[:_SHOWN_KEY] + "…")
    return str(key) if type(key) is int else f"a {_CLASS_NAME.__get__(type(key))}"


def _joined(path: str, step: str) -> str:
    if len(path) < _SHOWN_PATH:
        return path + step
    return path if path.endswith("…") else path + "…"
