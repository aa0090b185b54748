"""The emulator's state is written when the emulator stops, even if writing fails at first."""

from __future__ import annotations

from typing import Any

import pytest

from thawd.server.emulator.state import SavedState
from thawd.server.emulator.state_saving import Keeper


class Hindered:
    """A state that cannot be captured or written the first few times.

    Args:
        errors: the errors raised, one after the other.
        at: name of the method that raises them.
    """

    def __init__(self, errors: list[Exception], *, at: str) -> None:
        self.left_out: dict[str, str] = {}
        self.written: list[bytes] = []
        self._errors = errors
        self._at = at

    def take(self) -> SavedState:
        self._hinder("take")
        return SavedState(b"all", {})

    def can_be_loaded(self, saved: SavedState) -> bool:
        return True

    def write(self, saved: SavedState) -> None:
        self._hinder("write")
        self.written.append(saved.pickled)

    def _hinder(self, method: str) -> None:
        if method == self._at and self._errors:
            raise self._errors.pop(0)


def keeper_of(state: Any, told: list[str], monkeypatch: pytest.MonkeyPatch) -> Keeper:
    monkeypatch.setattr(Keeper, "_LAST_PAUSE_S", 0.0)
    monkeypatch.setattr(Keeper, "PAUSE_S", 3600.0)  # nothing is written before it stops
    keeper = Keeper(state, complain=told.append)
    keeper.start()
    return keeper


@pytest.mark.parametrize(
    ("error", "at"),
    [(RuntimeError("changed size"), "take"), (ValueError("closed"), "write"), (OSError(28, "full"), "write")],
)
def test_the_last_save_is_tried_again(error: Exception, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = Hindered([error, error], at=at)
    told: list[str] = []
    keeper_of(state, told, monkeypatch).end()
    assert state.written == [b"all"]
    assert not any("lost" in line for line in told)


def test_a_last_save_that_never_succeeds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Hindered([OSError(28, "full")] * 100, at="write")
    told: list[str] = []
    keeper_of(state, told, monkeypatch).end()
    assert not state.written
    assert "the last changes are lost" in told[-1]


def test_a_caller_that_waits_for_a_save_does_not_wait_for_the_pause_between_saves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = Hindered([], at="write")
    keeper = keeper_of(state, [], monkeypatch)
    assert keeper.save_now(60)
    assert state.written == [b"all"]
    keeper.end()
