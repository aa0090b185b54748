"""Finds a version's image in the store, or freezes, tests and stores a new one.

A new image is tested before it is kept. thawd reads it by the rules of its format, thaws it once, and sends the copy
the priming event, to which it must give the same answer as the original process. Three other checks are made elsewhere:
``native/check.c`` checks an image's tables at each thaw, `thawd.snapshot.store.images` checks the owner, mode and
digest, and `thawd.runtime.changed_files` checks whether the files that init read have changed since. A version without
an image is not an error: a `FreezeResult` contains the reason, and the version is forked or started cold.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from thawd.environments.sandbox.memory import MIB, private_bytes
from thawd.environments.starts.bases import Base, Bases, NoBaseError
from thawd.environments.starts.engine_files import Engine
from thawd.environments.starts.file_listing import (
    Arrival,
    Exchange,
    are_files_unchanged,
    files_elsewhere,
    lend_list,
    list_files,
    take_from_outbox,
)
from thawd.environments.starts.frozen_images import FreezeResult, Frozen
from thawd.environments.starts.image_key import key_of
from thawd.environments.starts.launcher import Launcher
from thawd.environments.starts.package_bases import PackageBases
from thawd.environments.starts.self_test import difference, prime
from thawd.environments.starts.template import FreezeFailedError, FrozenHead, Template
from thawd.environments.starts.thaw_fork_cold import Starter
from thawd.environments.starts.thawable import Thawable, ThawFailedError
from thawd.environments.starts.touched_pages import image_ranges
from thawd.environments.version import Version
from thawd.errors import ResourceConflictException, ThawdError
from thawd.snapshot.disk.root_mounts import NATIVE, OUTBOX
from thawd.snapshot.disk.temporary_folders import DiskRefusedError, Disks, DiskSnapshot
from thawd.snapshot.inspect import reader
from thawd.snapshot.store.image_facts import ImageOrigin, Snapshot
from thawd.snapshot.store.images import Draft, SnapshotLease, SnapshotStore

# Disk space for the headers, tables and rounding of an image, in addition to the memory of the process.
_ROOM_BYTES = 64 * MIB
_NO_BASE_IN_ROOT = "the function is a container image, with an interpreter of its own"
# While an image arrives, a copy that is not given its descriptor must not find the file on the disk: it has holes.
_NO_IMAGE = Path("/dev/null/arriving")
_REMOVE_TRIES = 10
_REMOVE_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class _BaseOfImage:
    """The base that an image refers to, or why it has none. See `base` and `base_refused` of `ImageOrigin`."""

    sha256: str | None
    refused: str


class Snapshots:
    """Finds the images of versions in the store, and makes new ones."""

    def __init__(
        self,
        engine: Engine,
        store: SnapshotStore,
        starter: Starter,
        launcher: Launcher,
        *,
        bases: bool,
        exchange: Exchange | None = None,
    ) -> None:
        self._bases = PackageBases(Bases(engine, store, starter), engine, store, starter) if bases else None
        self._engine = engine
        self._store = store
        self._starter = starter
        self._launcher = launcher
        self._exchange = exchange

    async def find(self, version: Version) -> Frozen | None:
        """Return the stored image with the version's key; None if there is none. Call `check` before the first thaw.

        If the image's sidecar lacks what the frozen process reported, this call checks the image itself, with a probe.

        Raises:
            OSError: the machine could not start a process.
        """
        try:
            key = await asyncio.to_thread(self._key, version)
            stored = await asyncio.to_thread(self._store.find, key)
            lease = None if stored is None else await asyncio.to_thread(self._store.use, stored)
        except ThawdError:
            return None  # `make` will get the same error and report it
        if lease is None:
            return await self._receive(version, key)
        return await self._taken(version, lease)

    async def find_again(self, version: Version) -> Frozen | None:
        """Find an image elsewhere after this machine's was unusable: perhaps its files were only installed again."""
        return await self._receive(version, await asyncio.to_thread(self._key, version))

    async def _receive(self, version: Version, key: str) -> Frozen | None:
        """Find an image elsewhere."""
        received = False if self._exchange is None else await self._exchange.receive(version.function.name, key)
        if not isinstance(received, bool):
            return await self._taken(version, received)
        try:
            stored = await asyncio.to_thread(self._store.find, key) if received else None
            lease = None if stored is None else await asyncio.to_thread(self._store.use, stored)
        except ThawdError:
            return None
        return None if lease is None else await self._taken(version, lease)

    async def _taken(self, version: Version, lease: SnapshotLease | Arrival) -> Frozen | None:
        """Return an image that was taken into use; None, without the lease, if it must not be used."""
        assert lease.snapshot.sidecar is not None
        origin = lease.snapshot.sidecar.origin
        try:
            disk = await self._load_disk(lease)
            if isinstance(lease, SnapshotLease):
                thawable = self._thawable(version, lease.snapshot.path, disk)
            else:
                thawable = self._thawable(version, _NO_IMAGE, disk)
                thawable.image_fd = lease.image_fd
        except DiskRefusedError:
            await self._drop(lease)
            return None
        except BaseException:
            lease.release()
            raise
        dropped = origin.dropped or []
        frozen = Frozen(thawable, lease, origin.fork_refused, origin.init_ms, dropped, unchecked=True, found=True)
        try:
            if origin.dropped is not None or await self.check(version, frozen):
                return frozen
        except BaseException:
            lease.release()
            raise
        await self._drop(lease)
        return None

    async def check(self, version: Version, frozen: Frozen) -> bool:
        """Find out whether the files which init read are unchanged. A copy reports that, if the image is complete.

        Returns:
            False if they have changed, or the image cannot be thawed. The image must then be discarded.

        Raises:
            OSError: the machine could not start a process.
        """
        async with frozen.lock:
            if frozen.arrival is None:
                return await self._check(version, frozen)
            # A probe would need other parts of the image than the first invocation.
            is_usable = await asyncio.to_thread(are_files_unchanged, frozen.lease.snapshot)
            frozen.unchecked = not is_usable
            return is_usable

    async def _check(self, version: Version, frozen: Frozen) -> bool:
        arguments = files_elsewhere(frozen.lease.snapshot)
        draft, outbox = None, None
        try:
            if arguments and version.root is not None:
                draft = await asyncio.to_thread(self._store.begin)
                outbox, arguments = await asyncio.to_thread(lend_list, draft, *arguments)
            probe = await self._starter.thaw_template(
                version, frozen.thawable, role="probe", arguments=arguments, outbox=outbox
            )
        except (ThawFailedError, ThawdError):
            return False
        finally:
            if draft is not None:
                await asyncio.to_thread(draft.discard)
        probe.kill()
        head = probe.ready.result()
        if head.changed is not None:
            return False
        frozen.fork_refused, frozen.dropped, frozen.unchecked = head.fork_refused, head.dropped, False
        return True

    async def make(self, version: Version) -> FreezeResult:
        """Run the version's init, freeze the process, test the image and store it.

        Raises:
            InitError: init or a snapshot hook failed.
            OSError: the machine could not start a process.
        """
        # Compute the key before init: if a file changes during init, later keys differ and this image is never found.
        key = await asyncio.to_thread(self._key, version)
        refused = ""
        if version.root is not None:
            return await self._make_in_root(version, key)
        if self._bases is not None:
            try:
                template, base, refused = await self._bases.start(version, confined=self._launcher.confines(version))
            except NoBaseError as error:
                refused = str(error)
            else:
                made = await self._freeze_and_end(version, template, key=key, base=base, base_refused=refused)
                if made.frozen is not None:
                    return made
                if made.template is not None:
                    made.template.kill()
                refused = f"no image could be made over the version's base: {made.refused}"
        template = await self._starter.template(version, to_freeze=True)
        return await self._freeze_and_end(version, template, key=key, base_refused=refused)

    async def _make_in_root(self, version: Version, key: str) -> FreezeResult:
        """Like `make`, for a version with a root of its own: the process reaches only one folder of the store.

        Such a version has no base, and its environments are not forked.

        Raises:
            InitError: init or a snapshot hook failed.
            OSError: the machine could not start a process.
        """
        try:
            draft = await asyncio.to_thread(self._store.begin, room_bytes=_ROOM_BYTES)
        except ThawdError as error:
            return FreezeResult(refused=error.message)
        try:
            outbox = draft.folder / "out"
            await asyncio.to_thread(outbox.mkdir, mode=0o700)
            template = await self._starter.template(version, to_freeze=True, outbox=outbox)
            made = await self._freeze_and_end(version, template, key=key, base_refused=_NO_BASE_IN_ROOT, draft=draft)
        finally:
            await asyncio.to_thread(draft.discard)
        if made.template is not None:
            made.template.kill()
            made.template = None
        return made

    async def _freeze_and_end(
        self,
        version: Version,
        template: Template,
        *,
        key: str,
        base: Base | None = None,
        base_refused: str = "",
        draft: Draft | None = None,
    ) -> FreezeResult:
        """Freeze `template`, and end it unless the result contains it. With `draft`, the image goes to its outbox.

        Raises:
            InitError: a snapshot hook failed.
        """
        about = _BaseOfImage(None if base is None else base.lease.snapshot.sha256, base_refused)
        try:
            made = await self._freeze(version, template, key=key, about=about, draft=draft)
        except FreezeFailedError as error:
            made = FreezeResult(refused=str(error))
        except ThawdError as error:  # the store could not take the image
            made = FreezeResult(refused=error.message)
        except BaseException:
            template.kill()
            raise
        if made.template is not template:
            template.kill()
        return made

    async def _freeze(
        self, version: Version, template: Template, *, key: str, about: _BaseOfImage, draft: Draft | None
    ) -> FreezeResult:
        assert template.child is not None
        room_bytes = await asyncio.to_thread(private_bytes, template.child.pid) + _ROOM_BYTES
        if draft is None:
            draft = await asyncio.to_thread(self._store.begin, room_bytes=room_bytes)
        else:
            await asyncio.to_thread(self._store.require_room, room_bytes)
        try:
            head, answer = await self._write(version, template, draft)
            if head.refused is not None:
                return await self._refused(head.refused, head, template)
            started_s = time.monotonic()
            try:
                # The rules are those of `thawd snapshot inspect`. An image that breaks one is neither thawed nor kept.
                image = await asyncio.to_thread(reader.read, draft.image)
            except reader.ImageError as error:
                return await self._refused(_unreadable(error, draft), head, template)
            try:
                disk = await asyncio.to_thread(self._look_at_disk, template, image)
            except DiskRefusedError as error:
                return await self._refused(error.message, head, template)
            thawable = self._thawable(version, draft.image, disk)
            failure = await self._self_test(template, thawable, head, answer, draft)
            if failure is not None:
                return await self._refused(f"the self-test of its image failed: {failure}", head, template)
            self_test_ms = (time.monotonic() - started_s) * 1000
            if disk is not None and not draft.disk.exists():
                await asyncio.to_thread(self._disks.take, disk, draft.disk)
            await asyncio.to_thread(list_files, version, template, image, draft)
            origin = _origin(version, head, key=key, self_test_ms=self_test_ms, about=about)
            origin = msgspec.structs.replace(origin, first_use=thawable.first_use)
            # In a thread, because `adopt` reads the whole image for its digest, which takes long.
            lease = await asyncio.to_thread(lambda: self._store.use(self._store.adopt(draft, origin)))
            if self._exchange is not None:
                self._exchange.send(lease.snapshot)
        finally:
            await asyncio.to_thread(draft.discard)
        thawable.image = lease.snapshot.path
        thawable.disk = await self._load_disk(lease)
        thawable.usable_s = time.monotonic()
        return FreezeResult(Frozen(thawable, lease, head.fork_refused, head.init_ms, head.dropped))

    async def _write(self, version: Version, template: Template, draft: Draft) -> tuple[FrozenHead, bytes]:
        """Freeze `template` to the image of `draft`; see `Template.freeze`."""
        if version.root is None:
            return await template.freeze(draft.image, library=self._engine.freezer)
        frozen = await template.freeze(OUTBOX / "image", library=NATIVE / self._engine.freezer.name)
        if frozen[0].refused is None:
            await asyncio.to_thread(take_from_outbox, draft)
        return frozen

    def _key(self, version: Version) -> str:
        return key_of(version, self._engine, confined=self._launcher.confines(version), bases=self._bases is not None)

    async def settle(self, frozen: Frozen, stored: Snapshot, *, is_used: Callable[[], bool]) -> None:
        """Thaw further copies from an image that has arrived in the store, if a version uses it still.

        Raises:
            StoreError: the image in the store cannot be used.
        """
        lease = await asyncio.to_thread(self._store.use, stored)
        try:
            disk = await self._load_disk(lease)
            async with frozen.lock:
                if is_used():
                    frozen.thawable.image, frozen.thawable.disk, frozen.thawable.image_fd = stored.path, disk, -1
                    frozen.lease, lease = lease, frozen.lease
        finally:
            await asyncio.to_thread(lease.release)

    async def remove(self, stored: Snapshot) -> None:
        """Remove an image from the store, unless it is in use."""
        with contextlib.suppress(ThawdError):
            await asyncio.to_thread(self._store.remove, stored)

    @property
    def _disks(self) -> Disks:
        assert self._launcher.disks is not None
        return self._launcher.disks

    def _look_at_disk(self, template: Template, image: reader.Image) -> DiskSnapshot | None:
        """Return the files that init left in the template's temporary folder; None without such a folder. Blocks."""
        if template.folder is None:
            return None
        return self._disks.look(template.identifier, frozen_unix_ns=image.process.frozen_unix_ns)

    def _thawable(self, version: Version, image: Path, disk: DiskSnapshot | None) -> Thawable:
        may_go_back = version.function.snapshot_clocks == "may_go_back"
        return Thawable(self._engine.program, image, disk, clocks_back=may_go_back)

    async def _load_disk(self, lease: SnapshotLease | Arrival) -> DiskSnapshot | None:
        """Return the temporary folder that was stored with an image; None when there is none.

        Raises:
            DiskRefusedError: the folder is not complete, or belongs to another data folder.
        """
        if self._launcher.disks is None or lease.snapshot.disk is None:
            return None
        return await asyncio.to_thread(self._disks.load, lease.snapshot.disk)

    async def _self_test(
        self, template: Template, thawable: Thawable, head: FrozenHead, answer: bytes, draft: Draft
    ) -> str | None:
        """Thaw the image once, send the copy the priming event, and compare its answer with the original's.

        A different answer is a fault only if answers are otherwise always the same. To find out, the event is sent to a
        second copy, in case the copies' answers contain their process ids, and once more to the original, in case its
        answers contain the time.

        Returns:
            The fault; None when there is none.
        """
        version = template.version
        try:
            first = await self._primed_copy(version, thawable)
            if version.function.prime is None or head.answers_differ or first == answer:
                return None
            second = await self._primed_copy(version, thawable)
        except ThawFailedError as error:
            return str(error)
        # Store the folder now, because the original process can change it when it gets the event once more.
        if thawable.disk is not None:
            await asyncio.to_thread(self._disks.take, thawable.disk, draft.disk, keep=True)
        if second != first or await template.ask(limit_s=version.function.timeout_s) != answer:
            return None
        return f"a copy's answer to the priming event differs from the original's: {difference(answer, first)}"

    async def _primed_copy(self, version: Version, thawable: Thawable) -> bytes:
        """Return the answer of a copy to the priming event; empty when there is no such event.

        Raises:
            ThawFailedError: the copy did not start, or the event failed in it.
            InitError: an after-restore hook failed.
        """
        environment = await self._starter.thaw(version, thawable, started_s=time.monotonic())
        try:
            answer = await prime(environment)
            if not thawable.first_use and environment.child is not None:
                with contextlib.suppress(OSError, ValueError):  # this kernel does not list pages
                    pid = environment.child.pid
                    thawable.first_use = await asyncio.to_thread(image_ranges, pid, thawable.image)
            return answer
        finally:
            environment.kill()
            await environment.ended.wait()

    async def _refused(self, why: str, head: FrozenHead, template: Template) -> FreezeResult:
        if head.fork_refused is not None:
            return FreezeResult(refused=why, fork_refused=head.fork_refused)
        await self._starter.look_at_disk(template)
        if template.disk_refused is not None:
            return FreezeResult(refused=why, fork_refused=template.disk_refused)
        try:
            await template.go_on()
        except FreezeFailedError as error:
            return FreezeResult(refused=f"{why} ({error})")
        return FreezeResult(refused=why, template=template)

    async def release(self, frozen: Frozen) -> None:
        """Stop using the image, which remains in the store."""
        frozen.thawable.image_fd = -1  # here in the loop: no copy may get a descriptor that is closed meanwhile
        await asyncio.to_thread(frozen.lease.release)

    async def supersede(self, frozen: Frozen) -> None:
        """Remove the image of a version that no longer exists, unless a version of this or another server uses it."""
        await self.release(frozen)
        await self.remove(frozen.lease.snapshot)

    async def discard(self, frozen: Frozen) -> None:
        """Remove an image that cannot be used."""
        frozen.thawable.image_fd = -1
        await self._drop(frozen.lease)

    async def evict(self) -> None:
        """Remove images that are too old, that no longer fit into the store's size limit, or that a dead server left
        unfinished.

        Raises:
            StoreError: the folder cannot be read, or an image cannot be removed.
        """
        await asyncio.to_thread(self._store.tidy)
        await asyncio.to_thread(self._store.evict)

    async def _drop(self, lease: SnapshotLease | Arrival) -> None:
        await asyncio.to_thread(lease.release)
        for _ in range(_REMOVE_TRIES):
            try:
                await asyncio.to_thread(self._store.remove, lease.snapshot)
            except ResourceConflictException:
                # Another server uses the image, or a child of this process has inherited the lock, and holds it until
                # it executes its program.
                await asyncio.sleep(_REMOVE_PAUSE_S)
            except ThawdError:
                return  # the image has been removed already
            else:
                return


def _unreadable(error: reader.ImageError, draft: Draft) -> str:
    """Return the reason for refusing an image: the rule of the format that it breaks."""
    broken = str(error).removeprefix(f"{draft.image}: ")
    return f"its image breaks a rule of the format; this is a bug in thawd, please report it: {broken}"


def _origin(version: Version, head: FrozenHead, *, key: str, self_test_ms: float, about: _BaseOfImage) -> ImageOrigin:
    return ImageOrigin(
        function=version.function.name,
        version=version.number,
        key=key,
        python=version.python_version,
        init_ms=head.init_ms,
        freeze_ms=head.freeze_ms,
        data_bytes=head.data_bytes,
        self_test="passed",
        self_test_ms=self_test_ms,
        base=about.sha256,
        base_refused=about.refused,
        fork_refused=head.fork_refused,
        dropped=head.dropped,
        container_image=version.image_digest,
        container_image_name=version.function.image or "",
    )
