"""Building: turns a declared function into a version that can be started.

The builder copies the function's code, finds its interpreter or program, and installs its requirements. It does not
start the version: `publisher` passes the version to the dispatcher, which starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from thawd.environments.debugging import VARIABLE, WHY_COLD, Debugging, held
from thawd.environments.runtime_programs import (
    NODE_FOLDER,
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
from thawd.environments.trace_variables import TargetsOf
from thawd.environments.version import RUNTIME_FOLDER, Variables, Version, api_command, variables_of
from thawd.errors import EnvironmentBuildError, StoreError
from thawd.oci.image_store import Images
from thawd.publishing.container_images import ContainerImages, ImageBuild
from thawd.publishing.interpreters import Interpreter, find_interpreter, prepare_environment
from thawd.publishing.layer_merge import merge
from thawd.publishing.uv import find_uv
from thawd.publishing.virtual_environments import remove_unused
from thawd.resources import LATEST, NODE_RUNTIMES, Bucket, Function
from thawd.snapshot.disk.places import RUNTIME, Places
from thawd.stores.code_copies import PackageStore

Progress = Callable[[str], None]
"""Called with lines of text for the operator about a step that takes long."""

WhyReal = Callable[[Function, Places, Sequence[Path]], str | None]
"""Says why the processes of a function must see its code and layers at their real paths; see `Launcher.why_real`."""

# How long a virtual environment is kept when no version uses it any more. To make it again would take minutes.
_ENVIRONMENT_UNUSED_S = 7 * 86_400.0

# A search for an interpreter runs each candidate, which takes 20 ms and more. So its result is used for this long, for
# functions that are built one after the other.
_SEARCH_VALID_S = 10.0


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The parts of the current configuration that every build needs.

    Attributes:
        folder: folder of the configuration file; relative paths of interpreters begin there.
        buckets: declared buckets, for ``thawd.bucket``.
        not_code: paths that are left out of packages, for example the configuration file and the data folder.
    """

    folder: Path
    buckets: Mapping[str, Bucket]
    not_code: Collection[Path]


