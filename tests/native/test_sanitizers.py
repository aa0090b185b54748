"""The library of the process that freezes under the address and undefined-behaviour sanitizers; originals and copies.

The programs are those of the other tests, with the sanitizers' allocator loaded before the C library's. A copy goes on
where its signal frame was made and never leaves the functions that wrote the image: what the address sanitizer noted of
their variables on the stack stays behind, and would look like a fault to whoever uses that stack next. So for copies
the library is built without these notes. Thaw itself is freestanding and has no sanitizer; the parser that both sides
share is fuzzed under them in test_damaged_images.py.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.engine import COMPILER, REPOSITORY, Case, Trial, cases_of, compile_c, require

SANITIZERS = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WITHOUT_STACK = ("--param", "asan-stack=0")
# Leaks: all that a killed process leaves. Faults: some cases catch their own, on stacks of their own.
OPTIONS = "detect_leaks=0:allow_user_segv_handler=1:use_sigaltstack=0"
ORIGINALS = cases_of(
    "faults",
    "refused_descriptors",
    "refused_states",
    "mappings",
    "files",
    "channels",
    "sockets",
    "unix_sockets",
    "timers",
    "rings",
    "shared_memory",
    "processes",
)
# What goes through the engine's madvise and mremap. The sanitizer makes mlock do nothing, which two cases are about.
COPIES = [case for case in cases_of("heap", "advice", "remap") if case.name not in ("errors", "kept_advice")]


def sources_of_library() -> list[Path]:
    """What CMakeLists.txt makes libthawd_freeze.so of."""
    text = (REPOSITORY / "CMakeLists.txt").read_text()
    both = re.search(r"set\(BOTH_SIDES ([^)]*)\)", text)
    library = re.search(r"add_library\(thawd_freeze SHARED([^)]*)\)", text)
    assert both and library
    return [REPOSITORY / name for name in library[1].replace("${BOTH_SIDES}", both[1]).split()]


def sanitized(folder: Path, *options: str) -> dict[str, str]:
    """Build the library with sanitizers in a new folder; the environment variables that make a program use it."""
    folder.mkdir()
    library = folder / "libthawd_freeze.so"
    compile_c(sources_of_library(), library, "-shared", "-fPIC", "-fvisibility=hidden", "-ldl", *SANITIZERS, *options)
    command = [COMPILER[0], "-print-file-name=libasan.so"]
    runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return {"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": runtime, "ASAN_OPTIONS": OPTIONS}


@pytest.fixture(scope="session")
def for_originals(open_folder: Path) -> dict[str, str]:
    """Finds errors on stacks too."""
    return sanitized(open_folder / "sanitized")


@pytest.fixture(scope="session")
def for_copies(open_folder: Path) -> dict[str, str]:
    """Lets copies use their stacks."""
    return sanitized(open_folder / "sanitized-copies", *WITHOUT_STACK)


@pytest.mark.parametrize("case", ORIGINALS, ids=str)
def test_a_freeze_makes_no_error_of_memory(
    case: Case, for_originals: dict[str, str], trial: Callable[..., Trial]
) -> None:
    require(case, trial(case).run("goes-on", environment=for_originals))


@pytest.mark.parametrize("case", COPIES, ids=str)
def test_a_copy_makes_no_error_of_memory(case: Case, for_copies: dict[str, str], trial: Callable[..., Trial]) -> None:
    one = trial(case)
    ended = one.freeze(environment=for_copies)
    require(case, one.thaw() if ended is None else ended)


def test_an_error_of_memory_would_be_seen(for_originals: dict[str, str], trial: Callable[..., Trial]) -> None:
    [case] = cases_of("overrun")
    outcome = trial(case).run("goes-on", environment=for_originals)
    assert outcome.status != 0
    assert "ERROR: AddressSanitizer: heap-buffer-overflow" in outcome.errors
