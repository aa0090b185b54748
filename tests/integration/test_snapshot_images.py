"""Images of thawd with a function and its snapshot: where they start, the function is thawed, or they say why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests import prestarted
from thawd.oci.image_store import Images
from thawd.oci.root import Root
from thawd.snapshot.engine import unavailable

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

APP = """
import os
with open("/var/inits", "a") as file:
    file.write("init")
pid = os.getpid()

def handler(event, context):
    return [pid, os.environ["GREETING"], os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"]]
"""
CONFIG = """
[functions.hello]
handler = "app.handler"
environment = { GREETING = "\\u00e9 \\"quoted\\"" }

[functions.other]
handler = "app.handler"
python = "3.9"
url = { auth_type = "NONE" }

[routes]
"POST /hello" = "hello"
"POST /other" = "other"
"""
# Starts the image as a container engine does: in namespaces of its own, with the image's variables and entry point.
START = """
import json, sys
from pathlib import Path
from thawd.deploy.images.run_instruction import Command, run
root, work, env, arguments = json.loads(sys.argv[1])
run(Path(root), Path(work), Command(arguments, env, "/var/task"), lambda line: print(line, flush=True))
"""


def thawd(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thawd", *arguments]
    return prestarted.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


def build(folder: Path) -> Root:
    done = thawd(folder, "image", "build", "--function", "hello", "--with-snapshot", "-t", "hello:1")
    assert done.returncode == 0, done.stderr
    images = Images(folder / ".thawd" / "images")
    return images.root(images.names()["hello:1"])


@contextmanager
def started(root: Root, work: Path, lines: list[str]) -> Iterator[str]:
    """Start a container of an image; yields the server's URL. It ends with the block."""
    request = json.dumps([str(root.folder), str(work), root.env, [*root.entrypoint, "--port", "0"]])
    with subprocess.Popen([sys.executable, "-c", START, request], stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(300, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if line.startswith("at most"):  # the last line of the greeting
                    break
            yield next(line.split()[-1] for line in lines if line.startswith("thawd serves"))
        finally:
            watchdog.cancel()
            process.kill()


def invoked(url: str) -> Any:
    with urlopen(Request(f"{url}/hello", b"{}", {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


def test_a_container_answers_thawed_from_its_start_or_says_why_not(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "app.py").write_text(APP)
    (project / "thawd.toml").write_text(CONFIG)
    root = build(project)
    lines: list[str] = []
    with started(root, tmp_path / "first", lines) as url:
        assert invoked(url)[1:] == ['\u00e9 "quoted"', "snap-start"], lines
    assert not (tmp_path / "first" / "var/inits").exists()
    assert (tmp_path / "first" / "opt/thawd/snapshots.key").stat().st_mode & 0o777 == 0o600
    config = (root.folder / "opt/thawd/thawd.toml").read_text()
    assert "other" not in config and "POST /hello" in config and str(tmp_path) not in config

    # The second start: another file, as after an update of the interpreter.
    [library] = (root.folder / "var/lang/lib").glob("python3*/json/decoder.py")
    mode, text = library.stat().st_mode, library.read_text()
    library.chmod(mode | 0o200)
    library.write_text(f"{text}# changed\n")
    lines = []
    with started(root, tmp_path / "second", lines) as url:
        assert invoked(url)[1] == '\u00e9 "quoted"'
    assert (tmp_path / "second" / "var/inits").read_text() == "init"
    assert "json/decoder.py has another content" in "".join(lines)
    library.write_text(text)

    # All layers but the snapshot's are made again with the same bytes.
    images = Images(project / ".thawd" / "images")
    first = images.image(root.digest).manifest.layers
    os.utime(project / "app.py")
    again = images.image(build(project).digest).manifest.layers
    assert [layer.digest for layer in first[:-1]] == [layer.digest for layer in again[:-1]]
    assert first[-1].digest != again[-1].digest


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ('url = { auth_type = "NONE" }', "but hello also has url"),
        ("snapshot = false", "the function hello has snapshot = false"),
    ],
)
def test_what_cannot_be_frozen_is_refused_with_the_reason(options: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "thawd.toml").write_text(f'[functions.hello]\nhandler = "app.handler"\n{options}\n')
    done = thawd(tmp_path, "image", "build", "--function", "hello", "--with-snapshot")
    assert done.returncode == 1
    assert why in done.stderr
