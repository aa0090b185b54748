"""Every refusal of freeze and thaw is in docs/reference/refusals.md, with the words that thawd prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LITERAL = r'"((?:[^"\\]|\\.)*)"'
# A refusal ends its statement: refuse(f, "stage", "text…", …), a row of the table of descriptors, or a text that is
# returned or thrown. This pattern matches the rest of the statement.
_REST = r'(?:[^;{}"]|"(?:[^"\\]|\\.)*")*'
_STATEMENT = re.compile(
    r'(?:\b(?:refuse|refuse_descriptor|thaw_refuse)\(|\breturn (?=")|\bstatic const char \w+\[\] =|\{(?="anon))' + _REST
)
_FREEZE = (
    "freeze_descriptors", "freeze_pipes", "freeze_sockets", "freeze_event_descriptors", "freeze_rings",
    "freeze_mappings", "freeze_plan", "freeze_process", "freeze_rights", "park_threads", "libc_patches",
    "freeze_find_pages", "host", "cpu",
)  # fmt: skip
_THAW = ("thaw_image", "thaw_clocks", "thaw_survivors", "thaw_vdso", "thaw_process", "thaw_descriptors", "thaw_rights")


def _refusals(name: str) -> list[str]:
    """Return the texts of refusals in one file, each up to the place where the cause is named or the advice begins."""
    source = (ROOT / "native" / f"{name}.c").read_text().replace('? "', '"').replace('" : "', '"; return "')
    found = []
    for statement in _STATEMENT.findall(source):
        text = "".join(piece for piece in re.findall(_LITERAL, statement) if " " in piece)
        if text:
            found.append(re.split(r"[:;,(]", text)[0].strip(" ."))
    return found


@pytest.mark.parametrize("name", [*_FREEZE, *_THAW])
def test_every_refusal_is_documented_in_its_own_words(name: str) -> None:
    page = (ROOT / "docs" / "reference" / "refusals.md").read_text()
    refusals = _refusals(name)
    assert refusals
    assert [text for text in refusals if text not in page] == []


def test_the_search_finds_what_it_should() -> None:
    everything = [text for name in (*_FREEZE, *_THAW) for text in _refusals(name)]
    assert len(everything) > 60
    assert "an io_uring has pending requests" in everything
    assert "a connected socket must not be frozen" in everything
    assert "the image was frozen under a newer kernel" in everything
