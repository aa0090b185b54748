"""Package bases: bases that have also imported the packages with which a handler's module begins.

If the code of such a handler is changed, publishing it thaws the package base instead of importing the packages again.
All functions that begin with the same imports, and have the same interpreter and variables, share the packages' pages
in memory and on the disk.

A package base is used only if init over it is the same as init without it:
- only the imports before any other statement of the module are done in advance (`leading_imports`);
- the packages look at nothing that differs between the functions on the base: the current folder, ``sys.argv``, the
  variables that contain the function's name, and so on. A separate process finds that out (`thawd.runtime
  .package_base`);
- the function's own folder contains nothing that the packages could import;
- after the first init over the base, the state of the process (modules and their files, search path, finders,
  variables) is that of a process that has run the function's whole init without packages from a base.

Otherwise the version has a base without packages, and its status says why. If the states differed, all later versions
of the function have a base without packages, too, until the server ends.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from thawd.environments.init_phase import InitError
from thawd.environments.starts.bases import (
    Base,
    Bases,
    NoBaseError,
    NotMadeError,
    SharedBases,
    difference,
    key_of_base,
    startup_variables,
    unprimed,
)
from thawd.environments.starts.engine_files import Engine
from thawd.environments.starts.leading_imports import leading_imports
from thawd.environments.starts.template import Template
from thawd.environments.starts.thaw_fork_cold import Starter
from thawd.environments.version import Version
from thawd.snapshot.store.images import SnapshotStore
from thawd.wire import frames

# Variables of the platform that have the same value in all functions on a package base; its key contains the values.
_SHARED = (
    "AWS_DEFAULT_REGION",
    "AWS_EXECUTION_ENV",
    "AWS_LAMBDA_LOG_FORMAT",
    "AWS_LAMBDA_LOG_LEVEL",
    "AWS_REGION",
    "LAMBDA_RUNTIME_DIR",
)


class PackageBases:
    """Starts versions over package bases where that is safe, and otherwise over bases without packages.

    Args:
        bases: the bases without packages.
        engine: the engine that freezes and thaws.
        store: the store of images.
        starter: starts processes.
    """

    def __init__(self, bases: Bases, engine: Engine, store: SnapshotStore, starter: Starter) -> None:
        self._bases = bases
        self._engine = engine
        self._store = store
        self._starter = starter
        self._shared = SharedBases(engine, store, starter)
        self._compared: set[tuple[str, str]] = set()  # names of functions, and keys of package bases
        self._differs: dict[tuple[str, str], str] = {}

    async def start(self, version: Version, *, confined: bool) -> tuple[Template, Base, str]:
        """Run the version's init in a copy of a base. The caller then freezes this process.

        Args:
            version: the version.
            confined: whether each process of the version sees its own ``/tmp``.

        Returns:
            The process, its base, and a reason. The reason is empty unless packages should be in the base but are not.

        Raises:
            NoBaseError: the version must be published without a base.
            InitError: init failed.
            OSError: the machine could not start a process.
        """
        imports = await asyncio.to_thread(leading_imports, version)
        if not imports:
            return *await self._bases.start(version, confined=confined), ""
        key = await asyncio.to_thread(self._key, version, imports, confined=confined)
        function = (version.function.name, key)
        if function in self._differs:
            return *await self._bases.start(version, confined=confined), self._differs[function]
        if function in self._compared or await asyncio.to_thread(self._was_used, *function):
            try:
                return *await self._over_packages(version, key, imports, confined=confined), ""
            except (NoBaseError, InitError) as error:
                return *await self._bases.start(version, confined=confined), _reason(error)
        return await self._compare(version, function, imports, confined=confined)

    async def _compare(
        self, version: Version, function: tuple[str, str], imports: tuple[str, ...], *, confined: bool
    ) -> tuple[Template, Base, str]:
        """Run the version's init over a package base, and without one; choose the first if both end in one state."""
        whole = asyncio.get_running_loop().create_task(
            self._bases.start(version, confined=confined, compare=True), name="whole init"
        )
        try:
            over = await self._over_packages(version, function[1], imports, confined=confined, compare=True)
        except (NoBaseError, InitError) as error:
            return *await whole, _reason(error)
        except BaseException:
            whole.cancel()
            whole.add_done_callback(_kill)  # it may have ended already
            raise
        try:
            template, base = await whole
        except BaseException:
            over[0].kill()
            raise
        expected, found = template.ready.result().after_init, over[0].ready.result().after_init
        reason = "a process did not report its state after init" if expected is None else difference(expected, found)
        if reason is not None:
            over[0].kill()
            self._differs[function] = f"its base holds no packages: after init, {reason}"
            return template, base, self._differs[function]
        template.kill()
        self._compared.add(function)
        return *over, ""

    async def _over_packages(
        self, version: Version, key: str, imports: tuple[str, ...], *, confined: bool, compare: bool = False
    ) -> tuple[Template, Base]:
        async def get() -> Base:
            return await self._shared.get(key, lambda: self._make(key, version, imports, confined=confined))

        return await self._bases.compared(version, lambda: self._shared.start(version, get, compare=compare))

    async def _make(self, key: str, version: Version, imports: tuple[str, ...], *, confined: bool) -> Base:
        """Make a package base: let one process find out what the imports depend on, and freeze another one.

        Raises:
            NoBaseError: a base must not hold these packages.
            InitError, FreezeFailedError, ThawFailedError, ThawdError, OSError: it could not be made.
        """
        below = await self._bases.get(version, confined=confined)
        shared = shared_variables(version)
        others = {name: f"placeholder-of-{name}" for name in version.variables.keys() - shared.keys()}
        plain = unprimed(replace(version, variables={**others, **shared}))
        request = {"statements": imports, "shared": sorted(shared)}
        observed = await self._import(plain, below, "observe", request)
        head = observed.ready.result().packages
        observed.kill()
        if head is None:
            raise NotMadeError("the process that records what the packages look at ended without a report")
        if head.refused is not None:
            raise NoBaseError(head.refused)
        template = await self._import(plain, below, "packages", {**request, "missing": head.missing})
        head = template.ready.result().packages
        if head is None or head.refused is not None:
            template.kill()
            why = "the process that imports the packages ended without a report" if head is None else head.refused
            raise NoBaseError(str(why))
        return await self._shared.freeze(key, plain, template)

    async def _import(self, version: Version, below: Base, role: str, request: Mapping[str, object]) -> Template:
        copy = await self._starter.packages(version, below.thawable, role, msgspec.json.encode(request))
        self._bases.shared.check(below, copy)
        return copy

    def _key(self, version: Version, imports: tuple[str, ...], *, confined: bool) -> str:
        parts = {
            "packages over": key_of_base(version, self._engine, confined=confined),
            "imports": imports,
            "variables": sorted(shared_variables(version).items()),
            "names": sorted(version.variables),
        }
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()

    def _was_used(self, name: str, key: str) -> bool:
        """Return whether an image of the function over this base exists. Then the states have been compared."""
        found = self._store.find(key)
        if found is None:
            return False
        sidecars = (snapshot.sidecar for snapshot in self._store.snapshots() if snapshot.base == found.sha256)
        return any(sidecar is not None and sidecar.origin.function == name for sidecar in sidecars)


def shared_variables(version: Version) -> dict[str, str]:
    """Return the environment variables with which a package base of this version imports the packages.

    All functions on the base have them, with these values. Variables that differ between processes are not among them.
    """
    own = version.function.environment
    names = (name for name in (*_SHARED, *own) if name in version.variables and name not in frames.PER_ENVIRONMENT)
    return startup_variables(version) | {name: version.variables[name] for name in names}


def _kill(started: asyncio.Task[tuple[Template, Base]]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result()[0].kill()


def _reason(error: Exception) -> str:
    return f"its base holds no packages: {error}"
