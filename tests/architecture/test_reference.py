"""The pages generated from the code are up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import reference

PAGES = reference.pages()


@pytest.mark.parametrize("path", sorted(PAGES), ids=lambda path: path.name)
def test_a_page_is_what_the_code_makes(path: Path) -> None:
    assert path.read_text() == PAGES[path], "run python -m tools.reference"


def test_what_markdown_would_take_for_itself_is_escaped() -> None:
    assert reference._cell("s3:* or `a|b` <NAME>") == r"s3:\* or `a\|b` \<NAME>"
