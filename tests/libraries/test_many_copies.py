"""Machine learning libraries: fifty copies of each, eight at a time, with the same results as a process never frozen.

Tests marked `nightly` are large: `make test-libraries-all` runs them, in two separate virtual environments.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.libraries.repetition import compare_many

MORE = Path(sys.prefix).with_name(".venv-libraries-more") / "bin" / "python"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "libraries.md"
LIGHT = ("uses_lightgbm", "uses_xgboost", "uses_opencv", "uses_faiss")
LARGE = ("uses_torch_compile", "uses_sentence_transformers")
OF_MORE = ("uses_tensorflow", "uses_jax", "uses_catboost", "uses_spacy", "uses_openvino", "uses_paddle")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", [*LIGHT, *(pytest.param(program, marks=pytest.mark.nightly) for program in LARGE)])
def test_every_copy_computes_what_a_cold_process_does(image: Path, program: str) -> None:
    compare_many(image, program, "--threads", "2")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", OF_MORE)
def test_every_copy_of_a_library_of_the_second_environment_computes_what_a_cold_process_does(
    image: Path, program: str
) -> None:
    assert MORE.exists(), f"{MORE} is missing: make test-libraries-all makes it"
    compare_many(image, program, "--threads", "2", python=str(MORE))


@pytest.mark.parametrize("program", [*LIGHT, *LARGE, *OF_MORE])
def test_every_program_is_in_the_page_about_libraries(program: str) -> None:
    assert f"| `{program}` |" in PAGE.read_text()
