"""From a declared function to a version that can run: its code copied, its interpreter found, its requirements met."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
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
from thawd.publishing.requirements import remove_unused
from thawd.publishing.uv import find_uv
from thawd.resources import LATEST, Bucket, Function
from thawd.stores.packages import PackageStore

Progress = Callable[[str], None]

# So long an environment is kept that no version uses: it takes minutes to make, and hundreds of megabytes.
_ENVIRONMENT_UNUSED_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Release:
    """A version whose code is a package already.

    Attributes:
        number: of the version, or ``$LATEST``.
        package: folder of the code, not changed any more.
        layers: folders of its layers, in order.
    """

    number: str
    package: Path
    layers: tuple[Path, ...] = ()


class Publisher:
    """Makes versions; remembers what it made, so that nothing is published twice.

    Args:
        data: the data folder: packages and environments of requirements are kept there.
        own: the platform's own environment variables.

    Attributes:
        runtimes: interpreters, paths or commands, by Lambda's names of runtimes, as configured.
        helped: entered while programs run here, which ask for a version or install: nobody may take them for strays.
    """

    def __init__(self, data: Path, *, own: Mapping[str, str]) -> None:
        self.runtimes: Mapping[str, str] = {}
        self.helped: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        self.aws: Mapping[str, str] = {}
        """Endpoint and credentials for AWS's SDKs in functions."""
        self._packages = PackageStore(data / "packages")
        self._environments = data / "environments"
        self._own = own
        self._generations = itertools.count(1)
        self._published: dict[tuple[str, str], tuple[Function, Version]] = {}

    async def build(
        self,
        function: Function,
        *,
        folder: Path,
        buckets: Mapping[str, Bucket],
        not_code: Collection[Path],
        progress: Progress,
        release: Release | None = None,
    ) -> Version:
        """The version for `function` as its files are now; the last one again when nothing has changed.

        Args:
            function: as declared.
            folder: of the configuration file; relative interpreters are looked for there.
            buckets: declared buckets, for ``thawd.bucket``.
            not_code: paths inside the code folder that are not code.
            progress: told what takes long.
            release: what it is released as; None: as ``$LATEST``, with the code that is in the function's folder.

        Raises:
            EnvironmentBuildError: no interpreter or program, or requirements that cannot be installed.
            StoreError: the code cannot be read or copied.
        """
        program: Program | None = None
        version_text = ""
        if not runs_a_program(function):
            wanted = python_of(function, self.runtimes)
            with self.helped():
                interpreter = await asyncio.to_thread(find_interpreter, wanted, folder=folder, environ=self._own)
                python = interpreter.path
                if function.requirements is not None:
                    python = await self._environment(function, interpreter, progress)
            version_text = ".".join(map(str, interpreter.version))
        number = LATEST if release is None else release.number
        package = None if release is None else release.package
        if package is None:
            package = (await asyncio.to_thread(self._packages.publish, function.code, exclude=not_code)).path
        roots = (package, *(() if release is None else release.layers))
        wrapper: tuple[str, ...] = ()
        if runs_a_program(function):
            with self.helped():
                program = await asyncio.to_thread(
                    find_program, function, roots=roots, runtimes=self.runtimes, folder=folder, environ=self._own
                )
            python = program.path
        elif WRAPPER in function.environment:
            wrapper = find_wrapper(function, roots=roots, environ=self._own)
            # Extensions speak the Runtime API, and what such a wrapper executes may leave the answers to one of them.
            if extensions := extensions_in(roots):
                argv = (*wrapper, *api_command(python))
                name = f"python{interpreter.version[0]}.{interpreter.version[1]}"
                program = Program(name, argv, f"python:{version_text}", snap_start=False, extensions=extensions)
                python = program.path
        variables = variables_of(
            function,
            task_root=package,
            python_version=version_text,
            buckets={name: bucket.path for name, bucket in buckets.items()},
            own=self._own,
            number=number,
            layers=() if release is None else release.layers,
            aws=self.aws,
        )
        if program is not None:
            variables = variables_of_program(function, program, variables)
        last = self._published.get((function.name, number))
        if last is not None and last[0] == function:
            version = last[1]
            known = (version.python, version.task_root, version.variables, version.program, version.wrapper)
            if known == (python, package, variables, program, wrapper):
                return version
        return Version(
            function=function,
            generation=next(self._generations),
            python=python,
            python_version=version_text,
            task_root=package,
            variables=variables,
            number=number,
            program=program,
            wrapper=wrapper,
        )

    async def check_runtime(self, function: Function, *, folder: Path) -> None:
        """Let a function pass whose interpreter is on this machine; a program in its code is not looked for.

        Raises:
            EnvironmentBuildError: it is not.
        """
        with self.helped():
            if runs_a_program(function):
                runtimes = self.runtimes
                await asyncio.to_thread(check_program, function, runtimes=runtimes, folder=folder, environ=self._own)
            else:
                python = python_of(function, self.runtimes)
                await asyncio.to_thread(find_interpreter, python, folder=folder, environ=self._own)

    def forget(self, name: str, number: str) -> None:
        """The version exists no more; its package may go."""
        self._published.pop((name, number), None)

    def distrust(self) -> None:
        """Check packages anew when they are next built: a function may have damaged its own code."""
        self._packages.distrust()

    def published(self, version: Version) -> None:
        """`version` serves now."""
        self._published[version.function.name, version.number] = (version.function, version)

    def is_published(self, version: Version) -> bool:
        """Whether `version` is the one that serves already."""
        last = self._published.get((version.function.name, version.number))
        return last is not None and last[1] is version

    def clean(self, in_use: Collection[Version], *, keep: Callable[[], set[str]] = set) -> None:
        """Remove packages that no version uses, and environments that none has used for a week.

        Blocking; only while nothing is being built.

        Args:
            in_use: versions that still have environments; those published last are kept besides.
            keep: names of other packages that stay; asked anew for each.
        """
        latest = [version for _, version in self._published.values()]
        used = {version.task_root.name for version in (*latest, *in_use)}
        self._packages.remove_except(lambda name: name in used or name in keep())
        pythons = [version.python for version in (*latest, *in_use)]
        environments = {python.parent.parent.name for python in pythons if python.is_relative_to(self._environments)}
        remove_unused(self._environments, environments, unused_s=_ENVIRONMENT_UNUSED_S)

    async def _environment(self, function: Function, interpreter: Interpreter, progress: Progress) -> Path:
        assert function.requirements is not None
        try:
            return await prepare_environment(
                function.requirements,
                interpreter,
                self._environments,
                on_line=progress,
                environ=self._own,
                uv=find_uv(),
            )
        except EnvironmentBuildError as error:
            raise EnvironmentBuildError(f"functions.{function.name}: {error.message}") from error
