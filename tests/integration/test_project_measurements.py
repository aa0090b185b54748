"""`thawd bench --engine` and `thawd tune` in the folder of a project: its functions are measured on private servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from tests.clients import client_of
from tests.integration.conftest import Project, Running

pytest.importorskip("moto", reason="needs the extra `aws`")
pytest.importorskip("samtranslator", reason="needs the extra `aws`")

RUNTIME = f"python{sys.version_info[0]}.{sys.version_info[1]}"
TEMPLATE = f"""
Transform: AWS::Serverless-2016-10-31
Globals: {{Function: {{Runtime: {RUNTIME}, MemorySize: 256, CodeUri: src, Handler: app.handler}}}}
Resources:
  Count:
    Type: AWS::Serverless::Function
    Properties:
      Layers: [!Ref First, !Ref Second]
      LoggingConfig: {{LogFormat: JSON}}
      Environment: {{Variables: {{TABLE: !Ref Rows, TEXT: "a\\"\\\\b\\u007f'"}}}}
  Bound: {{Type: AWS::Serverless::Function, Properties: {{Layers: [!Ref Other]}}}}
  First: {{Type: AWS::Serverless::LayerVersion, Properties: {{ContentUri: first}}}}
  Second: {{Type: AWS::Serverless::LayerVersion, Properties: {{ContentUri: second}}}}
  Other: {{Type: AWS::Serverless::LayerVersion, Properties: {{ContentUri: other}}}}
  Rows: {{Type: AWS::Serverless::SimpleTable}}
"""
CODE = """
import os
import boto3, first, own, second
table = boto3.resource("dynamodb").Table(os.environ["TABLE"])
def handler(event, context):
    row = table.get_item(Key={"id": "1"})["Item"]
    return [row["word"], first.WORD, second.WORD, own.WORD, os.environ["TEXT"], context.function_name]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, Running]]:
    project = Project(tmp_path_factory.mktemp("measured"))
    project.code(TEMPLATE, "template.yaml")
    project.code(CODE, "src/app.py")
    for name, text in {
        "src/own.py": "WORD = 'code'",
        "first/python/first.py": "WORD = 'hidden'",
        "first/python/second.py": "WORD = 'hidden'",
        "first/python/own.py": "WORD = 'hidden'",
        f"first/python/lib/{RUNTIME}/site-packages/first.py": "WORD = 'first'",
        "second/python/second.py": "WORD = 'second'",
        "other/bin/tool": "x",
    }.items():
        project.code(text, name)
    with project.up("--port", "0") as running:
        running.until_said("stack     ")
        client_of(running.url, "dynamodb").put_item(
            TableName=_table(running), Item={"id": {"S": "1"}, "word": {"S": "row"}}
        )
        yield project, running


def _table(running: Running) -> str:
    [name] = client_of(running.url, "dynamodb").list_tables()["TableNames"]
    return str(name)


def test_a_projects_function_is_measured_with_each_kind_of_start_with_its_layers_and_its_table(
    served: tuple[Project, Running],
) -> None:
    project, running = served
    name = next(each for each in running.status()["functions"] if "Count" in each)
    expected = json.dumps(["row", "first", "second", "code", "a\"\\b\x7f'", name])
    done = project.command(
        *("bench", "Count", "--engine", "cold", "--engine", "thaw", "-n", "4", "--expect-text", expected),
        *("--json", "out.json"),
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads((project.root / "out.json").read_text())["runs"]
    assert [run["label"] for run in runs] == ["cold", "thaw"]
    assert list(project.data.glob("bench-*")) == []


def test_the_memory_of_a_projects_function_is_tuned(served: tuple[Project, Running]) -> None:
    project, _ = served
    done = project.command(
        "tune", "Count", "--memory", "256", "--runs", "2", "--starts", "1", "--no-cpu-limits", "--json"
    )
    assert done.returncode == 0, done.stderr
    [size] = json.loads(done.stdout)["sizes"]
    assert size["measured"] is not None, done.stdout
    assert size["measured"]["restored_ms"] > 0


@pytest.mark.parametrize(
    ("target", "said"),
    [("Bound", "bin/tool, and functions of a private server have no /opt"), ("Nothing", "no function 'Nothing'")],
)
def test_a_function_that_a_private_server_could_not_run_as_it_is_is_refused(
    served: tuple[Project, Running], target: str, said: str
) -> None:
    done = served[0].command("bench", target, "--engine", "cold", "-n", "1")
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
