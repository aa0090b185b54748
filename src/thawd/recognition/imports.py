"""Finds packages that a module imports and an interpreter does not have. No package is imported.

Only imports that surely run are looked at: those at the top level, outside of ``if`` and ``try``.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from thawd.recognition.modules import Module, file_of, parse

_LIMIT_S = 20.0
_MOST_FILES = 50
# Packages that thawd provides to functions.
_PROVIDED = {
    "thawd",
    "snapshot_restore_py",
    "boto3",
    "botocore",
    "s3transfer",
    "jmespath",
    "urllib3",
    "dateutil",
    "six",
}
_ASK = (
    "import sys, json\n"
    "sys.path[:0] = json.loads(sys.argv[2])\n"
    "names = json.loads(sys.argv[1])\n"
    "own = set(sys.builtin_module_names) | set(getattr(sys, 'stdlib_module_names', ()))\n"
    "finders = [f.find_spec for f in sys.meta_path if hasattr(f, 'find_spec')]\n"
    "print(json.dumps([n for n in names if n not in own and all(find(n, None) is None for find in finders)]))"
)


def needed(module: Module, folder: Path) -> dict[str, str]:
    """The first parts of names of packages that a module needs, and that are not in the code folder.

    Modules of the code folder that it imports are read, too.

    Returns:
        For each name, the place of the import: the file's name and the line.
    """
    found: dict[str, str] = {}
    waiting, seen = [module], {module.file}
    while waiting and len(seen) < _MOST_FILES:
        current = waiting.pop()
        for name, line in imported_by(current.tree):
            top = name.split(".")[0]
            local = file_of(folder, name) or file_of(folder, top)
            if local is None and not (folder / top).is_dir():
                found.setdefault(top, f"{current.file.name}:{line}")
            elif local is not None and local not in seen:
                seen.add(local)
                try:
                    waiting.append(parse(local))
                except (SyntaxError, OSError, ValueError):
                    continue
    return {name: place for name, place in found.items() if name not in _PROVIDED}


def has(name: str, path: list[str] | None = None) -> bool:
    """Whether this interpreter has a package, also one that is installed editable, which a hook of its own finds.

    Args:
        name: the first part of its name.
        path: folders where it is looked up; None: ``sys.path``.
    """
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return True
    if PathFinder.find_spec(name, path) is not None:
        return True
    return any(
        finder.find_spec(name, None) is not None
        for finder in sys.meta_path
        if finder is not PathFinder and hasattr(finder, "find_spec")
    )


def missing(names: list[str], python: Path, search: list[Path]) -> list[str]:
    """Those of the packages that an interpreter does not find. An interpreter that does not answer has them all.

    Args:
        names: first parts of packages' names.
        python: the interpreter.
        search: further folders where packages are looked up.
    """
    if not names:
        return []
    folders = [str(folder) for folder in search]
    if python == Path(sys.executable):
        path = [*folders, *sys.path[1:]]
        return [name for name in names if not has(name, path)]
    command = [str(python), "-c", _ASK, json.dumps(names), json.dumps(folders)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True)
        return list(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def imported_by(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The modules that a module imports at its top level by their whole names, each with the line."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from ((alias.name, statement.lineno) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            yield statement.module, statement.lineno
