"""Code, runtime and layers at Lambda's paths (`server.paths = "lambda"`): what handlers see, whatever starts them.

Source: AWS Lambda developer guide, "Defined runtime environment variables", "Working with layers".
"""

from __future__ import annotations

import io
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Project, Running, eventually
from thawd.snapshot.disk.places import make_mount_points
from thawd.snapshot.disk.temporary_folders import in_tmp

pytestmark = [
    pytest.mark.skipif(make_mount_points() is not None, reason=str(make_mount_points())),
    pytest.mark.skipif(in_tmp([Path(__file__)]) is not None, reason="thawd itself lies in /tmp"),
]

CODE = """
import mmap, os, random, subprocess, sys, traceback
import part

loaded = random.random()
with open("data.bin", "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

def write(path):
    try:
        open(path, "w")
    except OSError as error:
        return error.strerror

def handler(event, context):
    if event == "fail":
        raise ValueError("broken")
    return {
        "version": part.VERSION,
        "mapped": mapped[:].decode(),
        "read": open("data.bin").read(),
        "loaded": loaded,
        "files": [__file__, part.__file__],
        "cwd": [os.getcwd(), os.environ["PWD"], os.environ["LAMBDA_TASK_ROOT"], sys.path[0]],
        "runtime": [os.environ["LAMBDA_RUNTIME_DIR"], "bootstrap.py" in os.listdir("/var/runtime")],
        "writes": [write("/var/task/new"), write("new"), write("/var/runtime/new")],
        "child": subprocess.run(["cat", "/var/task/data.bin"], stdout=subprocess.PIPE).stdout.decode(),
        "maps": sorted({line.split()[-1] for line in open("/proc/self/maps") if "data.bin" in line}),
    }
"""
SERVER = 'paths = "lambda"\n'
LAYERED = """
import os, subprocess, sys
import only_first, both, packaged, by_pth

def handler(event, context):
    tool = subprocess.run(["a-tool"], stdout=subprocess.PIPE).stdout.decode().strip()
    return {
        "modules": [only_first.__file__, both.__file__, packaged.__file__, by_pth.__file__],
        "which": both.WHICH,
        "tool": tool,
        "opt": sorted(os.listdir("/opt")),
        "libraries": os.listdir("/opt/python/.libs"),
        "path": sys.path[:3],
    }
"""
PACKAGES = "python/lib/python{}.{}/site-packages".format(*sys.version_info[:2])
ROLE = "arn:aws:iam::000000000000:role/any"


def zipped(files: dict[str, str]) -> bytes:
    """A zip file of executable files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
    return made.getvalue()


@pytest.fixture
def outside() -> Iterator[Project]:
    """A project outside /tmp, so that environments have mounts of their own."""
    root = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="thawd-test-"))
    try:
        yield Project(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def write(project: Project, name: str, version: str) -> None:
    """Write a function's code. The files of all functions and versions have the same names and sizes."""
    folder = project.root / name
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(CODE)
    (folder / "part.py").write_text(f"VERSION = {version!r}\n")
    (folder / "data.bin").write_text(version)


def declared(*names: str, options: str = "") -> str:
    return "".join(f'[functions.{name}]\nhandler = "app.handler"\ncode = "{name}"\n{options}' for name in names)


def check(answer: dict[str, Any], version: str) -> None:
    assert [answer[name] for name in ("version", "mapped", "read", "child")] == [version] * 4
    assert answer["files"] == ["/var/task/app.py", "/var/task/part.py"]
    assert answer["cwd"] == ["/var/task"] * 4
    assert answer["runtime"] == ["/var/runtime", True]
    assert answer["writes"] == ["Read-only file system"] * 3
    assert answer["maps"] == ["/var/task/data.bin"]


def invoke(server: Running, name: str, event: Any = None) -> Any:
    answer, error = server.invoke(name, event)
    assert error is None, answer
    return answer


@pytest.mark.parametrize("way", ["thaw", "fork", "cold"])
def test_functions_see_their_own_code_at_the_same_path(outside: Project, way: str) -> None:
    for name in ("one", "two"):
        write(outside, name, name)
    options = "idle_timeout_s = 0\n" + ("snapshot = false\n" if way == "cold" else "")
    outside.config(SERVER + declared("one", "two", options=options))
    with outside.up(environ={"THAWD_SNAPSHOTS": "off" if way == "fork" else "auto"}) as server:
        for name in ("one", "two", "two", "one"):
            check(invoke(server, name), name)
        assert server.function("one")["starts"].keys() == {way}
        assert server.function("one")["paths"] == "lambda"
        answer, error = server.invoke("one", "fail")
        assert error == "Unhandled"
        assert 'File "/var/task/app.py", line ' in "".join(answer["stackTrace"])
        assert str(outside.root) not in "".join(answer["stackTrace"])


