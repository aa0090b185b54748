"""Building: from a declared function to a version that can be started.

Its code is copied, its interpreter or program is found, its requirements are installed. What is built is started and
served by way of `publisher`, not from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from thawd.environments.programs import (
    WRAPPER,
    Program,
    check_program,
    extensions_in,
    find_program,
    find_wrapper,
    python_of,
    runs_a_program,
    variables_of_program,
)
from thawd.environments.version import Version, api_command, variables_of
from thawd.errors import EnvironmentBuildError
from thawd.publishing.interpreters import Interpreter, find_interpreter, prepare_environment
from thawd.publishing.uv import find_uv
from thawd.publishing.virtual_environments import remove_unused
from thawd.resources import LATEST, Bucket, Function
from thawd.stores.packages import PackageStore

Progress = Callable[[str], None]
"""Gets each line about a step that takes long."""

# How long an environment of requirements is kept that no version uses: it takes minutes to make.
_ENVIRONMENT_UNUSED_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What the configuration in force says for every build.

    Attributes:
        folder: of the configuration file; relative interpreters are looked for there.
        buckets: declared buckets, for ``thawd.bucket``.
        not_code: paths inside code folders that are not code.
    """

    folder: Path
    buckets: Mapping[str, Bucket]
    not_code: Collection[Path]


@dataclass(frozen=True, slots=True)
class Release:
    """Under which number, and with which code, a function is published.

    Attributes:
        number: of the version, or ``$LATEST``.
        package: folder of the code, which does not change any more; None: the code in the function's own folder is
            copied.
        layers: folders of its layers, in order.
    """

    number: str = LATEST
    package: Path | None = None
    layers: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class _Executable:
    """What a version's processes execute; the attributes are those of `Version`."""

    python: Path
    python_version: str
    program: Program | None = None
    wrapper: tuple[str, ...] = ()


