"""The freeze library under the address and undefined-behaviour sanitizers, in originals and copies.

The programs are those of the other tests, with the sanitizers' allocator loaded before the C library's. A copy
continues at its signal frame and never returns from the functions that wrote the image. The address sanitizer's marks
for their stack variables would remain, and later code on that stack would seem faulty. So for copies the library is
built without these marks. Thaw itself is freestanding and has no sanitizer; the parser that both sides share is fuzzed
under them in test_damaged_images.py.
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
# Leaks are not reported, because a killed process frees nothing. Faults are not intercepted, because some cases catch
# their own, on alternate stacks.
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
# Cases that use the engine's madvise and mremap. The sanitizer disables mlock, which two of the cases test, so these
# are left out.
COPIES = [case for case in cases_of("heap", "advice", "remap") if case.name not in ("errors", "kept_advice")]


def sources_of_library() -> list[Path]:
    """Return the sources that CMakeLists.txt names for libthawd_freeze.so."""
    text = (REPOSITORY / "CMakeLists.txt").read_text()
    both = re.search(r"set\(BOTH_SIDES ([^)]*)\)", text)
    library = re.search(r"add_library\(thawd_freeze SHARED([^)]*)\)", text)
    assert both and library
    return [REPOSITORY / name for name in library[1].replace("${BOTH_SIDES}", both[1]).split()]


def sanitized(folder: Path, *options: str) -> dict[str, str]:
    """Build the library with sanitizers in a new folder, and return the environment variables that make a program use
    it."""
    folder.mkdir()
    library = folder / "libthawd_freeze.so"
    compile_c(sources_of_library(), library, "-shared", "-fPIC", "-fvisibility=hidden", "-ldl", *SANITIZERS, *options)
    command = [COMPILER[0], "-print-file-name=libasan.so"]
    runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return {"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": runtime, "ASAN_OPTIONS": OPTIONS}


@pytest.fixture(scope="session")
def for_originals(open_folder: Path) -> dict[str, str]:
    """Environment variables for a library that detects errors on stacks, too."""
    return sanitized(open_folder / "sanitized")


@pytest.fixture(scope="session")
def for_copies(open_folder: Path) -> dict[str, str]:
    """Environment variables for a library without marks on stacks, which copies need."""
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
