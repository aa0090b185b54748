"""Everything that users meet is documented, and the pages mention only things that exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import click
import pytest

from thawd import errors
from thawd.cli.program import main
from thawd.telemetry import metrics

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [
    *PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "SPECIFICATION.md", "CHANGELOG.md")),
    *(
        page
        for folder in ("native", "benchmarks", "tests", "examples")
        for page in sorted((ROOT / folder).rglob("README.md"))
    ),
]
PROSE = "\n".join(page.read_text() for page in PAGES)
SOURCES = [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "native").glob("*.[ch]"))]


# Each test takes all names, pages or files: one test for each would take longer than its check.


def undocumented(names: Iterable[str]) -> list[str]:
    return [name for name in names if f"`{name}`" not in PROSE]


def test_every_counter_is_documented() -> None:
    assert undocumented(f"thawd_{name}_total" for name in metrics.COUNTERS) == []


def test_every_reason_of_a_slower_start_is_documented() -> None:
    assert undocumented(["thawd_fallbacks_total", *metrics.Fallback]) == []


def test_every_distribution_and_gauge_is_documented() -> None:
    names = [
        *(f"thawd_{name}_seconds" for name in metrics.DISTRIBUTIONS),
        *(f"thawd_{name}" for name in (*metrics.GAUGES, *metrics.EVENT_GAUGES, *metrics.SOURCE_GAUGES)),
        *(f"thawd_{name}_total" for name in (*metrics.EVENT_COUNTERS, *metrics.SOURCE_COUNTERS)),
    ]
    assert undocumented(names) == []


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_has_help_and_is_documented(name: str) -> None:
    command = main.commands[name]
    assert command.help
    assert f"thawd {name}" in PROSE
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts} has no help"


def test_every_error_of_the_api_has_a_docstring_and_a_status() -> None:
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.ThawdError):
            assert error.__doc__
            assert 400 <= error.status <= 599


def test_tests_named_on_the_pages_exist() -> None:
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    code = "\n".join(files.values())
    # Tutorials, and the page about tests, are left out: they tell readers to write tests of their own.
    own = [page for page in PAGES if page.parent.name == "tutorials" or page.name == "test.md"]
    for page in (*(page for page in PAGES if page not in own), ROOT / "SPECIFICATION.md"):
        for name in re.findall(r"\btest_\w+(?:\.py)?", page.read_text()):
            assert name in files or f"def {name}(" in code, f"{name}, named in {page.name}, does not exist"


def test_each_promise_has_a_number_of_its_own() -> None:
    numbers = Counter(re.findall(r"^\| ([A-Z]+\d+) \|", (ROOT / "SPECIFICATION.md").read_text(), re.MULTILINE))
    assert len(numbers) > 300
    assert [number for number, count in numbers.items() if count > 1] == []


def test_files_are_of_a_size_that_can_be_read() -> None:
    assert [source for source in SOURCES if source.read_bytes().count(b"\n") > 800] == []


def test_the_package_imports_nothing_eagerly() -> None:
    import subprocess
    import sys

    code = "import sys; before = set(sys.modules); import thawd; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in eval(done.stdout)}
    assert not loaded & {"asyncio", "msgspec", "uvicorn", "click", "json", "sqlite3"}


OWN = ROOT / "src" / "thawd"


def test_every_module_and_folder_stands_on_the_map() -> None:
    page = (ROOT / "docs" / "explanation" / "design.md").read_text()
    for name in sorted({entry.name for entry in OWN.iterdir() if not entry.name.startswith(("_", "."))}):
        if name.endswith(".py"):
            assert f"`{name}`" in page or f"`src/thawd/{name}`" in page, name
        elif (OWN / name).is_dir():
            assert f"`src/thawd/{name}/`" in page, name


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them from the text."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower().strip()).replace(" ", "-") for title in plain}


def test_links_of_the_pages_lead_to_files_and_headings() -> None:
    for page in LINKED:
        for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
            if "://" in link:
                continue
            target = (page.parent / link).resolve() if link else page
            assert target.is_file(), f"{link} in {page}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), f"{link}#{anchor} in {page}"


def test_decisions_are_numbered_without_holes_and_listed() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    listed = (ROOT / "docs" / "decisions" / "index.md").read_text()
    for number, page in enumerate(pages, 1):
        assert page.name.startswith(f"{number:04}-")
        assert page.read_text().startswith(f"# {number}. ")
        assert f"]({page.name})" in listed


@pytest.mark.parametrize("kind", ["tutorials", "how-to", "reference", "explanation"])
def test_every_page_is_listed_on_the_index_of_its_kind(kind: str) -> None:
    listed = (ROOT / "docs" / kind / "index.md").read_text()
    for page in (ROOT / "docs" / kind).glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in listed, page.name


def command_lines(page: Path) -> list[list[str]]:
    """Return the words after ``thawd`` of the command lines on a page that begin with an existing command."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"(?:`|\$ |^ {4}|; |&& |\.venv/bin/)thawd ([a-z][^`\n#|;]*)", text, re.MULTILINE)
    return [words for line in lines if (words := line.split())[0] in main.commands]


def test_command_lines_of_the_pages_have_options_that_there_are() -> None:
    for page, words in [(each, words) for each in PAGES for words in command_lines(each)]:
        command: click.Command = main
        rest = words
        while isinstance(command, click.Group) and rest and rest[0] in command.commands:
            command, rest = command.commands[rest[0]], rest[1:]
        known = {"-h", "--help", *(name for parameter in command.params for name in parameter.opts)}
        given = {word.partition("=")[0].rstrip(",.):]") for word in rest if re.match(r"--?[a-zA-Z]", word)}
        assert given <= known or command.name == "thaw", f"{' '.join(words)} in {page}"
