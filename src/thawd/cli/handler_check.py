"""What ``thawd check`` finds in the sources of handlers: mistakes, what each handler is, and notes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.publishing.interpreters import Interpreter
    from thawd.recognition.handlers import Examined
    from thawd.resources import Function

_REFERENCE = re.compile(r"\$\{[A-Za-z_]\w*\}")


@dataclass(slots=True)
class ExaminedHandlers:
    """What was found.

    Attributes:
        mistakes: a line for each mistake.
        lines: a line for each function, with what its handler is, each followed by notes about it.
    """

    mistakes: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def examine_handlers(settings: Settings) -> ExaminedHandlers:
    """Examine the handlers of all Python functions of a configuration. No handler is imported."""
    from thawd.environments.runtime_programs import runs_a_program

    found = ExaminedHandlers()
    for name, function in settings.functions.items():
        if function.image is None and not runs_a_program(function):
            _examine(name, function, settings, found)
        found.lines += [f"  note: {note}" for note in _unreplaced(name, function)]
    return found


def _unreplaced(name: str, function: Function) -> Iterator[str]:
    """Notes about environment variables that look as if thawd would insert another variable. Values are not shown."""
    for key, value in function.environment.items():
        if (reference := _REFERENCE.search(value)) is not None:
            yield (
                f"functions.{name}.environment.{key}: the function gets the characters {reference[0]} as they are, "
                "because thawd inserts no variables here; to keep a secret out of this file, use environment_file"
            )


def _examine(name: str, function: Function, settings: Settings, found: ExaminedHandlers) -> None:
    from thawd.environments.runtime_programs import python_of
    from thawd.errors import ThawdError
    from thawd.publishing.interpreters import find_interpreter
    from thawd.recognition.handlers import examine

    try:
        interpreter = find_interpreter(python_of(function, settings.runtimes), folder=settings.path.parent)
    except ThawdError as error:
        found.mistakes.append(f"functions.{name}.python: {error}")
        return
    version = None if function.python is None else interpreter.version[:2]
    examined = examine(function, version=version, has_layers=function.requirements is not None)
    found.mistakes += [f"functions.{name}.handler: {mistake}" for mistake in examined.mistakes]
    found.lines.append(f"{name}: {function.handler}, {examined.recognised}")
    notes = [*_routes(name, settings, examined), *_packages(function, interpreter, examined)]
    top = function.handler.partition(".")[0]
    if top in sys.stdlib_module_names:
        notes.append(f"{top} is also a module of Python itself, which may be imported instead; rename the file")
    notes += _left_out(function, settings, examined)
    found.lines += [f"  note: {note}" for note in notes]


def _routes(name: str, settings: Settings, examined: Examined) -> list[str]:
    """Notes about routes and URLs that do not fit the handler."""
    kind = examined.recognised.kind
    notes = []
    url = settings.urls.get(name)
    if url is not None and url.invoke_mode == "RESPONSE_STREAM" and not kind.streams:
        notes.append(
            "its function URL has invoke_mode = RESPONSE_STREAM, but the handler streams nothing: clients get its "
            "whole answer as the body; let it yield parts, or leave out invoke_mode"
        )
    keys = [route.key for route in settings.routes if route.function == name]
    if kind.serves_http and keys and url is None and not any(key == "$default" or "+}" in key for key in keys):
        notes.append(
            f"only {', '.join(keys)} reaches it, and no path below; for all of its paths, add the route "
            '"$default" or one that ends in /{path+}'
        )
    return notes


def _packages(function: Function, interpreter: Interpreter, examined: Examined) -> list[str]:
    """Notes about packages that the interpreter does not have."""
    from thawd.recognition.imports import missing, needed

    if function.requirements is not None or examined.module is None:
        return []
    places = needed(examined.module, function.code)
    lacking = missing(list(places), interpreter.path, [function.code])
    return [
        f"{places[name]} imports {name}, which {interpreter.path} does not have; install it there, or name a file of "
        'requirements: requirements = "requirements.txt"'
        for name in lacking
    ]


def _left_out(function: Function, settings: Settings, examined: Examined) -> list[str]:
    from thawd.recognition.handlers import left_out
    from thawd.stores.trees import Tree

    if examined.module is None:
        return []
    tree = Tree(function.code, exclude=[settings.path])
    return list(left_out(examined.module, tree.root, lambda path: not tree.contains(path)))
