"""A ``thawd.toml`` that a test writes: what is made of it, or the mistakes that it is told to hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from thawd import config
from thawd.errors import ConfigurationError, Problem

HELLO = '[functions.hello]\nhandler = "hello.handler"\n'


def load(folder: Path, text: str, *, environ: Mapping[str, str] | None = None) -> config.Settings:
    """What is made of a file with this text."""
    file = folder / "thawd.toml"
    file.write_text(text)
    return config.load(file, environ=environ or {})


def mistakes(folder: Path, text: str, *, environ: Mapping[str, str] | None = None) -> list[Problem]:
    """What such a file is refused for."""
    with pytest.raises(ConfigurationError) as refused:
        load(folder, text, environ=environ)
    return refused.value.problems


def only_mistake(folder: Path, text: str, *, environ: Mapping[str, str] | None = None) -> Problem:
    """The one thing it is refused for."""
    problems = mistakes(folder, text, environ=environ)
    assert len(problems) == 1, problems
    return problems[0]
