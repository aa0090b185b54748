"""Allocators that return memory and use it again, in copies that have their memory mapped from an image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.libraries.frozen import PROGRAMS, Ended, freeze

FOLDER = Path("/usr/lib/x86_64-linux-gnu")
JEMALLOC = str(FOLDER / "libjemalloc.so.2")
MIMALLOC = str(FOLDER / "libmimalloc.so.2")
AT_ONCE_JEMALLOC = "dirty_decay_ms:0,muzzy_decay_ms:0"  # returns pages immediately when they are free
LATER_JEMALLOC = "background_thread:true,dirty_decay_ms:50,muzzy_decay_ms:50"
ALLOCATORS = {
    "glibc": {},
    "glibc-trims-at-once": {
        "MALLOC_TRIM_THRESHOLD_": "0",
        "MALLOC_TOP_PAD_": "0",
        "MALLOC_MMAP_THRESHOLD_": "67108864",
    },
    "jemalloc": {"LD_PRELOAD": JEMALLOC},
    "jemalloc-at-once": {"LD_PRELOAD": JEMALLOC, "MALLOC_CONF": AT_ONCE_JEMALLOC},
    "jemalloc-background": {"LD_PRELOAD": JEMALLOC, "MALLOC_CONF": LATER_JEMALLOC},
    "mimalloc": {"LD_PRELOAD": MIMALLOC},
    "mimalloc-at-once": {"LD_PRELOAD": MIMALLOC, "MIMALLOC_RESET_DELAY": "0", "MIMALLOC_PAGE_RESET": "1"},
}
IN_POLARS = {"at-once": AT_ONCE_JEMALLOC, "background": LATER_JEMALLOC}


def environment_of(allocator: str) -> dict[str, str]:
    """Return the environment variables that select `allocator`. Skip the test if its library is missing."""
    environment = ALLOCATORS[allocator]
    preload = environment.get("LD_PRELOAD")
    if preload and not Path(preload).exists():
        pytest.skip(f"{preload} is not installed (Debian: libjemalloc2, libmimalloc2.0)")
    return environment


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("program", "allocator"),
    [(program, allocator) for program in ("allocators", "arrays") for allocator in ALLOCATORS]
    + [("training", "jemalloc-at-once"), ("training", "mimalloc-at-once")],
)
def test_memory_that_an_allocator_gave_back_is_zero_again(image: Path, program: str, allocator: str) -> None:
    copies = freeze(image, program, environment=environment_of(allocator))
    for name in ("one", "two"):
        ended = copies.run(name)
        assert (ended.status, ended.said) == (0, f"pass {name}\n"), ended.errors


@pytest.mark.timeout(600)
@pytest.mark.parametrize("configuration", IN_POLARS)
def test_memory_that_the_allocator_inside_polars_gave_back_is_zero_again(image: Path, configuration: str) -> None:
    copies = freeze(image, "frames", environment={"_RJEM_MALLOC_CONF": IN_POLARS[configuration]})
    for name in ("one", "two"):
        ended = copies.run(name)
        assert (ended.status, ended.said) == (0, f"pass {name}\n"), ended.errors


@pytest.mark.parametrize("allocator", ["glibc", "jemalloc-at-once"])
def test_the_checker_fails_once_thawds_answer_to_madvise_and_mremap_is_taken_out(image: Path, allocator: str) -> None:
    copies = freeze(image, "allocators", environment=environment_of(allocator))
    assert copies.run("hooked").status == 0
    # once with direct checks of the kernel, once only through the allocator
    for arguments in (["unhook"], ["unhook", "skip-kernel"]):
        ended = copies.run("unhooked", *arguments)
        assert ended.status == 1
        assert "must be 0x0; " in ended.errors, ended.errors


def test_the_checker_passes_in_a_process_that_was_never_frozen() -> None:
    command = [sys.executable, "-B", PROGRAMS / "allocators.py", "--no-freeze"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert Ended(ended.returncode, ended.stdout, ended.stderr) == Ended(0, "pass\n", "")
