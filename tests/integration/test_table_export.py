"""`thawd table` as an exporter: the contents of the files, that they are complete or absent, and constant memory
use."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from tests import prestarted
from tests.integration.conftest import Project
from thawd.cli.table_export import export
from thawd.stores.tables.sqlite import SqliteTable

ITEMS: dict[str, dict[str, object]] = {
    "a.png": {"label": "cat", "p": 0.5, "n": 1, "ok": True, "box": [1, 2], "late": None},
    "b\n.png": {"label": "dög\r", "p": 1, "n": -(1 << 62), "mixed": "x", "_key": "own", "key": "too"},
    "c": {"p": 0.1, "mixed": 7, "big": 1 << 70, "exact": (1 << 53) + 1, "box": {"x": None}},
    "d": {"exact": 0.5, "": "no name"},
}


@pytest.fixture
def filled(project: Project) -> Project:
    """A project with a table that has items of many kinds."""
    project.code("def handler(event, context):\n    return None\n")
    project.config(
        """
        [functions.f]
        handler = "app.handler"

        [tables.labels]
        """
    )
    fill(project.data / "tables" / "labels.db", {key: json.dumps(item).encode() for key, item in ITEMS.items()})
    return project


def fill(path: Path, items: dict[str, bytes]) -> None:
    store = SqliteTable("labels", path)

    async def put_all() -> None:
        await asyncio.gather(*(store.put(key, item) for key, item in items.items()))

    asyncio.run(put_all())
    store.close()


@pytest.mark.parametrize("being_made", [False, True])
def test_a_table_that_is_not_made_yet_has_no_items(filled: Project, being_made: bool) -> None:
    # Given a table with no file yet, because no item was put, or one that a server is creating at this moment
    file = filled.data / "tables" / "labels.db"
    file.unlink()
    if being_made:
        file.touch()
    # Then there are no items, and a message says so
    for asked in ((), ("--key", "a.png")):
        done = filled.command("table", "labels", "--json", *asked)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.startswith("note: no items yet: ") and str(file) in done.stderr
    done = filled.command("table", "labels", "--format", "csv", "--output", "out.csv")
    assert done.returncode == 0, done.stderr
    assert (filled.root / "out.csv").read_text() == "key\n"
    assert file.exists() == being_made


def test_json_lines_and_csv_are_what_is_printed(filled: Project) -> None:
    for kind, flag in (("jsonl", "--json"), ("csv", "--csv")):
        done = filled.command("table", "labels", "--format", kind, "--output", f"out.{kind}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", f"out.{kind}: 4 items\n")
        printed = prestarted.run(
            [sys.executable, "-m", "thawd", "table", "labels", flag], cwd=filled.root, capture_output=True, check=True
        )
        named = prestarted.run(
            [sys.executable, "-m", "thawd", "table", "labels", "--format", kind],
            cwd=filled.root,
            capture_output=True,
            check=True,
        )
        assert (filled.root / f"out.{kind}").read_bytes() == printed.stdout == named.stdout
    rows = [json.loads(line) for line in (filled.root / "out.jsonl").read_text().splitlines()]
    assert [row["_key"] for row in rows] == list(ITEMS)
    with open(filled.root / "out.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["key"] for row in table] == list(ITEMS)
    assert [row["label"] for row in table] == ["cat", "dög\r", "", ""]


def test_columns_of_parquet_have_the_type_that_holds_all_their_values_exactly(filled: Project) -> None:
    done = filled.command("table", "labels", "--format", "parquet", "-o", "out.parquet")
    assert done.returncode == 0, done.stderr
    table = parquet.read_table(filled.root / "out.parquet")
    kinds = {field.name: (str(field.type), field.metadata) for field in table.schema}
    plain, as_json = None, {b"thawd": b"json"}
    assert kinds["_key"] == ("string", plain)
    assert kinds["label"] == ("string", plain)
    assert kinds["p"] == ("double", plain)
    assert kinds["n"] == ("int64", plain)
    assert kinds["ok"] == ("bool", plain)
    assert kinds["late"] == ("string", plain)
    for name in ("box", "mixed", "big", "exact"):
        assert kinds[name] == ("string", as_json), name
    columns = table.to_pydict()
    assert columns["_key"] == list(ITEMS)
    assert columns["p"] == [0.5, 1.0, 0.1, None]
    assert columns["n"] == [1, -(1 << 62), None, None]
    assert columns["box"] == ["[1, 2]", None, '{"x": null}', None]
    assert columns["mixed"] == [None, '"x"', "7", None]
    assert columns["big"] == [None, None, str(1 << 70), None]
    assert columns["exact"] == [None, None, str((1 << 53) + 1), "0.5"]
    assert columns["_key_"] == [None, "own", None, None]
    assert columns["key"] == [None, "too", None, None]
    assert columns[""] == [None, None, None, "no name"]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_an_empty_table_is_a_file_of_no_rows(filled: Project, kind: str) -> None:
    fill(filled.data / "tables" / "labels.db", {})
    done = filled.command("table", "labels", "--key", "none", "--format", kind, "-o", "out")
    assert done.stderr == "out: 0 items\n"
    if kind == "parquet":
        assert parquet.read_table(filled.root / "out").schema.names == ["_key"]
    else:
        assert (filled.root / "out").read_bytes() == (b"key\n" if kind == "csv" else b"")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_file_that_could_not_be_completed_is_as_before(tmp_path: Path, kind: str) -> None:
    # Given an older export, and rows that end with an error
    output = tmp_path / "out"
    output.write_text("as before")

    def rows() -> object:
        yield {"_key": "a"}
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        export(rows(), output, kind=kind, key_name="_key")  # type: ignore[arg-type]
    assert output.read_text() == "as before"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_one_item_and_so_many_are_exported_alone(filled: Project) -> None:
    assert filled.command("table", "labels", "--format", "jsonl", "-o", "one", "--key", "c").returncode == 0
    assert json.loads((filled.root / "one").read_text())["_key"] == "c"
    assert filled.command("table", "labels", "--format", "csv", "-o", "two", "-n", "2").stderr == "two: 2 items\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--format", "parquet"), "name a file with --output"),
        (("--output", "x"), "choose the format of the file with --format"),
        (("--json", "--csv"), "exclude each other"),
        (("--json", "--format", "csv"), "exclude each other"),
        (("--format", "jsonl", "--output", "."), "is not a regular file"),
        (("--format", "jsonl", "--output", "none/x"), "No such file or directory"),
    ],
)
def test_what_cannot_be_is_told(filled: Project, arguments: tuple[str, ...], said: str) -> None:
    done = filled.command("table", "labels", *arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_library_is_told_with_its_extra(filled: Project) -> None:
    # Given an interpreter that does not find pyarrow
    script = (
        "import importlib.util, sys; found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'pyarrow' else found(name, *a)\n"
        "from thawd.cli import program as cli; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "table", "labels", "--format", "parquet", "-o", "x"],
        cwd=filled.root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "pip install 'thawd[parquet]'" in done.stderr


_MEASURED = """
import sys
from pathlib import Path
from thawd.cli.table_export import export

def rows(count):
    for i in range(count):
        yield {"_key": str(i), "text": str(i) * 200, "p": i / 7}

export(rows(int(sys.argv[1])), Path(sys.argv[2]), kind=sys.argv[3], key_name="_key")
# Not getrusage, whose peak is also that of who started us
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_memory_does_not_grow_with_the_table(tmp_path: Path, kind: str) -> None:
    def peak_mib(count: int) -> float:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, str(count), str(tmp_path / "out"), kind],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        return int(done.stdout) / 1024

    few = peak_mib(40_000)
    many = peak_mib(120_000)  # 100 MB of additional rows
    assert many - few < 24, (few, many)
    if kind == "parquet":
        assert parquet.ParquetFile(tmp_path / "out").metadata.num_rows == 120_000
