"""Stores the records of stacks, each in a JSON file of the emulator's folder.

A record is written before a resource is made, and again after it was made. So if an operation is interrupted, the
record lists every resource that may exist. The state of moto's services is saved later. An operation ends only after
that state was saved (`Keeper.save_now`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from thawd.server.emulator.cloudformation.errors import does_not_exist
from thawd.server.emulator.cloudformation.stack_records import Output, Stack
from thawd.system import folders

# How long a deleted stack can be described by its id, as on AWS.
_DELETED_S = 90 * 86400.0
_MOST_DELETED = 200


class StackStore:
    """The stacks, by their ids.

    Args:
        folder: folder for the records; None: they are lost when the process ends.
        complain: prints a line for the operator.

    Attributes:
        lock: a thread takes it while it reads or changes records.
    """

    def __init__(self, folder: Path | None, complain: Callable[[str], None]) -> None:
        self.lock = threading.RLock()
        self._folder = folder
        self._complain = complain
        self._stacks: dict[str, Stack] = {}
        if folder is not None:
            folders.make(folder, mode=0o700)
            folders.remove_unfinished(folder)
            for path in sorted(folder.glob("*.json")):
                self._read(path)

    def _read(self, path: Path) -> None:
        try:
            stack = msgspec.json.decode(path.read_bytes(), type=Stack)
        except (msgspec.MsgspecError, OSError) as error:
            self._complain(
                f"thawd: --aws: the stack in {path} cannot be read, and is left out: {error}; its resources stay, and "
                "must be deleted one by one"
            )
        else:
            self._stacks[stack.id] = stack

    def save(self, stack: Stack) -> None:
        """Write a stack's record, which replaces the last one.

        Raises:
            OSError: the record cannot be written. The previous one is unchanged.
        """
        with self.lock:
            self._stacks[stack.id] = stack
            if self._folder is not None:
                with folders.replacing(self._path(stack)) as file:
                    file.write(msgspec.json.encode(stack))
            if stack.is_deleted:
                self._forget_old()

    def forget(self, stack: Stack) -> None:
        """Remove a stack's record."""
        with self.lock:
            self._stacks.pop(stack.id, None)
            if self._folder is not None:
                self._path(stack).unlink(missing_ok=True)

    def empty(self) -> None:
        """Remove all records."""
        for stack in self.all():
            self.forget(stack)

    def all(self) -> list[Stack]:
        """Return all stacks, also deleted ones, the newest first."""
        with self.lock:
            return sorted(self._stacks.values(), key=lambda stack: -stack.created_s)

    def here(self, account: str, region: str) -> list[Stack]:
        """Return the stacks of an account and a region, also deleted ones, the newest first."""
        return [stack for stack in self.all() if (stack.account, stack.region) == (account, region)]

    def find(self, account: str, region: str, name: str) -> Stack | None:
        """Return the stack with this name that is not deleted, or with this id, deleted or not; None: there is none."""
        for stack in self.here(account, region):
            if stack.id == name or (stack.name == name and not stack.is_deleted):
                return stack
        return None

    def get(self, account: str, region: str, name: str) -> Stack:
        """Return the stack with this name or id.

        Raises:
            StackError: there is none.
        """
        found = self.find(account, region, name)
        if found is None:
            raise does_not_exist(name)
        return found

    def by_id(self, identifier: str) -> Stack | None:
        """Return the stack with this id; None: there is none."""
        with self.lock:
            return self._stacks.get(identifier)

    def exports(self, account: str, region: str) -> Iterator[tuple[Stack, Output]]:
        """Yield all exported outputs with their stacks."""
        for stack in self.here(account, region):
            if not stack.is_deleted:
                yield from ((stack, output) for output in stack.outputs if output.export)

    def _path(self, stack: Stack) -> Path:
        assert self._folder is not None
        return self._folder / f"{stack.id.rpartition('/')[2]}.json"

    def _forget_old(self) -> None:
        deleted = [stack for stack in self.all() if stack.is_deleted]
        since_s = time.time() - _DELETED_S
        for position, stack in enumerate(deleted):
            if position >= _MOST_DELETED or (stack.deleted_s or 0.0) < since_s:
                self.forget(stack)
