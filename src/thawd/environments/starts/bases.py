"""Bases: images of an interpreter with thawd's runtime, before anything of a function has been loaded.

To publish a version over a base means: the base is thawed, and the copy gets the version's environment variables, loads
the handler and is frozen. The new image stores only what differs from the base. All versions with one interpreter and
the same startup variables share a base, and so they share the base's pages in memory and on the disk.

Guarantees:
- a base holds no code of a function, no variable that a function sets, and no file in its temporary folder;
- a version is published over a base only if the copy is in the same state before init as an interpreter that was
  started without a base: the same modules from the same files, finders, flags, encodings and variables;
- if a file from which a base was made has changed, the base is not used again;
- if a version has no base, the reason is in its status.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from thawd import __version__
from thawd.environments import boto3_for_functions
from thawd.environments.init_phase import InitError
from thawd.environments.sandbox.memory import private_bytes
from thawd.environments.starts.engine_files import Engine
from thawd.environments.starts.template import FreezeFailedError, Template
from thawd.environments.starts.thaw_fork_cold import Starter
from thawd.environments.starts.thawable import Thawable, ThawFailedError
from thawd.environments.version import GUARDED, Version
from thawd.errors import ThawdError
from thawd.snapshot.inspect import reader
from thawd.snapshot.store.image_facts import ImageOrigin
from thawd.snapshot.store.images import Draft, SnapshotLease, SnapshotStore

NAME = "(base)"
"""The name under which the store lists bases, in place of a function's name. No function can have this name."""

# A base is made only if the disk has room for the memory of its process, and this much more.
_ROOM_BYTES = 128 << 20
# The variables that a base starts with, unless the function sets them itself. All come from the platform.
_STARTUP = (
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "ORT_DISABLE_TELEMETRY",
    "PATH",
    "PYTHONPATH",
    boto3_for_functions.VARIABLE,
    "TZ",
)
# Beginnings of the names of variables that the interpreter, the dynamic loader or the C library reads when a process
# starts. A copy of a base would get them too late, so a function that sets one is published without a base. Source:
# python(1), ld.so(8), mallopt(3), setlocale(3), tzset(3).
_READ_AT_START = (
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "HOME",
    "LANG",
    "LC_",
    "LD_",
    "LOCPATH",
    "MALLOC_",
    "NLSPATH",
    "OPENSSL_",
    "PYTHON",
    "TMPDIR",
    "TZ",
)


class NoBaseError(Exception):
    """The version is published without a base; the message says why."""


class _StaleBaseError(NoBaseError):
    """The base must not be used any more; another attempt makes a new one."""


class NotMadeError(NoBaseError):
    """The base could not be made; a later attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base in use.

    Attributes:
        key: digest of everything that determines the base's contents.
        thawable: its image, and the program that thaws it.
        lease: the lease of the image; until it is released, the store does not remove the image.
    """

    key: str
    thawable: Thawable
    lease: SnapshotLease


class Bases:
    """Finds or makes bases. To publish a version, thaws a copy of its base, in which the version's init runs.

    Args:
        engine: the engine that freezes and thaws.
        store: the store of images.
        starter: starts processes.

    Attributes:
        shared: the bases.
    """

    def __init__(self, engine: Engine, store: SnapshotStore, starter: Starter) -> None:
        self._engine = engine
        self._starter = starter
        self.shared = SharedBases(engine, store, starter)

    async def get(self, version: Version, *, confined: bool) -> Base:
        """Return the base of the version's interpreter. It is made if there is none.

        Raises:
            NoBaseError: there is none and none can be made.
            OSError: the machine could not start a process.
        """
        if (reason := refusal(version)) is not None:
            raise NoBaseError(reason)
        key = await asyncio.to_thread(self._key, version, confined=confined)
        return await self.shared.get(key, lambda: self._make(key, version))

    async def start(self, version: Version, *, confined: bool, compare: bool = False) -> tuple[Template, Base]:
        """Thaw a copy of a base and let it run the version's init. The caller then freezes this process.

        Args:
            version: the version.
            confined: whether each process of the version sees its own ``/tmp``.
            compare: whether the process reports its state after init.

        Raises:
            NoBaseError: the version must be published without a base.
            InitError: init failed.
            OSError: the machine could not start a process.
        """
        if (reason := refusal(version)) is not None:
            raise NoBaseError(reason)
        return await self.compared(
            version, lambda: self.shared.start(version, lambda: self.get(version, confined=confined), compare=compare)
        )

    async def compared(
        self, version: Version, start: Callable[[], Awaitable[tuple[Template, Base]]]
    ) -> tuple[Template, Base]:
        """Start a version over a base, and compare its state before init with that of an interpreter without a base.

        Args:
            version: the version.
            start: starts the version over a base.

        Raises:
            NoBaseError: the states differ, or the version must be published without a base for another reason.
            InitError: init failed.
            OSError: the machine could not start a process.
        """
        without = asyncio.get_running_loop().create_task(self._start_without_base(version))
        try:
            template, base = await start()
        except BaseException:
            without.cancel()
            raise
        try:
            expected = await without
        except BaseException:
            template.kill()
            raise
        found = template.ready.result().before_init
        reason = expected if isinstance(expected, str) else difference(expected, found)
        if reason is not None:
            template.kill()
            raise NoBaseError(reason)
        return template, base

    async def _start_without_base(self, version: Version) -> dict[str, Any] | str:
        """Start an interpreter without a base. Return its state before init, or, as text, why there is no state."""
        try:
            bare = await self._starter.runtime(version, "bare", variables=version.variables)
        except (InitError, OSError) as error:
            return f"the interpreter could not be started for a comparison: {error}"
        bare.kill()
        return bare.ready.result().before_init or "the interpreter did not report its state"

    def _key(self, version: Version, *, confined: bool) -> str:
        return key_of_base(version, self._engine, confined=confined)

    async def _make(self, key: str, version: Version) -> Base:
        """Start the version's interpreter without any function, freeze it, and store the image as a base.

        The version's priming event and snapshot options concern its handler, which is not loaded. So the base is frozen
        without a priming event, and not at all if the interpreter has connections or listens on a fixed port.
        """
        plain = unprimed(version)
        template = await self._starter.runtime(plain, "base", variables=startup_variables(version))
        return await self.shared.freeze(key, plain, template)