@dataclass(frozen=True, slots=True)
class Release:
    """The version number under which a function is published, and its code.

    Attributes:
        number: the version's number, or ``$LATEST``.
        package: folder with the code, which must not change any more; None: the code in the function's own folder is
            copied.
        layers: folders of the function's layers, in order.
    """

    number: str = LATEST
    package: Path | None = None
    layers: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class _Executable:
    """The interpreter or program that a version's processes execute. The attributes are those of `Version`."""

    python: Path
    python_version: str
    program: Program | None = None
    wrapper: tuple[str, ...] = ()

    @property
    def needed(self) -> tuple[Path, ...]:
        """Files and folders that the processes need besides code and layers."""
        return (self.python, *(() if self.program is None else self.program.modules))

    def seen(self, places: Places) -> _Executable:
        """Return the same, with the paths that the processes see."""

        def command(argv: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(str(places.seen(Path(text))) if text.startswith("/") else text for text in argv)

        program = self.program
        if program is not None:
            extensions = tuple(map(places.seen, program.extensions))
            program = replace(program, argv=command(program.argv), extensions=extensions)
        return replace(self, program=program, wrapper=command(self.wrapper))


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for an interpreter.

    Attributes:
        task: the search.
        until_s: until when the result of the search is used, ``time.monotonic()`` seconds.
    """

    task: asyncio.Task[Interpreter]
    until_s: float


def _has_failed(task: asyncio.Task[Interpreter]) -> bool:
    return task.cancelled() or task.exception() is not None


class Builder:
    """Builds versions.

    Args:
        data: the data folder. Packages and virtual environments are kept in it.
        own: the platform's own environment variables.

    Attributes:
        runtimes: configured interpreters, as paths or commands, by Lambda's runtime names.
        spare_own_programs: returns a context manager that is entered while thawd runs a program of its own, for
            example an installer. Inside it, thawd does not kill processes without an owner, because they may be such
            programs.
        aws: endpoint and credentials for AWS SDKs in functions.
        traces: returns where a function sends what it traces; None: nothing of it is traced.
        images: builds the versions of functions with container images.
        debugging: the functions that a debugger can stop; None: there are none.
        why_real: why a function's processes must see its code and layers at their real paths; None: they need not.
    """

    def __init__(self, data: Path, *, own: Mapping[str, str]) -> None:
        self.runtimes: Mapping[str, str] = {}
        self.spare_own_programs: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        self.aws: Mapping[str, str] = {}
        self.traces: TargetsOf = lambda function: None
        self.debugging: Debugging | None = None
        self.why_real: WhyReal = lambda function, places, needed: "this server does not mount folders"
        self._packages = PackageStore(data / "packages")
        self.images = ContainerImages(Images(data / "images"), data, environ=own)
        self._environments = data / "environments"
        self._own = own
        self._generations = itertools.count(1)
        self._searches: dict[tuple[str | None, Path], _Search] = {}

    async def build(
        self,
        function: Function,
        release: Release,
        *,
        context: BuildContext,
        last: Version | None = None,
        progress: Progress,
    ) -> Version:
        """Return the version for `function` with its current files, or `last` if nothing has changed since.

        Args:
            function: the function as declared.
            release: the version's number and code.
            context: what the build needs from the configuration.
            last: the version that was last published under this number; None: there is none.
            progress: called with lines about steps that take long.

        Raises:
            EnvironmentBuildError: there is no working interpreter or program, or the requirements cannot be installed.
            StoreError: the code cannot be read or copied.
        """
        if function.image is not None:
            return await self._of_image(function, release, context, last, progress)
        interpreter: Interpreter | None = None
        if not runs_a_program(function):  # done before the copy, so that code that cannot run is not copied
            interpreter = await self._interpreter(function, context.folder, progress)
        package = release.package
        if package is None:
            package = (await asyncio.to_thread(self._packages.publish, function.code, exclude=context.not_code)).path
        if self._is_debugged(function, release):
            places, why_real = None, WHY_COLD
        else:
            places, why_real = await self._places(function, package, release.layers)
        executable = await self._executable(function, interpreter, release, package, places, context.folder)
        if places is not None and (why_real := self.why_real(function, places, executable.needed) or ""):
            places = None
            executable = await self._executable(function, interpreter, release, package, None, context.folder)
        variables = variables_of(
            function,
            task_root=package,
            python_version=executable.python_version,
            buckets={name: bucket.path for name, bucket in context.buckets.items()},
            own=self._own,
            number=release.number,
            layers=release.layers,
            aws=self.aws,
            places=places,
            traces=self.traces(function),
        )
        code = variables["THAWD_CODE"]  # the same object, which takes no further memory
        if executable.program is not None:
            variables = variables_of_program(function, executable.program, variables)
            if places is not None:
                variables["LAMBDA_RUNTIME_DIR"] = str(RUNTIME)
        version = Version(
            function=function,
            generation=0 if last is None else last.generation,
            python=executable.python,
            python_version=executable.python_version,
            code=code,
            variables=Variables(variables),
            number=release.number,
            program=executable.program,
            wrapper=executable.wrapper,
            places=places,
            why_real=why_real,
        )
        if self._is_debugged(function, release):
            version = await self._debugged(version)
        return last if last == version else replace(version, generation=next(self._generations))

    def _is_debugged(self, function: Function, release: Release) -> bool:
        return self.debugging is not None and function.name in self.debugging.ports and release.number == LATEST

    async def _debugged(self, version: Version) -> Version:
        """Return the version with what a debugger needs: the user's own files, and no time limits.

        Raises:
            EnvironmentBuildError: it does not run in thawd's own Python runtime, or no debugger could stop it.
        """
        function, debugging = version.function, self.debugging
        assert debugging is not None
        if version.program is not None:
            raise EnvironmentBuildError(
                f"functions.{function.name}: --debug works for functions of thawd's Python runtime only. For Node, set "
                'the environment variable NODE_OPTIONS = "--inspect=127.0.0.1:9229".'
            )
        package = version.task_root
        text = await asyncio.to_thread(debugging.variable, function, version.python, package=package)
        if (why := debugging.why_nothing_stops(text)) is not None:
            raise EnvironmentBuildError(f"functions.{function.name}: {why}")
        folder = str(function.code if function.code.is_dir() else package)
        shown = {"LAMBDA_TASK_ROOT": folder, "PWD": folder, VARIABLE: text}
        variables = Variables({**version.variables, **shown})
        return replace(version, function=held(function), variables=variables, debugged=True)

    async def _of_image(
        self, function: Function, release: Release, context: BuildContext, last: Version | None, progress: Progress
    ) -> Version:
        """Return the version of a function with a container image, or `last` if nothing has changed since.

        Raises:
            EnvironmentBuildError: the image cannot run here.
            ImageError: there is no such image, or it is broken.
        """
        if self._is_debugged(function, release):
            raise EnvironmentBuildError(
                f"functions.{function.name}: --debug works for functions with a folder of code; container images "
                "have a debugger of their own, or none"
            )
        wanted = ImageBuild(function, release.number, context.folder, context.buckets, self.aws, self.traces(function))
        with self.spare_own_programs():
            version = await asyncio.to_thread(self.images.build, wanted, on_line=progress)
        if last is not None and replace(version, generation=last.generation) == last:
            return last
        return replace(version, generation=next(self._generations))

    async def _places(self, function: Function, code: Path, layers: Sequence[Path]) -> tuple[Places | None, str]:
        """Return what the function's processes see at Lambda's paths, or None and the reason.

        If there are several layers, their files are merged into one package.
        """
        is_node = function.runtime in NODE_RUNTIMES
        places = Places(str(code), NODE_FOLDER if is_node else RUNTIME_FOLDER, layers[0] if layers else None)
        why = self.why_real(function, places, ())
        if why is not None:
            return None, why
        if len(layers) > 1:
            try:
                places = replace(places, layers=await asyncio.to_thread(self._merged, layers))
            except (OSError, StoreError) as error:
                return None, f"the layers could not be merged: {error}"
        return places, ""

    def _merged(self, layers: Sequence[Path]) -> Path:
        return self._packages.publish_made(lambda folder: merge(layers, folder)).path

    async def _executable(
        self,
        function: Function,
        interpreter: Interpreter | None,
        release: Release,
        package: Path,
        places: Places | None,
        folder: Path,
    ) -> _Executable:
        """Return what the function's processes execute, at the paths that they see.

        Raises:
            EnvironmentBuildError: there is no working program, or the wrapper script cannot be executed.
        """
        layers = release.layers
        if places is not None:
            layers = () if places.layers is None else (places.layers,)
        roots = (package, *layers)
        if interpreter is None:
            executable = await self._own_program(function, roots, folder)
        else:
            executable = self._python(function, interpreter, roots)
        return executable if places is None else executable.seen(places)

    async def _interpreter(self, function: Function, folder: Path, progress: Progress) -> Interpreter:
        """Return a Python function's interpreter. If it has requirements, that of the virtual environment with them.

        Raises:
            EnvironmentBuildError: there is no working interpreter, or the requirements cannot be installed.
        """
        wanted = python_of(function, self.runtimes)
        with self.spare_own_programs():
            interpreter = await self._found(wanted, folder)
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
                    function=function.name,
                )
            except EnvironmentBuildError as error:
                raise EnvironmentBuildError(f"functions.{function.name}: {error.message}") from error
        return Interpreter(path, interpreter.version)

    async def _found(self, wanted: str | None, folder: Path) -> Interpreter:
        """Return the interpreter that a ``python`` option names. Functions built within a few seconds share the search.

        Raises:
            EnvironmentBuildError: there is no working interpreter.
        """
        key, now_s = (wanted, folder), time.monotonic()
        last = self._searches.get(key)
        if last is None or (last.task.done() and (now_s > last.until_s or _has_failed(last.task))):
            # The search is a task, so that it continues for other builds if one build is cancelled.
            task = asyncio.get_running_loop().create_task(self._search(wanted, folder))
            # If all builds are cancelled, nobody reads the task's error. asyncio would report that, so it is read here.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            last = self._searches[key] = _Search(task, now_s + _SEARCH_VALID_S)
        return await asyncio.shield(last.task)

    async def _search(self, wanted: str | None, folder: Path) -> Interpreter:
        with self.spare_own_programs():
            return await asyncio.to_thread(find_interpreter, wanted, folder=folder, environ=self._own)

    async def _own_program(self, function: Function, roots: tuple[Path, ...], folder: Path) -> _Executable:
        """Return what is executed for a function that runs Node or a program in its own code.

        Raises:
            EnvironmentBuildError: there is no working program.
        """
        with self.spare_own_programs():
            program = await asyncio.to_thread(
                find_program, function, roots=roots, runtimes=self.runtimes, folder=folder, environ=self._own
            )
        return _Executable(program.path, "", program)

    def _python(self, function: Function, interpreter: Interpreter, roots: tuple[Path, ...]) -> _Executable:
        """Return what is executed for a Python function.

        Raises:
            EnvironmentBuildError: the wrapper script that the function names cannot be executed.
        """
        version_text = sys.intern(".".join(map(str, interpreter.version)))  # many versions share it
        if WRAPPER not in function.environment:
            return _Executable(interpreter.path, version_text)
        wrapper = find_wrapper(function, roots=roots, environ=self._own)
        extensions = extensions_in(roots)
        if not extensions:
            return _Executable(interpreter.path, version_text, wrapper=wrapper)
        if function.most_in_environment > 1 or function.batch is not None:
            option = "concurrency" if function.batch is None else "batch"
            raise EnvironmentBuildError(
                f"functions.{function.name}: the function has a wrapper script and extensions, so its environments use "
                f"the Runtime API, which passes on one event at a time; remove the option {option}, or the extensions"
            )
        # A wrapper script can let an extension answer invocations instead of the handler, and extensions use the
        # Runtime API. So thawd's Python runtime is run as a client of that API here.
        argv = (*wrapper, *api_command(interpreter.path))
        name = f"python{interpreter.version[0]}.{interpreter.version[1]}"
        program = Program(name, argv, f"python:{version_text}", snap_start=False, extensions=extensions)
        return _Executable(program.path, version_text, program, wrapper)

    async def resolve_image(self, reference: str, *, folder: Path) -> str:
        """Return the digest of a container image, which is then in the store of images, and kept until `clean`.

        Raises:
            ImageError: there is no such image (HTTP 400).
        """
        with self.spare_own_programs():
            return await asyncio.to_thread(self.images.digest_of, reference, folder=folder)

    async def check_runtime(self, function: Function, *, folder: Path) -> None:
        """Check that a function's interpreter is installed and works. A program in the function's code is not checked.

        Raises:
            EnvironmentBuildError: the interpreter is not installed, or does not work.
        """
        if function.image is not None:
            return
        with self.spare_own_programs():
            if runs_a_program(function):
                runtimes = self.runtimes
                await asyncio.to_thread(check_program, function, runtimes=runtimes, folder=folder, environ=self._own)
            else:
                python = python_of(function, self.runtimes)
                await asyncio.to_thread(find_interpreter, python, folder=folder, environ=self._own)

    def forget_checks(self) -> None:
        """Have the next builds check packages and search for interpreters again: both may have changed on the disk."""
        self._packages.forget_checks()
        self._searches.clear()

    def clean(self, in_use: Collection[Version], *, keep: Callable[[], set[str]] = set) -> None:
        """Remove packages that no version uses, and virtual environments that no version has used for a week.

        Blocks. Must not be called during a build.

        Args:
            in_use: versions that need their code and virtual environment.
            keep: returns the names of other packages to keep; called again for each package.
        """
        used = {version.task_root.name for version in in_use}
        layers = (version.places.layers for version in in_use if version.places is not None)
        used |= {folder.name for folder in layers if folder is not None}
        used |= {version.image_digest.partition(":")[2] for version in in_use}
        self.images.release(used | keep())
        self._packages.remove_except(lambda name: name in used or name in keep())
        pythons = [version.python for version in in_use]
        environments = {python.parent.parent.name for python in pythons if python.is_relative_to(self._environments)}
        remove_unused(self._environments, environments, unused_s=_ENVIRONMENT_UNUSED_S)
