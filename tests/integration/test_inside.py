"""What a handler sees inside its environment."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Project
from thawd.snapshot.disk.temporary_folders import in_tmp

CODE = """
import os, subprocess, sys

def handler(event, context):
    child = subprocess.run([sys.executable, "-c", "import os; print(sorted(os.environ))"], stdout=subprocess.PIPE)
    pwd, cwd = os.environ["PWD"], os.getcwd()
    return {"variables": sorted(os.environ), "pwd": pwd, "cwd": cwd, "child": child.stdout.decode()}
"""
# Source: AWS Lambda developer guide, "Defined runtime environment variables".
LAMBDA = (  # noqa: SIM905 - a list of quoted words reads worse
    "_HANDLER _X_AMZN_TRACE_ID AWS_DEFAULT_REGION AWS_REGION AWS_EXECUTION_ENV AWS_LAMBDA_FUNCTION_NAME "
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE AWS_LAMBDA_FUNCTION_VERSION AWS_LAMBDA_INITIALIZATION_TYPE "
    "AWS_LAMBDA_LOG_GROUP_NAME AWS_LAMBDA_LOG_STREAM_NAME AWS_LAMBDA_LOG_FORMAT LAMBDA_TASK_ROOT LAMBDA_RUNTIME_DIR "
    "LANG LD_LIBRARY_PATH PATH PWD TZ"
).split()
DOCUMENTED = ["OMP_NUM_THREADS", "ORT_DISABLE_TELEMETRY"]


@pytest.fixture(scope="module")
def outside() -> Iterator[Project]:
    """A project outside /tmp, so that each environment has its own /tmp."""
    root = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="thawd-test-"))
    try:
        yield Project(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.skipif(in_tmp([Path(__file__)]) is not None, reason="thawd itself lies in /tmp")
def test_an_environment_has_only_the_variables_that_are_documented(outside: Project) -> None:
    outside.code(CODE)
    outside.config(
        """
        [functions.thawed]
        handler = "app.handler"
        environment = { OWN = "1" }
        [functions.cold]
        handler = "app.handler"
        snapshot = false
        environment = { OWN = "1" }
        """
    )
    with outside.up(environ={"VIRTUAL_ENV": "/x", "SECRET_OF_THE_SERVER": "1", "TMPDIR": "/var/tmp"}) as server:
        for name in ("thawed", "cold"):
            answer, error = server.invoke(name, {})
            assert error is None, answer
            own = [each for each in answer["variables"] if not each.startswith("THAWD_")]
            assert set(own) - set(LAMBDA) - set(DOCUMENTED) - {"LC_CTYPE"} == {"OWN"}
            assert answer["pwd"] == answer["cwd"]
            assert "SECRET_OF_THE_SERVER" not in answer["child"]
