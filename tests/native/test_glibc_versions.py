"""The engine runs with every glibc since 2.17, whatever glibc it was built with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.native.engine import Engine

_OLDEST = (2, 17)  # that of manylinux2014, and of Amazon Linux 2's predecessors


def _read(option: str, path: Path) -> str:
    return subprocess.run(["readelf", option, "--wide", path], capture_output=True, text=True, check=True).stdout


def test_the_freeze_library_needs_no_function_that_glibc_2_17_lacks(engine: Engine) -> None:
    needs = re.findall(r"Name: GLIBC_([0-9.]+)", _read("--version-info", engine.freezer))
    assert needs, "the versions that the library needs cannot be read"
    assert max(tuple(map(int, version.split("."))) for version in needs) <= _OLDEST


def test_the_freeze_library_finds_the_functions_of_libdl_where_an_older_glibc_has_them(engine: Engine) -> None:
    libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", _read("--dynamic", engine.freezer))
    assert sorted(libraries) == ["libc.so.6", "libdl.so.2"]


def test_thaw_needs_no_library_at_all(engine: Engine) -> None:
    assert "(NEEDED)" not in _read("--dynamic", engine.thaw)
