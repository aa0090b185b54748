"""Writes a ``thawd.toml`` for a test and returns what thawd makes of it, or the mistakes that thawd finds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from thawd import config
from thawd.errors import ConfigurationError, Problem

HELLO = '[functions.hello]\nhandler = "hello.handler"\n'


def load(folder: Path, text: str, *, environ: Mapping[str, str] | None = None) -> config.Settings:
    """Return the configuration from a file with this text."""
    file = folder / "thawd.toml"
    file.write_text(text)
    return config.load(file, environ=environ or {})


def mistakes(folder: Path, text: str, *, environ: Mapping[str, str] | None = None) -> list[Problem]:
    """Return the mistakes for which such a file is refused."""
    with pytest.raises(ConfigurationError) as refused:
        load(folder, text, environ=environ)
    return refused.value.problems


def only_mistake(folder: Path, text: str, *, environ: Mapping[str, str] | None = None) -> Problem:
    """Return the only mistake for which it is refused."""
    problems = mistakes(folder, text, environ=environ)
    assert len(problems) == 1, problems
    return problems[0]