class SharedBases:
    """Bases by key: each is made only once, used by all versions with its key, and dropped when it is stale.

    Args:
        engine: the engine that freezes and thaws.
        store: the store of images.
        starter: starts processes.
    """

    def __init__(self, engine: Engine, store: SnapshotStore, starter: Starter) -> None:
        self._engine = engine
        self._store = store
        self._starter = starter
        self._tasks: dict[str, asyncio.Task[Base]] = {}
        self._stale: set[str] = set()

    async def start(
        self, version: Version, get: Callable[[], Awaitable[Base]], *, compare: bool = False
    ) -> tuple[Template, Base]:
        """Thaw a copy of the base that `get` returns, and let it run the version's init.

        If the base is stale, or the one below it, it is dropped, and `get` is called once more.

        Raises:
            NoBaseError: the version must be published without this base.
            InitError: init failed.
            OSError: the machine could not start a process.
        """
        try:
            return await self._start(version, await get(), compare=compare)
        except _StaleBaseError:
            return await self._start(version, await get(), compare=compare)

    async def _start(self, version: Version, base: Base, *, compare: bool) -> tuple[Template, Base]:
        try:
            template = await self._starter.over_base(version, base.thawable, compare=compare)
        except ThawFailedError as error:
            if not error.cannot:
                raise NoBaseError(f"the version's base could not be thawed: {error}") from error
            self._forget(base)
            raise _StaleBaseError(f"the version's base cannot be thawed any more: {error}") from error
        self.check(base, template)
        head = template.ready.result()
        if head.packages is not None and head.packages.refused is not None:
            template.kill()
            raise NoBaseError(head.packages.refused)
        return template, base

    def check(self, base: Base, copy: Template) -> None:
        """If `copy`, a copy of `base`, has reported that files of the base have changed, end it and drop the base.

        Raises:
            NoBaseError: they have changed. `start` makes the base again.
        """
        changed = copy.ready.result().changed
        if changed is not None:
            copy.kill()
            self._forget(base)
            raise _StaleBaseError(f"a file from which the version's base was made has changed: {changed}")

    async def get(self, key: str, make: Callable[[], Awaitable[Base]]) -> Base:
        """Return the base with this key.

        If there is none, `make` makes it, only once even if several versions wait for it.

        Raises:
            NoBaseError: it cannot be made.
            OSError: the machine could not start a process.
        """
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.get_running_loop().create_task(self._find_or_make(key, make))
            task.add_done_callback(lambda done: self._made(key, done))
        return await asyncio.shield(task)

    def _made(self, key: str, task: asyncio.Task[Base]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        # Keep a task that ended with a refusal, because the next attempt would end in the same way. After any other
        # error, forget the task, so that the next version that needs the base tries again.
        if error is not None and type(error) is not NoBaseError and self._tasks.get(key) is task:
            del self._tasks[key]

    def _forget(self, base: Base) -> None:
        """Do not use a base again. Its image remains as long as other images refer to it."""
        sha256 = base.lease.snapshot.sha256
        # If the base is in `_stale`, this was done for another version already. The task with the base's key must then
        # stay, because it may be the one that makes the new base.
        if sha256 not in self._stale:
            self._stale.add(sha256)
            self._tasks.pop(base.key, None)
            base.lease.release()

    async def _find_or_make(self, key: str, make: Callable[[], Awaitable[Base]]) -> Base:
        try:
            found = await asyncio.to_thread(self._store.find, key)
            if found is not None and found.sha256 not in self._stale:
                lease = await asyncio.to_thread(self._store.use, found)
                return Base(key, Thawable(self._engine.program, lease.snapshot.path), lease)
            return await make()
        except (InitError, FreezeFailedError, ThawFailedError) as error:
            raise NotMadeError(f"the version's base could not be made: {error}") from error
        except ThawdError as error:
            raise NotMadeError(f"the version's base could not be made: {error.message}") from error

    async def freeze(self, key: str, version: Version, template: Template) -> Base:
        """Freeze a process, end it, and store the image as a base.

        Args:
            key: digest of everything that determines the base's contents.
            version: a version whose priming event and snapshot options are those of `unprimed`.
            template: the process. Its image is complete, even if the process is a copy of another base.

        Raises:
            NoBaseError: the process cannot be frozen as a base.
            FreezeFailedError: the process ended or took too long.
            ThawdError: the store could not take the image.
        """
        assert template.child is not None
        try:
            room_bytes = await asyncio.to_thread(private_bytes, template.child.pid) + _ROOM_BYTES
            draft = await asyncio.to_thread(self._store.begin, room_bytes=room_bytes)
            try:
                lease = await self._freeze(key, version, template, draft)
            finally:
                await asyncio.to_thread(draft.discard)
        finally:
            template.kill()
        return Base(key, Thawable(self._engine.program, lease.snapshot.path), lease)

    async def _freeze(self, key: str, version: Version, template: Template, draft: Draft) -> SnapshotLease:
        head, _ = await template.freeze(draft.image, library=self._engine.freezer)
        if head.refused is not None:
            raise NoBaseError(f"the version's base could not be frozen: {head.refused}")
        try:
            await asyncio.to_thread(reader.read, draft.image)
        except reader.ImageError as error:
            raise NoBaseError(f"the image of the version's base breaks a rule of the image format: {error}") from error
        await self._starter.look_at_disk(template)
        if template.disk is not None or template.disk_refused is not None:
            raise NoBaseError("the process of the base writes to its temporary folder")
        origin = ImageOrigin(
            function=NAME,
            version=version.python_version,
            key=key,
            python=version.python_version,
            init_ms=template.init_ms,
            freeze_ms=head.freeze_ms,
            data_bytes=head.data_bytes,
            self_test="each version tests it",
        )
        return await asyncio.to_thread(lambda: self._store.use(self._store.adopt(draft, origin)))


def unprimed(version: Version) -> Version:
    """Return the version without what concerns its handler, to freeze a base in which no handler is loaded."""
    function = msgspec.structs.replace(
        version.function, prime=None, snapshot_connections="refuse", snapshot_listeners="refuse"
    )
    return replace(version, function=function)


def refusal(version: Version) -> str | None:
    """Return why this version must not be published over a base; None when it may be."""
    if version.wrapper:
        return "the function's wrapper script starts the interpreter in its own way"
    if GUARDED in version.variables:
        return "thawd emulates AWS, which changes how the function's interpreter starts"
    if version.places is not None and version.places.layers is not None:
        return "the function has layers at /opt, whose files other functions on the base would not see"
    named = sorted(name for name in version.function.environment if name.startswith(_READ_AT_START))
    if named:
        return f"the function sets {', '.join(named)}, which a process reads only when it starts"
    return None


def startup_variables(version: Version) -> dict[str, str]:
    """Return the environment variables with which the base of this version starts."""
    set_by_function = version.function.environment
    names = (name for name in _STARTUP if name in version.variables and name not in set_by_function)
    return {name: version.variables[name] for name in names}


def key_of_base(version: Version, engine: Engine, *, confined: bool) -> str:
    """Return a digest of everything that determines the contents of a base. Reads files and blocks."""
    parts = {
        "base of thawd": __version__,
        "engine": engine.digests(),
        "python": [str(version.python), version.python_version],
        "variables": sorted(startup_variables(version).items()),
        "confined": confined,
        "real paths": version.places is None,
    }
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def difference(without: dict[str, Any], over: dict[str, Any] | None) -> str | None:
    """Compare two states before init: `without`, of a process started without a base, and `over`, of a copy of a base.

    Returns:
        What differs, as a sentence; None when the states are equal.
    """
    if over is None:
        return "the copy of the version's base did not report its state"
    for what in sorted(without.keys() | over.keys()):
        expected, found = without.get(what), over.get(what)
        if expected == found:
            continue
        detail = ""
        if isinstance(expected, dict) and isinstance(found, dict):
            both = sorted(expected.keys() | found.keys())
            names = [name for name in both if expected.get(name) != found.get(name)]
            if what == "variables":  # in hexadecimal digits, because names of variables need not be UTF-8
                names = [bytes.fromhex(name).decode(errors="replace") for name in names]
            detail = f" ({', '.join(names[:3])})"
        return f"a copy of the version's base differs in {what}{detail} from an interpreter started without the base"
    return None
