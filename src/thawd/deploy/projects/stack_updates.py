"""Deploys a project's stacks when the server starts, and again after each change of the project's files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from watchfiles import Change, DefaultFilter, awatch

from thawd.config import process_environment
from thawd.deploy.projects.artifacts import BuildTools
from thawd.deploy.projects.deployment import REST_API, Deployed, Deployer
from thawd.deploy.projects.npm_packages import NpmPackages
from thawd.deploy.projects.project_images import ProjectImages
from thawd.deploy.projects.reading import read_project
from thawd.deploy.projects.stacks import ProjectError, ProjectOptions
from thawd.errors import EnvironmentBuildError, ImageError
from thawd.publishing.interpreters import find_interpreter, prepare_environment
from thawd.publishing.uv import find_uv

_DEBOUNCE_MS, _STEP_MS = 400, 50
_TRY_AGAIN_S = 1.0
# The stack engine itself does the work of some functions that CDK adds.
_STAND_IN = "thawd-does-"
_API = "AWS::ApiGatewayV2::Api"


def _later(content: bytes) -> None:
    """Leave a zip file to the requests that need it."""


class ServedProject:
    """A project that a server serves.

    Args:
        path: the project's file.
        options: the options that the user gave.
        data: the server's data folder; virtual environments are made there.
        runtimes: interpreters, as paths or commands, by Lambda's runtime names.
        say: prints a line of information.
        complain: prints a line about a failure.

    Attributes:
        spare_own_programs: returns the context in which thawd runs processes of its own, for example installers. The
            server sets it.
        begin_unpacking: called with each zip file of code as soon as it is made, so that the server has unpacked it
            when the stack's functions and layers need it. The server sets it.
    """

    def __init__(
        self,
        path: Path,
        options: ProjectOptions,
        *,
        data: Path,
        runtimes: Mapping[str, str],
        say: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._path, self._options, self._data = path, options, data
        self._runtimes = runtimes
        self._say, self._complain = say, complain
        self._sources: set[Path] = {path}
        self._url = ""
        self._deployer: Deployer | None = None
        self._reported: set[str] = set()
        self._alone = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.spare_own_programs: Callable[[], AbstractContextManager[None]] = nullcontext
        self.begin_unpacking: Callable[[bytes], object] = _later

    def connect(self, url: str, keys: Mapping[str, str]) -> None:
        """Deploy to a server from now on.

        Args:
            url: URL of the server. It need not answer yet.
            keys: its access keys.
        """
        images = ProjectImages(self._data, say=self._say)
        npm = NpmPackages(self._data.resolve() / "environments", process_environment(), report=self._say_installed)
        tools = BuildTools(
            self._packages,
            images.build,
            npm=npm,
            layers=self._options.layers,
            take_zip=self._take_zip,
        )
        self._url = url
        self._deployer = Deployer(url, keys, tools=tools, images=images, note=self._say_note)

    async def prepare(self) -> None:
        """Do what the first deployment needs and what is possible before the server answers."""
        assert self._deployer is not None
        await asyncio.to_thread(self._deployer.make_clients)

    async def deploy(self) -> None:
        """Read the project and make its stacks. A failure is reported, and the server continues."""
        self._loop = asyncio.get_running_loop()
        async with self._alone:
            assert self._deployer is not None
            try:
                project = await asyncio.to_thread(read_project, self._path, self._options)
                self._sources |= project.sources
                with self.spare_own_programs():  # installers, and commands of Dockerfiles
                    stacks = await self._deployer.deploy(project)
                for deployed in stacks:
                    self._sources |= deployed.sources
                    self._report(deployed, self._url)
            except (ProjectError, EnvironmentBuildError, ImageError, OSError) as error:
                self._complain(f"thawd: {error}")

    async def watch(self) -> None:
        """Deploy after each change of the project's files, until cancelled.

        thawd watches the files before it begins to deploy them, so that it misses no change.
        """
        watched: set[Path] = set()
        while True:
            try:
                watched = await self._deploy_and_watch(watched)
            except* OSError as group:  # a folder is missing, or the machine has no inotify watches left
                reason = group.exceptions[0]
                self._complain(f"thawd: the project cannot be watched for changes: {reason}; thawd tries again")
                await asyncio.sleep(_TRY_AGAIN_S)

    async def _deploy_and_watch(self, watched: set[Path]) -> set[Path]:
        """Deploy, and return when a file has changed, or when the deployment used files that are not watched.

        Args:
            watched: files and folders that were watched last time.

        Returns:
            Files and folders to watch.
        """
        sources = {source for source in self._sources if source.parent.is_dir()}
        changed = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._until_changed(sources, changed))
            await asyncio.sleep(0)  # lets the task set up its watch
            await self.deploy()
            if self._sources <= watched:
                await changed.wait()
            watching.cancel()
        return set(self._sources)

    async def _until_changed(self, sources: set[Path], changed: asyncio.Event) -> None:
        files = {source for source in sources if not source.is_dir()}
        folders = sources - files
        places = {*folders, *(file.parent for file in files)}
        concerns = _Concerns(files, folders, ignored=self._data.resolve())
        async for _ in awatch(
            *places, watch_filter=concerns, debounce=_DEBOUNCE_MS, step=_STEP_MS, ignore_permission_denied=True
        ):
            changed.set()

    def _take_zip(self, content: bytes) -> None:
        self.begin_unpacking(content)

    def _packages(self, requirements: Path, runtime: str, architecture: str | None) -> Path:
        """Return the folder with the packages of a requirements file. Called in a thread; blocks until it is made.

        They are for this machine, whose architecture all functions here have.
        """
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._installed(requirements, runtime), self._loop).result()

    async def _installed(self, requirements: Path, runtime: str) -> Path:
        environ = process_environment()
        interpreter = await asyncio.to_thread(
            find_interpreter,
            self._runtimes.get(runtime, runtime.removeprefix("python")),
            folder=self._path.parent,
            environ=environ,
        )
        progress: list[str] = []
        begun_s = time.monotonic()
        python = await prepare_environment(
            requirements,
            interpreter,
            self._data / "environments",
            on_line=progress.append,
            environ=environ,
            uv=find_uv(),
        )
        if progress:  # it was not there yet
            self._say_installed(requirements, time.monotonic() - begun_s)
        version = ".".join(map(str, interpreter.version[:2]))
        return python.parent.parent / "lib" / f"python{version}" / "site-packages"

    def _say_installed(self, manifest: Path, took_s: float) -> None:
        folder = self._path.parent.resolve()
        name = manifest.relative_to(folder) if manifest.is_relative_to(folder) else manifest
        self._say(f"  packages  {name!s:<20} installed in {took_s:.1f} s")

    def _say_note(self, line: str) -> None:
        self._complain(f"thawd: {line}")

    def _report(self, deployed: Deployed, url: str) -> None:
        """Print a stack's functions, the addresses of its APIs, and its outputs."""
        if not deployed.has_changed and deployed.name in self._reported:
            return
        self._reported.add(deployed.name)
        self._say(f"  stack     {deployed.name:<20} {'complete' if deployed.has_changed else 'unchanged'}")
        for (kind, logical_id), physical_id in sorted(deployed.physical_ids.items()):
            if kind == "AWS::Lambda::Function" and not physical_id.startswith(_STAND_IN):
                self._say(f"  function  {logical_id:<20} {physical_id}")
            elif kind == _API:
                self._say(f"  api       {logical_id:<20} {url}/_aws/execute-api/{physical_id}/")
            elif kind == REST_API:
                for stage in deployed.stages.get(physical_id, ()) or ["STAGE"]:
                    self._say(f"  api       {logical_id:<20} {url}/_aws/execute-api/{physical_id}/{stage}/")
        for name, value in deployed.outputs.items():
            self._say(f"  output    {name:<20} {value}")


class _Concerns(DefaultFilter):
    """Selects the changes of a project's files, by path, because an editor may replace a file by a new one.

    Args:
        files: the project's files.
        folders: folders of code.
        ignored: the server's data folder.
    """

    def __init__(self, files: set[Path], folders: set[Path], *, ignored: Path) -> None:
        super().__init__(ignore_paths=[ignored])
        self._files, self._folders = files, folders

    def __call__(self, change: Change, path: str) -> bool:
        """See `watchfiles.BaseFilter`."""
        place = Path(path)
        within = any(place.is_relative_to(folder) for folder in self._folders)
        return (place in self._files or within) and super().__call__(change, path)
