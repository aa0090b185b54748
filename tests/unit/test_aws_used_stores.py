"""Which buckets and tables a function's code uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from thawd.deploy.aws.used_stores import ANY, NOTIFYING, Uses, read_uses


def uses_of(folder: Path, source: str, **modules: str) -> Uses:
    (folder / "app.py").write_text(source)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return read_uses(folder, "app.handler")


def test_a_call_on_a_store_is_that_operation_and_no_other(tmp_path: Path) -> None:
    found = uses_of(
        tmp_path, 'import thawd\ndef handler(e, c):\n thawd.table("rows").put(thawd.bucket("in").read("k"))\n'
    )
    assert (found.buckets, found.tables) == ({"in": ("read",)}, {"rows": ("put",)})


def test_a_store_in_a_variable_that_others_may_import_may_be_used_for_everything(tmp_path: Path) -> None:
    found = uses_of(tmp_path, 'from thawd import table as t\nrows = t("rows")\ndef handler(e, c): rows.get("a")\n')
    assert found.tables == {"rows": ("delete", "get", "put", "scan")}


@pytest.mark.parametrize(
    "source",
    [
        'rows: object = table("rows")\n',
        'try:\n    rows = table("rows")\nfinally:\n    pass\n',
        'class Stores:\n    rows = table("rows")\n',
        'def begin():\n    global rows\n    rows = table("rows")\n',
    ],
)
def test_a_store_that_other_modules_can_reach_may_be_used_for_everything(tmp_path: Path, source: str) -> None:
    found = uses_of(tmp_path, f'from thawd import table\n{source}def handler(e, c): rows.get("a")\n')
    assert found.tables == {"rows": ("delete", "get", "put", "scan")}


def test_a_store_in_a_local_variable_is_used_for_what_is_called_on_it(tmp_path: Path) -> None:
    kept = 'from thawd import table\ndef handler(e, c):\n rows = table("rows")\n rows.put("a", {})\n return %s\n'
    assert uses_of(tmp_path, kept % 'rows.get("b")').tables == {"rows": ("get", "put")}
    assert uses_of(tmp_path, kept % "rows").tables == {"rows": ("delete", "get", "put", "scan")}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('bucket, key = r["s3"]["bucket"]["name"], "k"', NOTIFYING),
        ('bucket = r["s3"]["bucket"]["name"]', NOTIFYING),
        ('bucket = r["s3"]["bucket"]["name"] or "in"', ANY),
        ('bucket = r["s3"]["bucket"]["name"]; bucket = r["to"]', ANY),
    ],
)
def test_the_bucket_of_an_event_is_one_that_notifies_the_function(tmp_path: Path, line: str, name: str) -> None:
    found = uses_of(tmp_path, f'import thawd\ndef handler(r, c):\n {line}\n thawd.bucket(bucket).read("k")\n')
    assert found.buckets == {name: ("read",)}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('import thawd as x\nNAME = "in"\ndef handler(e, c): x.bucket(NAME).read("k")\n', "in"),
        ('import thawd as x\nNAME = "in"\nNAME = "out"\ndef handler(e, c): x.bucket(NAME).read("k")\n', ANY),
        ('import thawd as x\nNAME = "in"\ndef handler(NAME, c): x.bucket(NAME).read("k")\n', ANY),
        ('import thawd\ndef handler(e, c): thawd.bucket(e["bucket"]).read("k")\n', ANY),
        ('import thawd as x\nNAME = "in"\nfrom names import NAME\ndef handler(e, c): x.bucket(NAME).read("k")\n', ANY),
        ('import thawd as x\nNAME = "in"\nfrom names import *\ndef handler(e, c): x.bucket(NAME).read("k")\n', ANY),
    ],
)
def test_a_name_counts_only_if_it_can_have_no_other_value(tmp_path: Path, source: str, name: str) -> None:
    assert uses_of(tmp_path, source).buckets == {name: ("read",)}


def test_the_module_thawd_itself_passed_on_may_be_used_for_everything(tmp_path: Path) -> None:
    found = uses_of(tmp_path, "import thawd\ndef handler(e, c): return work(thawd)\n")
    assert found.buckets == {ANY: ("path", "read", "write")}
    assert ANY in found.tables


def test_only_modules_that_the_handler_imports_count(tmp_path: Path) -> None:
    found = uses_of(
        tmp_path,
        "from rows import save\ndef handler(e, c): save()\n",
        rows='import thawd\ndef save(): thawd.table("rows").put("k", {})\n',
        other='import boto3, thawd\nthawd.bucket("other").write("k", b"")\n',
    )
    assert (found.buckets, found.tables, found.has_boto3) == ({}, {"rows": ("put",)}, False)


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\ndef handler(e, c): importlib.import_module(e)\n",
        "import sys\nsys.path.append('lib')\nimport other\ndef handler(e, c): pass\n",
    ],
)
def test_all_modules_count_where_imports_are_computed(tmp_path: Path, source: str) -> None:
    found = uses_of(tmp_path, source, other='import boto3, thawd\nthawd.bucket("other").write("k", b"")\n')
    assert (found.buckets, found.has_boto3) == ({"other": ("write",)}, True)


def test_modules_of_packages_are_followed_through_relative_imports(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("from . import inner\n")
    (tmp_path / "pack" / "inner.py").write_text('from thawd import table\ntable("rows").scan()\n')
    assert uses_of(tmp_path, "import pack\ndef handler(e, c): pass\n").tables == {"rows": ("scan",)}


@pytest.mark.parametrize(
    ("source", "attribute", "value"),
    [
        ("async def handler(e, c): pass\n", "is_coroutine", True),
        ("try:\n async def handler(e, c): pass\nfinally: pass\n", "is_coroutine", True),
        ("async def work(e, c): pass\nhandler = work\n", "is_coroutine", True),
        ("from other import work as handler\n", "is_coroutine", True),
        ("async def work(e, c): pass\ndef handler(e, c): return asyncio.run(work(e, c))\n", "is_coroutine", False),
        ("class C:\n async def handler(e, c): pass\ndef handler(e, c): pass\n", "is_coroutine", False),
        ("def handler(e, c):\n yield b''\n", "has_generator", True),
        ("def handler(e, c):\n def inner():\n  yield 1\n return list(inner())\n", "has_generator", False),
        ("from thawd import models\ndef handler(e, c): pass\n", "other_names", ("models",)),
        ("import thawd.models\ndef handler(e, c): pass\n", "other_names", ("models",)),
    ],
)
def test_what_lambda_cannot_run_is_found(tmp_path: Path, source: str, attribute: str, value: object) -> None:
    found = uses_of(tmp_path, source, other="async def work(e, c): pass\n")
    assert getattr(found, attribute) == value
