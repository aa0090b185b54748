"""The table of contents in a package's docstring has a line for each module and package in it; no file is too long."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_LINE = re.compile(r"^- ((?:`\w+`(?:, )?)+):", re.MULTILINE)


def _listed(package: Path) -> list[str]:
    docstring = ast.get_docstring(ast.parse(package.read_text())) or ""
    return [name for names in _LINE.findall(docstring) for name in re.findall(r"`(\w+)`", names)]


# A package may have no table: one whose names of files say enough.
TABLES = {
    str(package.parent.relative_to(ROOT / "src")): (package, listed)
    for package in sorted((ROOT / "src/thawd").rglob("__init__.py"))
    if (listed := _listed(package))
}


@pytest.mark.parametrize("name", TABLES)
def test_the_table_of_contents_of_a_package_names_all_of_its_modules(name: str) -> None:
    package, listed = TABLES[name]
    folder = package.parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert sorted(listed) == sorted(modules | packages), f"{package}: add, rename or remove lines"


def test_no_file_has_more_than_500_lines() -> None:
    folders = ("src", "native", "tests", "benchmarks", "tools", "examples")
    found = [file for folder in folders for kind in ("*.py", "*.c", "*.h") for file in (ROOT / folder).rglob(kind)]
    # The demo's data folder `.thawd` contains packages of others.
    files = [file for file in found if not any(part.startswith(".") for part in file.relative_to(ROOT).parts)]
    long = {str(file.relative_to(ROOT)): lines for file in files if (lines := file.read_bytes().count(b"\n")) > 500}
    assert len(files) > 1500 and not long
