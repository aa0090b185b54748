"""The pytest plugin: a project's own tests run against a private server, and change nothing of the project's."""

from __future__ import annotations

import subprocess
import sys

from .conftest import Project

APP = """
import os
import thawd

PID = os.getpid()

def classify(event, context):
    for record in event["Records"]:
        key = record["s3"]["object"]["key"]
        print("classifies", key)
        thawd.table("labels").put(key, {"bytes": len(thawd.bucket("uploads").read(key))})

def double(event, context):
    return {"doubled": event["n"] * 2, "init_pid": PID, "pid": os.getpid()}
"""
CONFIG = """
[functions.classify]
handler = "app.classify"
[functions.double]
handler = "app.double"
[buckets.uploads]
notify = [{ function = "classify" }]
[tables.labels]
"""
TESTS = """
import pytest
from thawd.pytest_plugin import FunctionFailed

def test_a_file_is_counted(bucket, table, capture_logs):
    bucket("uploads").write("deep/a.png", b"12345")
    assert table("labels").wait_for("deep/a.png") == {"bytes": 5}
    assert bucket("uploads").keys() == ["deep/a.png"]
    assert capture_logs.wait_for("classify", "deep") == "classifies deep/a.png"

def test_logs_and_objects_of_other_tests_are_not_there(invoke, bucket, capture_logs, thawd):
    assert bucket("uploads").keys() == []
    assert capture_logs.lines("double") == []
    assert invoke("double", {"n": 4})["doubled"] == 8
    assert thawd.url.startswith("http://127.0.0.1:")

def test_a_failure_has_type_message_and_trace(invoke):
    with pytest.raises(FunctionFailed, match="KeyError") as failed:
        invoke("double", {})
    assert failed.value.message == "'n'"
    assert "app.py" in failed.value.trace
    with pytest.raises(AssertionError, match="functions: classify, double"):
        invoke("dubble", {})
"""


def test_a_projects_tests_use_the_fixtures_and_change_nothing_of_the_project(project: Project) -> None:
    project.code(APP)
    project.config(CONFIG)
    project.code(TESTS, "test_app.py")
    # pytest finds the plugin by itself, because thawd is installed.
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_app.py"]
    done = subprocess.run(pytest, cwd=project.root, capture_output=True, text=True, timeout=300, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    assert not (project.root / "uploads").exists()
    assert not list(project.data.glob("testing-*"))
    assert not (project.data / "tables").exists()
