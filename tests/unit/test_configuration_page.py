"""The page ``configuration.md``: thawd accepts its examples unchanged, and every section has a table of options.

``tests/architecture/test_reference.py`` checks that the tables match the code.
"""

from __future__ import annotations

import re
from pathlib import Path

from thawd import config
from thawd.resources import Cors, Destination, Function, FunctionUrl, HttpApi, Notification, Route, Schedule, SqsSource

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def blocks(page: str) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)


def test_the_example_of_the_documentation_is_read_as_it_stands(tmp_path: Path) -> None:
    example = next(block for block in blocks(PAGE.read_text()) if "[functions.classify]" in block)
    (tmp_path / "requirements.txt").touch()

    (tmp_path / "thawd.toml").write_text(example)
    settings = config.load(tmp_path / "thawd.toml", environ={})

    classify = settings.functions["classify"]
    assert classify == Function(
        name="classify",
        handler="classify.handler",
        code=tmp_path,
        requirements=tmp_path / "requirements.txt",
        python="3.11",
        memory_mb=512,
        timeout_s=30,
        environment={"LABELS": "labels.txt"},
        reserved_concurrency=4,
        provisioned_concurrency=1,
        snapshot=True,
        on_success=Destination("table", "labels"),
        on_failure=Destination("bucket", "failed"),
    )
    assert settings.buckets["uploads"].path == tmp_path / "uploads"
    assert settings.buckets["uploads"].notify == (Notification(function="classify", suffix=".png"),)
    assert settings.buckets["failed"].path == tmp_path / "failed"
    assert settings.routes[1] == Route(key="GET /items/{id}", function="classify")
    assert settings.tables["labels"].path == tmp_path / ".thawd" / "tables" / "labels.db"


def test_every_section_has_its_table_of_options() -> None:
    made = re.findall(r"<!-- made: options (\S+) -->", PAGE.read_text())

    assert sorted(made) == sorted({option.key.rpartition(".")[0] for option in config.describe_options()})


def test_options_are_the_fields_of_the_structs() -> None:
    keys = {option.key for option in config.describe_options()}

    for section, struct in (
        ("server", config.ServerSettings),
        ("functions.NAME", Function),
        ("buckets.NAME.notify[]", Notification),
        ("functions.NAME.url", FunctionUrl),
        ("functions.NAME.sources[]", SqsSource),
        ("schedules.NAME", Schedule),
        ("http", HttpApi),
        ("http.cors", Cors),
    ):
        for field in struct.__struct_fields__:
            assert f"{section}.{field}" in keys or field == "name"


def test_every_example_of_the_documentation_is_free_of_mistakes(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    functions = "".join(f"[functions.{name}]\nhandler = 'a.b'\n" for name in ("classify", "forget", "lookup"))

    for block in blocks(PAGE.read_text()):
        text = block if "[functions." in block else functions + block
        if "table:labels" in block and "[tables.labels]" not in block:
            text += "[tables.labels]\n"
        (tmp_path / "thawd.toml").write_text(text)
        assert config.load(tmp_path / "thawd.toml", environ={"THAWD_KEY": "a-long-key", "HOME": str(tmp_path)})
