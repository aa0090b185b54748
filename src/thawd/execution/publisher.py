"""From a declared function to a version that can run: its code copied, its interpreter found, its requirements met."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from thawd.errors import EnvironmentBuildError
from thawd.execution.interpreters import Interpreter, find_interpreter, prepare_environment
from thawd.execution.version import Version, variables_of
from thawd.resources import Bucket, Function
from thawd.state.packages import PackageStore

Progress = Callable[[str], None]


class Publisher:
    """Makes versions; remembers what it made, so that nothing is published twice.

    Args:
        data: the data folder: packages and environments of requirements are kept there.
        own: the platform's own environment variables.
    """

    def __init__(self, data: Path, *, own: Mapping[str, str]) -> None:
        self._packages = PackageStore(data / "packages")
        self._environments = data / "environments"
        self._own = own
        self._generations = itertools.count(1)
        self._published: dict[str, tuple[Function, Version]] = {}

    async def build(
        self,
        function: Function,
        *,
        folder: Path,
        buckets: Mapping[str, Bucket],
        not_code: Collection[Path],
        progress: Progress,
    ) -> Version:
        """The version for `function` as its files are now; the last one again when nothing has changed.

        Args:
            function: as declared.
            folder: of the configuration file; relative interpreters are looked for there.
            buckets: declared buckets, for ``thawd.bucket``.
            not_code: paths inside the code folder that are not code.
            progress: told what takes long.

        Raises:
            EnvironmentBuildError: no interpreter, or requirements that cannot be installed.
            StoreError: the code cannot be read or copied.
        """
        interpreter = await asyncio.to_thread(find_interpreter, function.python, folder=folder, environ=self._own)
        python = interpreter.path
        if function.requirements is not None:
            python = await self._environment(function, interpreter, progress)
        package = await asyncio.to_thread(self._packages.publish, function.code, exclude=not_code)
        version_text = ".".join(map(str, interpreter.version))
        variables = variables_of(
            function,
            task_root=package.path,
            python_version=version_text,
            buckets={name: bucket.path for name, bucket in buckets.items()},
            own=self._own,
        )
        last = self._published.get(function.name)
        if last is not None and last[0] == function:
            version = last[1]
            if (version.python, version.task_root, version.variables) == (python, package.path, variables):
                return version
        return Version(
            function=function,
            generation=next(self._generations),
            python=python,
            python_version=version_text,
            task_root=package.path,
            variables=variables,
        )

    def distrust(self) -> None:
        """Check packages anew when they are next built: a function may have damaged its own code."""
        self._packages.distrust()

    def published(self, version: Version) -> None:
        """`version` serves now."""
        self._published[version.function.name] = (version.function, version)

    def is_published(self, version: Version) -> bool:
        """Whether `version` is the one that serves already."""
        last = self._published.get(version.function.name)
        return last is not None and last[1] is version

    def clean(self, in_use: Collection[Version]) -> None:
        """Remove packages that no version uses. Blocking; only while nothing is being built.

        Args:
            in_use: versions that still have environments; those published last are kept besides.
        """
        latest = [version for _, version in self._published.values()]
        self._packages.remove_except({version.task_root.name for version in (*latest, *in_use)})

    async def _environment(self, function: Function, interpreter: Interpreter, progress: Progress) -> Path:
        assert function.requirements is not None
        try:
            return await prepare_environment(
                function.requirements, interpreter, self._environments, on_line=progress, environ=self._own
            )
        except EnvironmentBuildError as error:
            raise EnvironmentBuildError(f"functions.{function.name}: {error.message}") from error
