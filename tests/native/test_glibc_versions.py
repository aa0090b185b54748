"""The engine runs with every glibc since 2.17, whatever glibc it was built with."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.native.engine import Engine

_GLIBC = tuple(map(int, (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0").split()[1].split(".")))
_OLDEST = (2, 17)  # that of manylinux2014, and of Amazon Linux 2's predecessors


def _read(option: str, path: Path) -> str:
    return subprocess.run(["readelf", option, "--wide", path], capture_output=True, text=True, check=True).stdout


def test_the_freeze_library_needs_no_function_that_glibc_2_17_lacks(engine: Engine) -> None:
    needs = re.findall(r"Name: GLIBC_([0-9.]+)", _read("--version-info", engine.freezer))
    assert needs, "the versions that the library needs cannot be read"
    assert max(tuple(map(int, version.split("."))) for version in needs) <= _OLDEST


@pytest.mark.skipif(_GLIBC < (2, 34), reason="this glibc has another library for dlopen")
def test_the_freeze_library_needs_no_library_but_the_c_library(engine: Engine) -> None:
    libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", _read("--dynamic", engine.freezer))
    assert libraries == ["libc.so.6"]  # an image need not have libdl.so.2


def test_thaw_needs_no_library_at_all(engine: Engine) -> None:
    assert "(NEEDED)" not in _read("--dynamic", engine.thaw)
