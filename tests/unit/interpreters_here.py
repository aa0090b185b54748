"""The interpreters installed on this machine, for tests of code that runs on all supported versions."""

from __future__ import annotations

import sys

from thawd.errors import EnvironmentBuildError
from thawd.publishing.interpreters import find_interpreter

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")


def _found() -> list[str]:
    found = {sys.executable}
    for version in VERSIONS:
        if version != f"{sys.version_info[0]}.{sys.version_info[1]}":
            try:
                found.add(str(find_interpreter(version).path))
            except EnvironmentBuildError:
                continue
    return sorted(found)


INTERPRETERS = _found()
"""Paths of one interpreter of each supported version that is installed."""
