"""Decides what the environments of a container image execute: thawd's Python runtime, or the image's own entry point.

thawd's runtime replaces awslambdaric in an image whose entry point is that of Lambda's Python base image, or is a
Python with ``-m awslambdaric``: then environments are thawed. Any other entry point is executed as it is, and speaks
the Runtime API. This module reads the image's files, and runs nothing.

Source: AWS Lambda developer guide, "Create a Lambda function using a container image", "Using AWS base images for
Python", "Using an alternative base image with the runtime interface client".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from thawd.environments.runtime_programs import WRAPPER, extensions_in
from thawd.errors import EnvironmentBuildError
from thawd.oci.image_paths import resolve_folder
from thawd.oci.root import Root
from thawd.resources import Function

_BASE_ENTRY = "/lambda-entrypoint.sh"
_BASE_PYTHONS = "/var/lang/bin"
_CLIENT = ("-m", "awslambdaric")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_VERSIONED = re.compile(r"python3\.\d+")
_TASK = "/var/task"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The command line that the environments of an image execute. All paths are paths in the image.

    Attributes:
        argv: the image's command line.
        working_folder: the working folder.
        variables: the image's environment variables, and over them the function's.
        python: the interpreter that can run the function in thawd's runtime; None: `argv` is executed.
        handler: the handler's name, ``module.function``, with an interpreter; else empty.
        task_root: the folder where the handler's module is searched for first.
        why_program: why thawd's runtime cannot run the function; empty with an interpreter.
    """

    argv: tuple[str, ...]
    working_folder: str
    variables: Mapping[str, str]
    python: str | None = None
    handler: str = ""
    task_root: str = _TASK
    why_program: str = ""

    def as_program(self, why: str) -> EntryPoint:
        """Return the same image, executed by its own command line; `why` says why."""
        return replace(self, python=None, handler="", why_program=why)


def entry_point_of(function: Function, root: Root) -> EntryPoint:
    """Decide what the environments of a function with a container image execute.

    Args:
        function: as declared; its image configuration replaces the image's own, part by part.
        root: the image.

    Raises:
        EnvironmentBuildError: the image says not what to execute, or that file is missing.
    """
    config = function.image_config
    entry = root.entrypoint if config.entry_point is None else list(config.entry_point)
    command = root.cmd if config.command is None else list(config.command)
    argv = (*entry, *command)
    what = f"functions.{function.name}: the image {function.image}"
    if not argv:
        raise EnvironmentBuildError(
            f"{what} has neither ENTRYPOINT nor CMD; add one to its Dockerfile, or set the function's image_config"
        )
    variables = {"PATH": DEFAULT_PATH, **root.env, **function.environment}
    folder = config.working_directory or root.working_dir or "/"
    found = EntryPoint(argv, folder, variables, task_root=variables.get("LAMBDA_TASK_ROOT", _TASK))
    if _is_missing(root, folder):
        raise EnvironmentBuildError(f"{what} has no folder {folder}, which is to be the working folder")
    program = find_in_root(root, argv[0], variables, folder)
    if program is None:
        raise EnvironmentBuildError(
            f"{what} is to execute {argv[0]}, which is not in it; correct ENTRYPOINT, or the function's image_config"
        )
    found = replace(found, argv=(program, *argv[1:]))
    if tuple(entry) == (_BASE_ENTRY,):
        return _of_base_image(found, root, command, what)
    if _PYTHON.fullmatch(Path(argv[0]).name) and argv[1:3] == _CLIENT and len(argv) == 4:
        return _checked(replace(found, python=program, handler=argv[3], task_root=folder), root)
    return found.as_program(f"the image's entry point is {argv[0]}, and not a Python with awslambdaric")


def _of_base_image(found: EntryPoint, root: Root, command: list[str], what: str) -> EntryPoint:
    """Return the entry point of Lambda's base image: it executes the runtime with the handler's name.

    Raises:
        EnvironmentBuildError: there is no handler's name.
    """
    folder = resolve_folder(str(root.folder), _BASE_PYTHONS.split("/"), what=_BASE_PYTHONS)
    names = [] if folder is None else sorted(filter(_VERSIONED.fullmatch, os.listdir(folder)))  # noqa: PTH208
    if len(names) != 1:
        return found.as_program("the image has Lambda's entry point, but not Lambda's Python")
    if len(command) != 1:
        raise EnvironmentBuildError(
            f'{what} needs the handler\'s name as CMD, for example ["app.handler"]; set it in the Dockerfile, or as '
            "command in the function's image_config"
        )
    return _checked(replace(found, python=f"{_BASE_PYTHONS}/{names[0]}", handler=command[0]), root)


def _checked(found: EntryPoint, root: Root) -> EntryPoint:
    """Return the entry point, without its interpreter if thawd's runtime would leave out a part of the image."""
    if found.variables.get(WRAPPER):
        return found.as_program(f"{WRAPPER} names a wrapper script of the image")
    if extensions_of(root):
        return found.as_program("the image has extensions, which use the Runtime API")
    return found


def extensions_of(root: Root) -> tuple[Path, ...]:
    """Return the executables in ``/opt/extensions`` of an image, as paths in it."""
    folder = resolve_folder(str(root.folder), ["opt", "extensions"], what="/opt/extensions")
    found = () if folder is None else extensions_in([Path(folder).parent])
    return tuple(Path("/opt/extensions") / path.name for path in found)


def find_in_root(root: Root, name: str, variables: Mapping[str, str], folder: str) -> str | None:
    """Return the path in an image of the program `name`; None: it is not there. The search is that of execvp(3)."""
    if "/" in name:
        path = os.path.normpath(Path(folder, name))
        return None if _is_missing(root, path) else path
    candidates = (str(Path("/", entry or folder, name)) for entry in variables["PATH"].split(os.pathsep))
    return next((path for path in candidates if not _is_missing(root, path)), None)


def _is_missing(root: Root, path: str) -> bool:
    """Return whether nothing is at a path of an image.

    Links are followed within the image, except a link at the end.
    """
    parent, name = os.path.split(path)
    folder = resolve_folder(str(root.folder), parent.split("/"), what=path)
    return folder is None or not os.path.lexists(Path(folder, name))
