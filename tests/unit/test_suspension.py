"""`thawd.environments.suspension`: the search for processes goes on as long as it finds new ones."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.execution_fakes import claim, until
from thawd.environments import suspension
from thawd.environments.suspension import Suspender

NEW_IN_EACH_SEARCH = 12


def test_processes_that_are_started_while_others_are_stopped_are_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    family: list[int] = []
    sent: dict[int, int] = {}

    def outsiders(pid: int, orphans: list[int]) -> list[int]:
        if len(family) < NEW_IN_EACH_SEARCH:
            family.append(1000 + len(family))  # forked by the one before, just before that was stopped
        return list(family)

    monkeypatch.setattr(suspension, "_outsiders", outsiders)
    monkeypatch.setattr(suspension, "_signal", sent.__setitem__)
    monkeypatch.setattr(suspension, "_signal_group", sent.__setitem__)

    async def work() -> None:
        child = SimpleNamespace(pid=999, ended=asyncio.get_running_loop().create_future())
        environment = cast(
            "Any", type("Idle", (), {"identifier": "", "child": child, "dying": False, "is_quiet": True})()
        )
        environment.extension_groups = []
        suspender = Suspender(cast("Any", SimpleNamespace(orphans=list)))
        suspender.idle(environment)
        await until(lambda: len(sent) == 1 + NEW_IN_EACH_SEARCH)
        assert set(sent.values()) == {signal.SIGSTOP}
        suspender.busy(environment)
        assert set(sent.values()) == {signal.SIGCONT}

    claim(work)