def test_a_reload_and_a_restart_show_the_files_of_the_version_that_serves(outside: Project) -> None:
    for name in ("one", "two"):
        write(outside, name, name)
    outside.config(SERVER + declared("one", "two", options="idle_timeout_s = 0\n"))
    with outside.up() as server:
        loaded = {name: invoke(server, name)["loaded"] for name in ("one", "two")}
        write(outside, "one", "new")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: invoke(server, "one")["version"] == "new", what="the new version")
        check(invoke(server, "one"), "new")
        check(invoke(server, "two"), "two")
    with outside.up() as server:
        check(invoke(server, "one"), "new")
        assert invoke(server, "two")["loaded"] == loaded["two"], "thawed from the image of the first run"
        assert server.function("two")["starts"].keys() == {"thaw"}
    write(outside, "one", "one")  # the image of the first version is not used for other files at the same path
    with outside.up() as server:
        check(invoke(server, "one"), "one")
        check(invoke(server, "two"), "two")


def test_with_bases_each_function_sees_its_own_files(outside: Project) -> None:
    for name in ("one", "two"):
        write(outside, name, name)
    outside.config(SERVER + 'bases = "auto"\n' + declared("one", "two", options="idle_timeout_s = 0\n"))
    with outside.up() as server:
        for name in ("one", "two", "one"):
            check(invoke(server, name), name)
            assert server.function(name)["snapshot"]["base_refused"] is None


def test_layers_are_merged_at_opt_for_python_node_and_programs(outside: Project) -> None:
    layers = (
        {
            "python/only_first.py": "",
            "python/.libs/in_folder_with_dot.py": "",
            "python/both.py": "WHICH = 'first'",
            "python/own.pth": "more\n",
            "python/more/by_pth.py": "",
            "nodejs/node_modules/lib/index.js": "module.exports = __filename",
        },
        {
            "python/both.py": "WHICH = 'second'",
            f"{PACKAGES}/packaged.py": "",
            "bin/a-tool": "#!/bin/sh\necho $0\n",
            "bootstrap": '#!/bin/sh\nexec "$LAMBDA_TASK_ROOT/serve"\n',
        },
    )
    outside.config(SERVER + f'[runtimes]\n"nodejs22.x" = "{shutil.which("node") or "/none"}"\n')
    python = "python{}.{}".format(*sys.version_info[:2])
    node = 'exports.handler = async () => [__filename, process.cwd(), require("lib"), process.env.LAMBDA_RUNTIME_DIR];'
    api = "http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation"
    serve = f"""#!/bin/bash
while curl -sS -D head -o /dev/null "{api}/next" -D /tmp/head; do
    id=$(sed -n 's/^lambda-runtime-aws-request-id: *\\([^\\r]*\\).*/\\1/ip' /tmp/head)
    curl -sS "{api}/$id/response" -d "[\\"$0\\", \\"$PWD\\", \\"$LAMBDA_RUNTIME_DIR\\"]" > /dev/null
done
"""
    made = {
        "layered": (python, "app.handler", {"app.py": LAYERED}),
        "noded": ("nodejs22.x", "index.handler", {"index.js": node}),
        "own": ("provided.al2023", "any", {"serve": serve.replace("-D head -o", "-o")}),
    }
    with outside.up() as server:
        client = server.client()
        arns = [
            client.publish_layer_version(LayerName=f"layer{number}", Content={"ZipFile": zipped(files)})[
                "LayerVersionArn"
            ]
            for number, files in enumerate(layers)
        ]
        for name, (runtime, handler, files) in made.items():
            if name == "noded" and shutil.which("node") is None:
                continue
            client.create_function(
                FunctionName=name,
                Runtime=runtime,
                Handler=handler,
                Role=ROLE,
                Code={"ZipFile": zipped(files)},
                Layers=arns,
                Timeout=60,
            )
            client.get_waiter("function_active_v2").wait(FunctionName=name)
        assert invoke(server, "layered") == {
            "modules": [
                "/opt/python/only_first.py",
                "/opt/python/both.py",
                f"/opt/{PACKAGES}/packaged.py",
                "/opt/python/more/by_pth.py",
            ],
            "which": "second",
            "tool": "/opt/bin/a-tool",
            "opt": ["bin", "bootstrap", "nodejs", "python"],
            "libraries": ["in_folder_with_dot.py"],
            "path": ["/var/task", f"/opt/{PACKAGES}", "/opt/python"],
        }
        if shutil.which("node"):
            module = "/opt/nodejs/node_modules/lib/index.js"
            assert invoke(server, "noded") == ["/var/task/index.js", "/var/task", module, "/var/runtime"]
        assert invoke(server, "own") == ["/var/task/serve", "/var/task", "/var/runtime"]
        assert {server.function(name)["paths"] for name in ("layered", "own")} == {"lambda"}


def test_where_the_mounts_are_not_possible_functions_see_real_paths_and_the_status_says_why(outside: Project) -> None:
    outside.code(
        """
        import os

        def handler(event, context):
            return [os.getcwd(), os.path.dirname(__file__), os.environ["LAMBDA_TASK_ROOT"]]
        """
    )
    outside.config(SERVER + '[functions.f]\nhandler = "app.handler"\nenvironment = { TMPDIR = "/var/tmp" }\n')
    with outside.up() as server:
        (folder,) = set(invoke(server, "f"))
        assert Path(folder).is_relative_to(outside.data)
        status = server.function("f")
        assert (status["paths"], status["paths_reason"]) == ("real", "the function sets TMPDIR")
