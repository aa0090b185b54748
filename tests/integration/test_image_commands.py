"""``thawd image`` as a user has it: a function of Lambda's base image is built, listed, pushed, written and removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests import prestarted
from tests.processes.registry_server import running_registry
from tests.registries import docker_registry
from thawd.deploy.images.run_instruction import Command, run
from thawd.oci.image_store import Images
from thawd.oci.root import Root

_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_HANDLER = """
import os
import six
def handler(event, context):
    task = os.environ["LAMBDA_TASK_ROOT"]
    return {"event": event, "six": six.__version__, "id": context.aws_request_id, "task": task}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a function, a Dockerfile for it, thawd.toml, and a folder for a small image."""
    folder = tmp_path_factory.mktemp("function")
    (folder / "small").mkdir()
    (folder / "app.py").write_text(_HANDLER)
    (folder / "requirements.txt").write_text("six==1.17.0\n")
    (folder / "Dockerfile").write_text(
        f"FROM public.ecr.aws/lambda/python:{_VERSION}\nCOPY requirements.txt ./\n"
        'RUN pip install --root-user-action=ignore -r requirements.txt -t "$LAMBDA_TASK_ROOT"\n'
        'COPY app.py ${LAMBDA_TASK_ROOT}\nCMD ["app.handler"]\n'
    )
    (folder / "thawd.toml").write_text(
        '[functions.Classify]\nhandler = "app.handler"\nrequirements = "requirements.txt"\n'
        'environment = { SECRET = "never in an image" }\n'
    )
    return folder


def thawd(folder: Path, *arguments: str, fails: bool = False) -> str:
    done = prestarted.run(
        [sys.executable, "-m", "thawd", "image", *arguments], cwd=folder, capture_output=True, text=True
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def root(folder: Path, name: str) -> Root:
    images = Images(folder / ".thawd" / "images")
    return images.root(images.names()[name])


class _RuntimeApi(BaseHTTPRequestHandler):
    """Lambda's Runtime API with one event; whoever asks for another is refused, and ends."""

    server: _Events

    def log_message(self, *given: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.answers or self.server.errors:
            self.send_error(410)
            return
        self.send_response(200)
        self.send_header("Lambda-Runtime-Aws-Request-Id", "one")
        self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:123456789012:function:f")
        self.send_header("Lambda-Runtime-Deadline-Ms", "99999999999999")
        self.send_header("Lambda-Runtime-Trace-Id", "Root=1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "8")
        self.end_headers()
        self.wfile.write(b'{"n": 1}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        (self.server.answers if self.path.endswith("/response") else self.server.errors).append(json.loads(body))
        self.send_response(202)
        self.end_headers()


class _Events(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _RuntimeApi)
        self.answers: list[object] = []
        self.errors: list[object] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """The function's process ends with open connections: say nothing."""


@pytest.fixture
def events() -> Iterator[_Events]:
    with _Events() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def invoked(found: Root, events: _Events, work: Path) -> object:
    """Start an image as Lambda does, and return what it answers to one event."""
    env = {**found.env, "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{events.server_port}", "AWS_LAMBDA_LOG_FORMAT": "TEXT"}
    env |= {
        "AWS_LAMBDA_FUNCTION_NAME": "f",
        "AWS_LAMBDA_FUNCTION_VERSION": "1",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
    }
    with pytest.raises(Exception, match="ended with status"):
        run(found.folder, work, Command([*found.entrypoint, *found.cmd], env, found.working_dir), print)
    assert events.errors == []
    [answer] = events.answers
    return answer


ANSWER = {"event": {"n": 1}, "six": "1.17.0", "task": "/var/task", "id": "one"}


def test_a_dockerfile_on_lambdas_base_becomes_an_image_that_answers_by_the_runtime_api(
    folder: Path, events: _Events, tmp_path: Path
) -> None:
    assert "app:1" in thawd(folder, "build", "-t", "app:1", ".")
    found = root(folder, "app:1")
    assert invoked(found, events, tmp_path / "work") == ANSWER
    assert (found.folder / f"var/lang/bin/python{_VERSION}").exists()
    # What wheels expect of the system, whether or not this Python needs it.
    libraries = {path.name for path in (found.folder / "usr").glob("lib*/**/lib*.so.*")}
    assert {"libdl.so.2", "librt.so.1", "libutil.so.1", "libstdc++.so.6", "libgcc_s.so.1"} <= libraries
    assert (found.entrypoint, found.cmd, found.working_dir) == (["/lambda-entrypoint.sh"], ["app.handler"], "/var/task")
    assert "app:1" in thawd(folder, "ls")
    assert json.loads(thawd(folder, "inspect", "app:1"))["config"]["config"]["Cmd"] == ["app.handler"]


def test_an_image_of_a_function_answers_and_is_the_same_bytes_twice(
    folder: Path, events: _Events, tmp_path: Path
) -> None:
    assert "classify:latest" in thawd(folder, "build", "--function", "Classify", "-o", "tar:out.tar")
    assert invoked(root(folder, "classify:latest"), events, tmp_path / "work") == ANSWER
    first = (folder / "out.tar").read_bytes()
    (folder / "app.py").touch()
    shutil.rmtree(folder / ".thawd" / "packages")
    thawd(folder, "build", "--function", "Classify", "-o", "tar:out.tar")
    assert (folder / "out.tar").read_bytes() == first
    assert "never in an image" not in thawd(folder, "inspect", "classify")
    in_task = {path.name for path in (root(folder, "classify:latest").folder / "var/task").iterdir()}
    assert {"app.py", "six.py"} <= in_task and not {"thawd.toml", "out.tar", ".thawd"} & in_task
    assert "there is no function 'other'; functions: Classify" in thawd(
        folder, "build", "--function", "other", fails=True
    )


def test_an_image_is_pushed_fetched_written_and_removed(folder: Path, tmp_path: Path) -> None:
    (folder / "small/Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /x\n")
    thawd(folder, "build", "-t", "small", "-o", "oci:layout", "small")
    with running_registry() as server:
        thawd(folder, "push", "small", f"{server.host}/team/small:1")
        thawd(tmp_path, "pull", f"{server.host}/team/small:1")
        assert "team/small:1" in thawd(tmp_path, "ls")
    thawd(tmp_path, "pull", f"oci:{folder / 'layout'}")
    assert "MB of layers removed" in thawd(tmp_path, "rm", f"{server.host}/team/small:1", str(folder / "layout"))
    assert "no images in" in thawd(tmp_path, "ls")
    assert [path.name for path in (tmp_path / ".thawd/images/blobs/sha256").iterdir()] == []
    assert "there is no image gone" in thawd(folder, "rm", "gone", fails=True)
    assert "names no registry" in thawd(folder, "push", "small", fails=True)
    assert "line 1: FROM nothing: there is no image nothing:latest" in _built_wrong(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("build nothing", "nothing is not a folder"),
        ("build -t A:b small", "'A' is not a repository"),
        ("build -o file small", "write oci:FOLDER or tar:FILE"),
        ("build -o tar: small", "write oci:FOLDER or tar:FILE"),
        ("build --with-snapshot small", "--with-snapshot needs --function"),
        ("build -o tar:nowhere/x.tar small", "its folder is missing"),
        ("build --target x small", "has no stage 'x'"),
        ("push unknown localhost:1/x", "there is no image unknown"),
        ("pull unknown", "name its registry, such as docker.io/unknown"),
        ("pull ./app.py", "is not a tar file"),
        ("inspect sha256:00", "is not a digest"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(folder: Path, arguments: str, message: str) -> None:
    (folder / "small/Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /x\n")
    said = thawd(folder, *arguments.split(), fails=True)
    assert message in said and "Traceback" not in said


def _built_wrong(folder: Path) -> str:
    (folder / "small/Dockerfile").write_text("FROM nothing\n")
    return thawd(folder, "build", "small", fails=True)


def test_the_registry_of_docker_takes_and_gives_images(folder: Path, tmp_path: Path) -> None:
    (folder / "small/Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /debian\n")
    thawd(folder, "build", "-t", "small", "small")
    with docker_registry(tmp_path) as address:
        name = f"{address}/team/small:1"
        pushed = thawd(folder, "push", "small", name).split()[-1]
        assert thawd(tmp_path, "pull", name).split() == [name, pushed]
        assert thawd(tmp_path, "pull", f"{address}/team/small@{pushed}").split()[-1] == pushed
        assert "has no image team/small with the tag" in thawd(tmp_path, "pull", f"{address}/team/small:2", fails=True)
    assert (root(tmp_path, name).folder / "debian").exists()


def test_other_engines_read_what_thawd_writes(folder: Path) -> None:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        pytest.skip("skopeo is not installed")
    (folder / "small/Dockerfile").write_text('FROM scratch\nCOPY Dockerfile /x\nCMD ["x"]\n')
    thawd(folder, "build", "-t", "small", "-o", "oci:other", "small")
    thawd(folder, "build", "-t", "small", "-o", "tar:other.tar", "small")
    for text in (
        f"oci:{folder}/other:small:latest",
        f"docker-archive:{folder}/other.tar",
        f"oci-archive:{folder}/other.tar",
    ):
        done = subprocess.run([skopeo, "inspect", "--config", text], capture_output=True, env=dict(os.environ))
        assert json.loads(done.stdout)["config"]["Cmd"] == ["x"], done.stderr
