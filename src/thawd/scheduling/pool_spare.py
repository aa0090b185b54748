"""The spare of a pool: the part of a pool that `thawd.scheduling.spares` uses, and the part that uses it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from thawd.environments.environment import Environment
from thawd.environments.version import Version
from thawd.scheduling.room import Occupant, Room
from thawd.system.flag import Flag


class PoolSpare(Occupant):
    """The part of a pool that concerns its spare."""

    version: Version
    account: object
    retired: bool
    empty: Flag
    _room: Room
    _dying: dict[Environment, None]
    _spawn_task: Callable[[Coroutine[None, None, None]], object]

    @property
    def has_spare(self) -> bool:
        """Whether a spare waits to become the next environment."""
        return self._room.spares.has(self)

    def _take_spare(self) -> Environment | None:
        return self._room.spares.take(self)

    def _want_spare(self) -> None:
        self._room.spares.want(self, spawn_task=self._spawn_task)

    def reserve_spare(self) -> bool:
        """Reserve room for a spare, and return whether there was room (`Owner.reserve_spare`)."""
        if not self._room.reserve_spare(self):
            return False
        self.empty.clear()
        return True

    def release_spare(self) -> None:
        """Release the room of a spare that could not be started (`Owner.release_spare`)."""
        self._room.release(self)
        self._set_if_empty()

    def end_spare(self, spare: Environment) -> None:
        """End a spare and release its room (`Owner.end_spare`)."""
        self._dying[spare] = None
        spare.kill()
        self._room.release(self)

    def spare_ended(self, spare: Environment) -> None:
        """Forget a spare whose process has ended, and release its room unless that is done (`Owner.spare_ended`)."""
        if spare in self._dying:
            self._dying.pop(spare, None)
        elif self._room.spares.died(self, spare):
            self._room.release(self)
        self._set_if_empty()

    def _set_if_empty(self) -> None:
        raise NotImplementedError
