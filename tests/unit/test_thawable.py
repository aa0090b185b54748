"""The command line of a copy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from thawd.environments.starts.thawable import Thawable


def test_clocks_may_go_back_only_where_the_function_allows_it() -> None:
    start: Any = SimpleNamespace(options=["--environment"])
    plain = Thawable(Path("/thaw"), Path("/image"))
    allowed = Thawable(Path("/thaw"), Path("/image"), clocks_back=True)
    assert plain.command("environment", start, "one") == ["/thaw", "--environment", "/image", "environment", "one"]
    assert allowed.command("spare", start) == ["/thaw", "--environment", "--clocks-back", "/image", "spare"]