class Builder:
    """Builds versions.

    Args:
        data: the data folder: packages and environments of requirements are kept there.
        own: the platform's own environment variables.

    Attributes:
        runtimes: interpreters, paths or commands, by Lambda's names of runtimes, as configured.
        helped: entered while programs of the platform's own run, to ask for a version or to install: they are no
            strays.
        aws: endpoint and credentials for AWS's SDKs in functions.
    """

    def __init__(self, data: Path, *, own: Mapping[str, str]) -> None:
        self.runtimes: Mapping[str, str] = {}
        self.helped: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        self.aws: Mapping[str, str] = {}
        self._packages = PackageStore(data / "packages")
        self._environments = data / "environments"
        self._own = own
        self._generations = itertools.count(1)

    async def build(
        self,
        function: Function,
        release: Release,
        *,
        context: BuildContext,
        last: Version | None = None,
        progress: Progress,
    ) -> Version:
        """The version for `function` as its files are now; `last` again when nothing has changed since.

        Args:
            function: as declared.
            release: number and code.
            context: what the configuration says.
            last: the version that was published last under this number.
            progress: gets lines about what takes long.

        Raises:
            EnvironmentBuildError: no interpreter or program, or requirements that cannot be installed.
            StoreError: the code cannot be read or copied.
        """
        interpreter: Interpreter | None = None
        if not runs_a_program(function):  # first: a copy of the code is made only for a function that can run
            interpreter = await self._interpreter(function, context.folder, progress)
        package = release.package
        if package is None:
            package = (await asyncio.to_thread(self._packages.publish, function.code, exclude=context.not_code)).path
        roots = (package, *release.layers)
        if interpreter is None:
            executable = await self._own_program(function, roots, context.folder)
        else:
            executable = self._python(function, interpreter, roots)
        variables = variables_of(
            function,
            task_root=package,
            python_version=executable.python_version,
            buckets={name: bucket.path for name, bucket in context.buckets.items()},
            own=self._own,
            number=release.number,
            layers=release.layers,
            aws=self.aws,
        )
        if executable.program is not None:
            variables = variables_of_program(function, executable.program, variables)
        version = Version(
            function=function,
            generation=0 if last is None else last.generation,
            python=executable.python,
            python_version=executable.python_version,
            task_root=package,
            variables=variables,
            number=release.number,
            program=executable.program,
            wrapper=executable.wrapper,
        )
        return last if last == version else replace(version, generation=next(self._generations))

    async def _interpreter(self, function: Function, folder: Path, progress: Progress) -> Interpreter:
        """The interpreter of a Python function; with requirements, that of their environment.

        Raises:
            EnvironmentBuildError: there is none that works, or the requirements cannot be installed.
        """
        wanted = python_of(function, self.runtimes)
        with self.helped():
            interpreter = await asyncio.to_thread(find_interpreter, wanted, folder=folder, environ=self._own)
            if function.requirements is None:
                return interpreter
            try:
                path = await prepare_environment(
                    function.requirements,
                    interpreter,
                    self._environments,
                    on_line=progress,
                    environ=self._own,
                    uv=find_uv(),
                )
            except EnvironmentBuildError as error:
                raise EnvironmentBuildError(f"functions.{function.name}: {error.message}") from error
        return Interpreter(path, interpreter.version)

    async def _own_program(self, function: Function, roots: tuple[Path, ...], folder: Path) -> _Executable:
        """What a function executes that brings its program, or runs Node.

        Raises:
            EnvironmentBuildError: there is no program that works.
        """
        with self.helped():
            program = await asyncio.to_thread(
                find_program, function, roots=roots, runtimes=self.runtimes, folder=folder, environ=self._own
            )
        return _Executable(program.path, "", program)

    def _python(self, function: Function, interpreter: Interpreter, roots: tuple[Path, ...]) -> _Executable:
        """What a Python function executes.

        Raises:
            EnvironmentBuildError: the wrapper that it names cannot be executed.
        """
        version_text = ".".join(map(str, interpreter.version))
        if WRAPPER not in function.environment:
            return _Executable(interpreter.path, version_text)
        wrapper = find_wrapper(function, roots=roots, environ=self._own)
        extensions = extensions_in(roots)
        if not extensions:
            return _Executable(interpreter.path, version_text, wrapper=wrapper)
        # Extensions speak the Runtime API, and what such a wrapper executes may leave the answers to one of them.
        argv = (*wrapper, *api_command(interpreter.path))
        name = f"python{interpreter.version[0]}.{interpreter.version[1]}"
        program = Program(name, argv, f"python:{version_text}", snap_start=False, extensions=extensions)
        return _Executable(program.path, version_text, program, wrapper)

    async def check_runtime(self, function: Function, *, folder: Path) -> None:
        """Check that the interpreter of a function is on this machine; a program in its code is not looked for.

        Raises:
            EnvironmentBuildError: the interpreter is not here, or does not work.
        """
        with self.helped():
            if runs_a_program(function):
                runtimes = self.runtimes
                await asyncio.to_thread(check_program, function, runtimes=runtimes, folder=folder, environ=self._own)
            else:
                python = python_of(function, self.runtimes)
                await asyncio.to_thread(find_interpreter, python, folder=folder, environ=self._own)

    def distrust(self) -> None:
        """Check each package again when it is next built: a function may have damaged its own code."""
        self._packages.distrust()

    def clean(self, in_use: Collection[Version], *, keep: Callable[[], set[str]] = set) -> None:
        """Remove packages that no version uses, and environments of requirements that none has used for a week.

        Blocking; only while nothing is being built.

        Args:
            in_use: versions whose code and requirements stay.
            keep: names of other packages that stay; called again for each package.
        """
        used = {version.task_root.name for version in in_use}
        self._packages.remove_except(lambda name: name in used or name in keep())
        pythons = [version.python for version in in_use]
        environments = {python.parent.parent.name for python in pythons if python.is_relative_to(self._environments)}
        remove_unused(self._environments, environments, unused_s=_ENVIRONMENT_UNUSED_S)
