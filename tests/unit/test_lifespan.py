"""`thawd.runtime.http_apps.lifespan`: a startup that fails is told; an application without lifespan is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from thawd.runtime.faults import Fault
from thawd.runtime.http_apps import lifespan
from thawd.runtime.http_apps.lifespan import Lifespan


async def fails_while_it_starts(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    raise OSError("no model")


async def knows_only_requests(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"


async def says_that_it_failed(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no model"})


def test_a_startup_that_raises_is_in_the_log_and_one_without_the_protocol_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    monkeypatch.setattr(lifespan, "write_log", written.append)
    Lifespan(knows_only_requests).start()
    assert written == []
    Lifespan(fails_while_it_starts).start()
    assert "OSError: no model" in written[0]
    assert "startup has failed" in written[0]
    with pytest.raises(Fault, match="no model"):
        Lifespan(says_that_it_failed).start()
