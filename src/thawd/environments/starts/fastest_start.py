"""Starts execution environments in the fastest way that is possible: thawed, forked from a thawed copy, forked, cold.

When one way fails, the spawner tries the next. It counts each failure, and reports it once for each version and reason.
Whether an environment may be started at all is decided by `thawd.scheduling`.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Coroutine

from thawd.environments.environment import Environment
from thawd.environments.init_phase import InitError
from thawd.environments.sandbox.memory import MemoryLimiter
from thawd.environments.starts.arrivals import Arrivals
from thawd.environments.starts.engine_files import Engine
from thawd.environments.starts.file_listing import Exchange
from thawd.environments.starts.frozen_images import FreezeResult, Frozen
from thawd.environments.starts.image_making import Snapshots
from thawd.environments.starts.launcher import Launcher
from thawd.environments.starts.origin import Origin, Reason, first_counted
from thawd.environments.starts.template import ForkRefusedError, Template, TemplateLostError
from thawd.environments.starts.thaw_fork_cold import SpareRefusedError, Starter
from thawd.environments.starts.thawable import ThawFailedError
from thawd.environments.store_call_channel import ServiceHandler
from thawd.environments.version import Version
from thawd.errors import NoRoomError, ServiceException, ThawdError, unexpected
from thawd.snapshot.store.images import SnapshotStore
from thawd.telemetry.console import complain
from thawd.telemetry.metrics import Fallback, Metrics

# Attempts at a start if something other than thawd kills the process, for example the kernel because memory is short.
_START_TRIES = 3
# An image is discarded after this many failed thaws in a row.
_THAW_FAILURES = 3
# How often to replace an image that can no longer be thawed on this machine, before the version goes without an image.
_RENEWALS = 3
_PLATFORM_STREAM = b"thawd"
# The errors that mean that no process, thread or memory is left. Source: fork(2), pthread_create(3).
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM)


class Spawner:
    """Starts environments of any version on this machine.

    Attributes:
        on_spawned: called with an environment once its process runs, before it is ready.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        limiter: MemoryLimiter,
        services: ServiceHandler,
        metrics: Metrics,
        report: Callable[[str], None] = complain,
    ) -> None:
        self._launcher = launcher
        self.on_spawned: Callable[[Environment], None] = lambda environment: None
        self._starter = Starter(launcher, limiter=limiter, services=services, on_spawned=self._spawned)
        self._metrics = metrics
        self._report = report
        self._snapshots: Snapshots | None = None
        self._why_no_image: Reason | None = Reason('snapshots = "off"')
        self._origins: dict[tuple[str, int], Origin] = {}
        self._retired: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_crowded = False  # the last start found no process or memory left
        self._arrivals = Arrivals(self._report_once)

    def _spawned(self, environment: Environment) -> None:
        self.on_spawned(environment)

    def use_snapshots(
        self, engine: Engine, store: SnapshotStore, *, bases: bool = False, exchange: Exchange | None = None
    ) -> None:
        """Freeze versions and thaw their images; with `bases`, images are made over bases (`starts.bases`)."""
        self._snapshots = Snapshots(engine, store, self._starter, self._launcher, bases=bases, exchange=exchange)
        self._why_no_image = None

    def refuse_snapshots(self, why: str) -> None:
        """From now on, use no snapshots for new versions; their status shows `why`."""
        self._why_no_image = Reason(why)

    def origin(self, version: Version) -> Origin:
        """Return what environments of `version` are started from: an image, a template or nothing."""
        key = (version.function.name, version.generation)
        if key in self._retired:
            retired = Origin(version)
            retired.retire()  # the version's template and image are no longer used, so any further start is cold
            return retired
        if key not in self._origins:
            self._origins[key] = Origin(version, why_no_image=self._why_no_image)
        return self._origins[key]

    async def prepare(self, version: Version) -> None:
        """Run the function's init once and make the image or the template that environments are started from.

        Raises:
            InitError: init or a snapshot hook failed.
            ServiceException: the machine could not start a process.
        """
        origin = self.origin(version)
        for left in reversed(range(_START_TRIES)):
            try:
                await self._ensure_image(origin, checked=False)
                if origin.frozen is None:
                    await self._template(origin)
            except InitError as error:
                if not error.from_outside or not left:
                    raise
            except OSError as error:
                raise ServiceException(f"the template could not be started: {error}") from error
            else:
                return

    def retire(self, version: Version, *, for_good: bool = False) -> None:
        """End the version's template and stop using its image; its environments keep running.

        Args:
            version: the version.
            for_good: whether the version no longer exists, so that its image is removed. If False, the image stays in
                the store for the next server.
        """
        key = (version.function.name, version.generation)
        origin = self._origins.pop(key, None)
        self._retired.add(key)
        if origin is None:
            return
        origin.retire()
        origin.superseded = for_good
        for task in (origin.starting, origin.freezing):
            if task is not None:
                task.cancel()
        self._release_sources(origin)

    def _release_sources(self, origin: Origin) -> None:
        """End the template of a retired origin, and release or remove its image."""
        if origin.template is not None:
            origin.template.kill()
        frozen, origin.frozen = origin.frozen, None
        if frozen is not None:
            assert self._snapshots is not None
            release = self._snapshots.supersede if origin.superseded else self._snapshots.release
            self._in_background(release(frozen))

    async def park(self, version: Version) -> Environment | None:
        """Start a spare of `version`; None if the version cannot be thawed now or cannot have spares.

        Raises:
            OSError: the machine could not start a process.
        """
        origin = self.origin(version)
        frozen = origin.frozen
        if frozen is None or frozen.unchecked or origin.spare_refused is not None or origin.renewing:
            return None
        try:
            return await self._starter.park(version, frozen.thawable)
        except SpareRefusedError as error:
            origin.spare_refused = str(error)
        except ThawFailedError as error:
            self._thaw_failed(origin, frozen, error)
        return None

    async def start(
        self, version: Version, *, provisioned: bool = False, spare: Environment | None = None
    ) -> Environment:
        """Start one environment and wait until it can serve.

        Args:
            version: the version that it runs.
            provisioned: whether the environment is kept, however long it is idle.
            spare: a spare of the version, which becomes the environment if its process still lives; None: no spare.

        Raises:
            InitError: the function's init or an after-restore hook failed.
            NoRoomError: there is no process or memory left (500).
            ServiceException: the machine could not start a process (500).
        """
        started_s = time.monotonic()
        origin = self.origin(version)
        if self._is_crowded:
            self._launcher.sweep()  # frees the process ids of processes that have ended since the last attempt
        for left in reversed(range(_START_TRIES)):
            try:
                environment = await self._resume(spare, started_s=started_s)
                spare = None
                if environment is None:
                    environment = await self._start_fastest(origin, provisioned=provisioned, started_s=started_s)
            except InitError as error:
                if not error.from_outside or not left:
                    self._metrics.function(version.function.name).init_failures += 1
                    raise
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._is_crowded = True
                    self._launcher.sweep()  # dead processes that are not reaped count towards the limit too
                    raise NoRoomError(f"an execution environment could not be started: {error}") from error
                raise ServiceException(f"an execution environment could not be started: {error}") from error
            else:
                self._is_crowded = False
                self._metrics.function(version.function.name).record_start(environment.kind, environment.init_ms)
                self._count_alive(origin, environment)
                return environment
        raise AssertionError("the last attempt returns or raises")

    async def _resume(self, spare: Environment | None, *, started_s: float) -> Environment | None:
        """Make `spare` an environment; None if there is none, or its process has ended.

        Raises:
            InitError: an after-restore hook failed.
        """
        if spare is None or spare.dying:
            return None
        try:
            return await self._starter.resume(spare, started_s=started_s)
        except InitError as error:
            if error.by_function:
                raise
            return None

    async def _start_fastest(self, origin: Origin, *, provisioned: bool, started_s: float) -> Environment:
        """Thaw an environment, else fork it, else start it cold. If it is not thawed, count the reason.

        Raises:
            InitError: the function's init or an after-restore hook failed.
            OSError: the machine could not start a process.
        """
        version = origin.version
        if not origin.renewing:
            await self._ensure_image(origin)
        obstacle = origin.why_no_image
        # While an image is being replaced, `origin.frozen` can be an image that was found but is not checked yet.
        if origin.frozen is not None and not origin.frozen.unchecked:
            try:
                return await self._thaw(origin, origin.frozen, provisioned=provisioned, started_s=started_s)
            except ThawFailedError as error:
                obstacle = Reason(str(error), Fallback.THAW_FAILED)
        # While an image exists or is being made, start no template: it would run init again, and that takes as long as
        # a cold start.
        template = origin.live_template() if origin.why_no_image is None else await self._template(origin)
        if template is not None:
            try:
                environment = await self._starter.fork(version, template, provisioned=provisioned, started_s=started_s)
            except TemplateLostError as error:
                self._report_once(origin, f"started cold: {error}")
                obstacle = first_counted(obstacle, Reason(str(error), Fallback.TEMPLATE_LOST))
            else:
                self._count_fallback(origin, obstacle)
                return environment
        self._count_fallback(origin, first_counted(obstacle, origin.why_no_fork))
        return await self._starter.cold(version, provisioned=provisioned, started_s=started_s)

    async def _thaw(self, origin: Origin, frozen: Frozen, *, provisioned: bool, started_s: float) -> Environment:
        """Thaw one environment, or, in a burst, fork it from a thawed copy.

        Raises:
            InitError: an after-restore hook failed.
            ThawFailedError: the copy did not start. `_thaw_failed` has then decided what happens to the image.
        """
        version = origin.version
        origin.thawing += 1
        try:
            template = await self._template_for_burst(origin, frozen)
            if template is not None:
                try:
                    return await self._starter.fork(version, template, provisioned=provisioned, started_s=started_s)
                except TemplateLostError:
                    pass  # thaw instead, which takes hardly longer than a fork
            environment = await self._starter.thaw(
                version, frozen.thawable, provisioned=provisioned, started_s=started_s
            )
        except ThawFailedError as error:
            self._thaw_failed(origin, frozen, error)
            raise
        finally:
            origin.thawing -= 1
        frozen.failures = 0
        return environment

    async def _template_for_burst(self, origin: Origin, frozen: Frozen) -> Template | None:
        """Return a thawed copy to fork from while several environments start; None: each must be thawed instead."""
        if not frozen.is_forked_in_bursts(thawing=origin.thawing):
            return None
        if (template := origin.live_template()) is not None:
            return template
        try:
            return await self._shared_start(
                origin, lambda: self._starter.thaw_template(origin.version, frozen.thawable)
            )
        except ThawFailedError:
            return None  # the caller thaws instead, and that thaw reports the error

    def _thaw_failed(self, origin: Origin, frozen: Frozen, error: ThawFailedError) -> None:
        """Decide whether to keep, replace or discard an image after one of its thaws failed."""
        self._report_once(origin, f"a thaw failed: {error}")
        if origin.frozen is not frozen or error.from_outside:
            return
        frozen.failures += 1
        if not error.cannot and frozen.failures < _THAW_FAILURES:
            return
        assert self._snapshots is not None
        origin.frozen = None
        origin.renewals += 1
        if error.cannot and origin.renewals <= _RENEWALS:
            # For example, a library was updated: an image made with the new library can be thawed.
            origin.renewing = True
            self._in_background(self._renew(origin, frozen))
        else:
            self._in_background(self._snapshots.discard(frozen))
            origin.why_no_image = Reason(f"{frozen.failures} thaws failed, the last one: {error}", Fallback.THAW_FAILED)
            self._report_once(origin, f"no longer thawed: {origin.why_no_image.text}")

    async def _renew(self, origin: Origin, frozen: Frozen) -> None:
        """Replace the image `frozen` with a new one; meanwhile environments start in another way."""
        assert self._snapshots is not None
        try:
            await self._snapshots.discard(frozen)
            await self._ensure_image(origin)
        except (InitError, OSError) as error:
            self._report_once(origin, f"its snapshot could not be replaced: {error}")
        finally:
            origin.renewing = False

    async def _ensure_image(self, origin: Origin, *, checked: bool = True) -> None:
        """Find or make the version's image, and set in `origin` the image or the reason for having none.

        Simultaneous calls share one attempt.

        Args:
            origin: what the version's environments are started from.
            checked: whether the image must be checked, because an environment is to be thawed from it now.

        Raises:
            InitError: init or a snapshot hook failed.
            OSError: the machine could not start a process.
        """
        while origin.why_no_image is None and (origin.frozen is None or (checked and origin.frozen.unchecked)):
            if origin.freezing is None or origin.freezing.done():  # done: all who waited for it were cancelled
                origin.freezing = asyncio.get_running_loop().create_task(self._find_or_make(origin))
                # Retrieve the task's exception in any case: asyncio logs an exception that nobody retrieves.
                origin.freezing.add_done_callback(lambda task: task.cancelled() or task.exception())
                self._follow(origin.freezing)
            task = origin.freezing
            try:
                await asyncio.shield(task)
            finally:
                if task.done() and origin.freezing is task:
                    origin.freezing = None

    async def _find_or_make(self, origin: Origin) -> None:
        """Find the version's image in the store, else make one, and set in `origin` the image or why there is none.

        If `origin` has an image that is not checked yet, check it, and replace it if it must not be used.

        After an unexpected error the version has no image, but its environments still start in another way.

        Raises:
            InitError: init or a snapshot hook failed.
            OSError: the machine could not start a process.
        """
        snapshots, version = self._snapshots, origin.version
        assert snapshots is not None
        try:
            if origin.frozen is None:
                origin.frozen = await snapshots.find(version)
                self._arrivals.follow(snapshots, origin)
            else:
                await self._check(origin, origin.frozen)
        except (InitError, ThawdError, OSError):
            raise
        except Exception as error:
            self._report_once(origin, f"its snapshot could not be read and will be replaced: {unexpected(error)}")
        if origin.frozen is None:
            try:
                made = await snapshots.make(version)
            except (InitError, ThawdError, OSError):
                raise
            except Exception as error:
                made = FreezeResult(refused=unexpected(error))
            origin.frozen = made.frozen
            if made.frozen is None:
                if origin.template is not None:
                    origin.template.kill()  # this template is a thawed copy of the previous image
                origin.template = made.template
            if made.frozen is None and not origin.retired:
                origin.why_no_image = Reason(made.refused, Fallback.SNAPSHOT_REFUSED)
                self._report_once(origin, f"not thawed: {made.refused}")
                if made.fork_refused is not None:
                    self._refuse_fork(origin, made.fork_refused)
        if origin.retired:
            self._release_sources(origin)

    async def _check(self, origin: Origin, frozen: Frozen) -> None:
        """Check an image that was found when the version was published; discard it if it must not be used.

        Raises:
            OSError: the machine could not start a process. `origin` then has no image, so the next start looks for it
                in the store again.
        """
        assert self._snapshots is not None
        try:
            is_usable = await self._snapshots.check(origin.version, frozen)
        except BaseException:
            if origin.frozen is frozen:
                origin.frozen = None
                self._in_background(self._snapshots.release(frozen))
            raise
        # If the version was retired in the meantime, `_release_sources` has released the image.
        if not is_usable and origin.frozen is frozen:
            origin.frozen = None
            await self._snapshots.discard(frozen)
            origin.frozen = await self._snapshots.find_again(origin.version)
            self._arrivals.follow(self._snapshots, origin)

    async def _template(self, origin: Origin) -> Template | None:
        """Return the version's template, which is started if necessary; None when the version cannot be forked now.

        Raises:
            InitError: init failed.
            OSError: the machine could not start a process.
        """
        if origin.why_no_fork is not None:
            return None
        if (template := origin.live_template()) is not None:
            return template
        if origin.starting is None and not origin.may_start_template():
            self._report_once(origin, "started cold: its template repeatedly ended soon after its start")
            return None
        try:
            return await self._shared_start(origin, lambda: self._starter.template(origin.version))
        except ForkRefusedError as error:
            self._refuse_fork(origin, str(error))
            return None

    async def _shared_start(self, origin: Origin, start: Callable[[], Coroutine[None, None, Template]]) -> Template:
        """Start a template, or wait for the one that is already starting."""
        if origin.starting is None:
            origin.starting = asyncio.get_running_loop().create_task(start())
            origin.starting.add_done_callback(origin.template_started)
        return await asyncio.shield(origin.starting)

    def _refuse_fork(self, origin: Origin, why: str) -> None:
        if origin.why_no_fork is None:
            origin.why_no_fork = Reason(why, Fallback.FORK_REFUSED)
            text = f"not forked: {why}; environments are started cold"
            thaw = "" if origin.why_no_image is None else f"not thawed: {origin.why_no_image.text}"
            # Also say why the version is not thawed, unless that was reported: 'not forked' alone explains only half.
            self._report_once(origin, text if not thaw or thaw in origin.reported else f"{thaw}; {text}")

    def _count_alive(self, origin: Origin, environment: Environment) -> None:
        """Count the version's live environments. When the last one ends, end the version's thawed template, too.

        Without environments, the template would only occupy memory, and a new one can be thawed quickly.
        """
        assert environment.child is not None
        origin.environments += 1

        def ended(_: object) -> None:
            origin.environments -= 1
            if not origin.environments and not origin.thawing and origin.frozen is not None:
                if origin.template is not None:
                    origin.template.kill()
                origin.template = None

        environment.child.ended.add_done_callback(ended)

    def _count_fallback(self, origin: Origin, obstacle: Reason | None) -> None:
        """Count a start that was slower because of `obstacle`, if that obstacle has a counter."""
        if obstacle is not None and obstacle.kind is not None:
            self._metrics.function(origin.version.function.name).count_fallback(obstacle.kind)

    def _report_once(self, origin: Origin, text: str) -> None:
        """Report an obstacle to fast starts, once for each version and text."""
        if origin.retired or text in origin.reported:
            return
        origin.reported += (text,)
        name = origin.version.function.name
        self._report(f"thawd: {name}: {text}")
        self._launcher.log(origin.version.function).write(_PLATFORM_STREAM, text.encode())

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        self._follow(asyncio.get_running_loop().create_task(work))

    def _follow(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def at_rest(self, patience_s: float) -> None:
        """Wait until no image is being made or removed, at most `patience_s` seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=patience_s)

    async def evict(self) -> None:
        """Remove images that are too old, or for which the store has no room. Raises StoreError if that fails."""
        if self._snapshots is not None:
            await self._snapshots.evict()
