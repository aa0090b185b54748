"""The spare of a pool: the part of a pool that `thawd.scheduling.spares` uses, and the part that uses it or ends it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from thawd.environments.environment import Environment
from thawd.environments.version import Version
from thawd.scheduling.room import Occupant, Room
from thawd.system.flag import Flag

_TURNS_TO_SPAWN = 2  # turns of the event loop between reserving room for an environment and spawning its process


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

    def idle_longest_since_s(self) -> float | None:
        """Return when the environment that has been idle longest became idle (`Occupant.idle_longest_since_s`)."""
        if self._room.spares.has(self):
            return 0.0  # the lowest time there is, so that the spare is ended before any idle environment
        return next((environment.idle_since for environment in self.idle_longest_first()), None)

    def end_oldest_idle(self) -> None:
        """End the spare or, if there is none, the environment that is idle longest (`Occupant.end_oldest_idle`)."""
        if self._room.spares.has(self):
            self._room.spares.drop(self)
        elif idle := self.idle_longest_first():
            self._end(idle[0], after_turns=_TURNS_TO_SPAWN)

    def idle_longest_first(self) -> list[Environment]:
        """Return the idle environments without the provisioned ones, longest idle first."""
        raise NotImplementedError

    def _end(self, environment: Environment, *, after_turns: int = 0) -> None:
        raise NotImplementedError

    def _set_if_empty(self) -> None:
        raise NotImplementedError
