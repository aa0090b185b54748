"""What a debugger needs of a function's environment."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from thawd.environments import debugging
from thawd.environments.debugging import Debugging
from thawd.environments.version import Variables
from thawd.resources import Function

from .execution_fakes import version_of


@pytest.mark.parametrize(("terminal", "is_refused"), [("/dev/pts/0", False), (None, True)])
def test_a_function_is_refused_if_neither_an_editor_nor_pdb_can_stop_it(
    monkeypatch: pytest.MonkeyPatch, terminal: str | None, is_refused: bool
) -> None:
    monkeypatch.setattr(debugging, "find_spec", lambda name: None)
    asked = Debugging({"f": 5678}, terminal=terminal)
    without_debugpy = Path("/bin/false")  # as an interpreter that does not find it
    function = Function(name="f", handler="app.handler", code=Path("/nowhere"))
    text = asked.variable(function, without_debugpy, package=Path("/nowhere/package"))
    why = asked.why_nothing_stops(text)
    assert (why is not None) == is_refused
    assert why is None or "pip install 'thawd[debug]'" in why


@pytest.mark.parametrize("listens", [False, True])
def test_a_port_is_announced_only_if_something_new_listens_there(listens: bool) -> None:
    said: list[str] = []

    async def work() -> None:
        with socket.socket() as editor_port:
            editor_port.bind(("127.0.0.1", 0))
            port = editor_port.getsockname()[1]
            text = json.dumps({"port": port, "terminal": None, "waits": False, "host": "127.0.0.1"})
            version = replace(version_of("f"), debugged=True, variables=Variables({debugging.VARIABLE: text}))
            async with debugging.announced(version, said.append):
                assert not said
                if listens:
                    editor_port.listen()

    asyncio.run(work())
    assert [f"{line.split()[0]} editor" for line in said] == (["an editor"] if listens else [])
