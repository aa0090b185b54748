"""Large libraries through freeze, kill and thaw. Each copy checks itself; see programs/scenario.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.libraries.frozen import Copies, freeze, freeze_copy

AT_ONCE = 4
CANNOT_THAW_HERE = 120
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "libraries.md"
# The longest first, so that two workers end at about the same time.
PROGRAMS = (
    ("everything", 2),
    ("captions", 2),
    ("arrays", 1),
    ("arrays", 2),
    ("estimators", 2),
    ("columns", 2),
    ("frames", 2),
    ("tokens", 2),
    ("training", 1),
    ("training", 2),
    ("sessions", 1),
    ("sessions", 2),
    ("kernels", 2),
    ("secrets_kept", 1),
    ("web", 1),
    ("standard_library", 1),
    ("busy", 1),
)


def run_copies(copies: Copies) -> None:
    """Run one copy alone, then several concurrently. Each must pass."""
    ended = copies.run("alone", "first")
    assert (ended.status, ended.said) == (0, "pass first alone\n"), ended.errors
    together = [copies.start(str(number), "together") for number in range(AT_ONCE)]
    for number, copy in enumerate(together):
        ended = copies.end(copy)
        assert (ended.status, ended.said) == (0, f"pass together {number}\n"), ended.errors


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("program", "threads"), [*PROGRAMS, pytest.param("captions", 1, marks=pytest.mark.nightly)])
def test_every_copy_answers_as_the_original_and_uses_memory_threads_and_processes(
    image: Path, program: str, threads: int
) -> None:
    run_copies(freeze(image, program, "--threads", str(threads)))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["copy", "older-kernel"])
@pytest.mark.parametrize("program", ["allocators", "training", "sessions", "standard_library"])
def test_the_engine_without_mapping_and_without_newer_kernels_calls_does_the_same(
    image: Path, program: str, engine: str
) -> None:
    run_copies(freeze(image, program, "--engine", engine))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", ["allocators", "frames", "estimators", "training", "kernels"])
def test_a_copy_that_is_frozen_again_thaws_as_well(image: Path, program: str) -> None:
    run_copies(freeze_copy(freeze(image, program), image.with_name("again")))


def test_a_copy_is_refused_once_the_weights_that_it_would_map_have_changed(image: Path) -> None:
    copies = freeze(image, "sessions")
    weights = image.with_name("weights.bin")
    weights.touch()
    ended = copies.run("one")
    assert ended.status == CANNOT_THAW_HERE
    assert ended.errors == f"thawd: cannot thaw here: a file has changed since the freeze: {weights}\n"


@pytest.mark.parametrize("program", sorted({program for program, _ in PROGRAMS}))
def test_every_program_is_in_the_page_about_libraries(program: str) -> None:
    assert f"| `{program}` |" in PAGE.read_text()
