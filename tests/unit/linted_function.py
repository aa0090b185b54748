"""A function's module, imported and examined by the snapshot lint in a separate process, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SECRET = "AbCdEf0123456789"

VARIABLES = {
    "API_TOKEN": SECRET,
    "SERVICE_KEY": SECRET[::-1],
    "MODEL_KEY": "models/resnet50.onnx",
    "STAGE_KEY": "production",
    "STAGE": "production",
    "SHORT_KEY": "1234",
    "BUCKET": "pictures-of-cats",
    "TENANT": "99999999-2222-4333-8444-555555555555",
    "AWS_LAMBDA_LOG_STREAM_NAME": "2026/11/20/[$LATEST]0123",
    "AWS_LAMBDA_FUNCTION_NAME": "classify",
}

SEARCH = """
    import json, os, sys
    sys.path.insert(0, os.getcwd())
    import app
    from thawd.snapshot.lint import search as lint
    found = lint.findings(lint.user_modules(os.getcwd()), **json.loads(sys.argv[1]))
    print(json.dumps([[list(one) for one in found], lint.describe(found)]))
    sys.stdout.flush()
    os._exit(0)
"""


class Found(NamedTuple):
    """A finding, with the parts that tests compare."""

    rule: str
    level: str
    where: str
    what: str


def search(
    folder: Path, code: str, *, python: str = sys.executable, options: str = "{}", **variables: str
) -> tuple[list[Found], str]:
    """Return the findings for a function whose module is `code`, and the text for users."""
    (folder / "app.py").write_text(textwrap.dedent(code))
    told, complained = folder / "told", folder / "complained"
    with told.open("wb") as out, complained.open("wb") as err:
        process = subprocess.Popen(
            [python, "-B", "-c", textwrap.dedent(SEARCH), options],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1", **variables},
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    try:
        status = process.wait(300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # kill child processes that cases start
    said = complained.read_text()
    assert (status, said) == (0, ""), (status, said)
    found, text = json.loads(told.read_text())
    return [Found(*one[:4]) for one in found], text
