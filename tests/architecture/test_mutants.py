"""Checks `tools/mutants.py`: its table names existing things, and its edit of a source does not change behaviour."""

from __future__ import annotations

import ast

import pytest
from tools import mutants


def test_the_modules_and_their_tests_exist() -> None:
    for module, names in mutants.PAIRS.items():
        assert (mutants.ROOT / mutants.source(module)).is_file(), module
        for name in names.split():
            assert (mutants.ROOT / "tests" / "unit" / f"test_{name}.py").is_file(), name


def test_a_property_becomes_a_function_that_is_mutated_and_stays_a_property() -> None:
    text = (
        "class Pool:\n"
        "    @property\n"
        "    def waiting(self) -> int:\n"
        "        return self.first + self.second\n"
        "\n"
        "    first, second = 1, 2\n"
    )
    changed = mutants.undecorated(text)
    (pool,) = ast.parse(changed).body
    assert isinstance(pool, ast.ClassDef)
    function = pool.body[0]
    assert isinstance(function, ast.FunctionDef)
    assert function.decorator_list == []
    found: dict[str, type] = {}
    exec(changed, found)
    assert isinstance(vars(found["Pool"])["waiting"], property)
    assert found["Pool"]().waiting == 3


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("-    say('a')", "+    say('b')"), False),
        (('-    run("SELECT a FROM b", at)', '+    run("select a from b", at)'), True),
        (('-    run("SELECT a FROM b", at)', '+    run("SELECT a FROM b", None)'), False),
        (('-    fail("no room is left")', '+    fail("XXno room is leftXX")'), True),
        (("-    if a < b:", "+    if a <= b:"), False),
    ],
)
def test_a_mutant_of_text_is_one_that_differs_in_a_sentence_or_in_case(lines: tuple[str, ...], text: bool) -> None:
    assert mutants.is_text(lines) is text
