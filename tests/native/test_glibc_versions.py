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


def test_the_engine_compiles_with_kernel_headers_of_linux_6_5_and_newer(tmp_path: Path) -> None:
    # They call a field of io_uring's structs user_addr, which was resv2 before.
    source = tmp_path / "rings.c"
    newer = "#define resv2 user_addr\n#include <linux/io_uring.h>\n#undef resv2\n"
    older = "#define user_addr resv2\n#include <linux/io_uring.h>\n#undef user_addr\n"
    for headers in (newer, older):
        source.write_text(f'{headers}#include "rings.h"\n')
        native = Path(__file__).resolve().parents[2] / "native"
        command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", str(native), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
