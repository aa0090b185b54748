"""/tmp: each environment has a private one, which is also its TMPDIR, and its code is read-only.

The projects are outside /tmp, because functions do not see the machine's /tmp.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Project, eventually
from tests.integration.disk_bench import NATIVE, NOBODY, python_of_nobody
from thawd.snapshot.disk.temporary_folders import in_tmp
from thawd.snapshot.engine import unavailable

pytestmark = [
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
    pytest.mark.skipif(in_tmp([Path(__file__)]) is not None, reason="thawd itself lies in /tmp"),
]

CODE = """
    import mmap, os, subprocess, tempfile

    with open("/tmp/model.bin", "wb") as file:
        file.write(b"weights " * 10_000)
    opened = open("/tmp/model.bin", "rb")
    mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    shared_file = open("/tmp/shared.bin", "w+b")
    shared_file.write(b"0" * 4096)
    shared_file.flush()
    shared = mmap.mmap(shared_file.fileno(), 4096)

    def attempt(work):
        try:
            work()
        except OSError as error:
            return error.strerror
        return None

    def handler(event, context):
        seen = sorted(os.listdir("/tmp"))
        was = shared[:8].decode()
        shared[:8] = b"%08d" % os.getpid()
        open("/tmp/note-%s" % event, "w").close()
        code = os.environ["LAMBDA_TASK_ROOT"]
        return {
            "seen": seen,
            "child": sorted(subprocess.run(["ls", "/tmp"], stdout=subprocess.PIPE, text=True).stdout.split()),
            "mapped": mapped[:7].decode(),
            "shared": was,
            "same": os.path.samefile("/tmp", tempfile.gettempdir()),
            "write": attempt(lambda: open(os.path.join(code, "new"), "w")),
            "change": attempt(lambda: open(os.path.join(code, "app.py"), "a")),
            "remove": attempt(lambda: os.unlink(os.path.join(code, "app.py"))),
            "relative": attempt(lambda: open("new", "w")),
            "uid": os.getuid(),
        }
"""
APP = '[functions.f]\nhandler = "app.handler"\n'
READ_ONLY = dict.fromkeys(("write", "change", "remove", "relative"), "Read-only file system")


@pytest.fixture
def outside() -> Iterator[Project]:
    """A project outside /tmp."""
    root = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="thawd-test-"))
    try:
        project = Project(root)
        project.code(CODE)
        yield project
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("way", ["thaw", "fork", "cold"])
def test_each_environment_sees_its_own_tmp_as_init_left_it_and_read_only_code(outside: Project, way: str) -> None:
    if way == "fork":  # a template with shared writable memory is not forked
        outside.code(CODE.replace("shared = mmap.mmap(shared_file.fileno(), 4096)", "shared = bytearray(b'0' * 4096)"))
    outside.config(APP + "idle_timeout_s = 0\n" + ("snapshot = false\n" if way == "cold" else ""))
    mark = Path(f"/tmp/thawd-test-{os.getpid()}")
    mark.touch()
    try:
        with outside.up(environ={"THAWD_SNAPSHOTS": "auto" if way == "thaw" else "off"}) as server:
            for number in range(3):
                answer, error = server.invoke("f", number)
                assert error is None, answer
                assert answer["seen"] == ["model.bin", "shared.bin"]
                assert answer["child"] == ["model.bin", f"note-{number}", "shared.bin"]
                assert (answer["mapped"], answer["same"]) == ("weights", True)
                assert answer["shared"] == "0" * 8
                assert {name: answer[name] for name in READ_ONLY} == READ_ONLY
                eventually(lambda: not any(server.function("f")["environments"].values()), what="its end")
            assert server.function("f")["starts"].keys() == {way}
            assert not any("machine's /tmp" in line for line in server.output)
    finally:
        mark.unlink()
    assert not Path("/tmp/model.bin").exists()


def test_two_at_once_and_a_burst_have_one_each(outside: Project) -> None:
    outside.config(APP + "provisioned_concurrency = 3\n")
    with outside.up() as server:
        first = server.invoke("f", "first")[0]
        again = server.invoke("f", "again")[0]
        assert first["seen"] == ["model.bin", "shared.bin"]
        assert again["seen"] == ["model.bin", "note-first", "shared.bin"], "the one used last is used first"


def test_a_restarted_server_thaws_with_the_same_tmp_and_one_that_shares_it_freezes_anew(outside: Project) -> None:
    outside.config(APP)
    with outside.up() as server:
        assert server.invoke("f", "x")[1] is None
    with outside.up() as server:
        assert server.invoke("f", "y")[0]["seen"] == ["model.bin", "shared.bin"]
        assert server.function("f")["starts"].keys() == {"thaw"}
    outside.code("def handler(event, context):\n    open('/tmp/' + event, 'w').close()\n    return event\n")
    outside.config("private_tmp = false\n" + APP)
    name = f"thawd-test-shared-{os.getpid()}"
    with outside.up() as server:
        assert server.invoke("f", name) == (name, None)
    assert Path("/tmp", name).exists()
    Path("/tmp", name).unlink()


def test_what_lies_in_tmp_and_is_needed_keeps_tmp_shared_and_that_is_said(project: Project) -> None:
    project.code("import os\ndef handler(event, context):\n    return os.path.exists(event)\n")
    project.config(APP)
    if in_tmp([project.root]) is None:
        pytest.skip("pytest's folders are not in /tmp here")
    with project.up() as server:
        assert any(line.startswith("functions see the machine's /tmp: ") for line in server.output)
        assert server.invoke("f", str(project.root)) == (True, None)


PROGRAM = """
import os, signal, sys
code, own = sys.argv[1:]
open("/tmp/mine", "w").write("x")
try:
    open(os.path.join(code, "new"), "w")
except OSError as error:
    print(error.strerror)
print(os.listdir("/tmp"), os.listdir(own), os.getuid(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_a_program_of_another_user_than_root_has_it_too(outside: Project) -> None:
    python = python_of_nobody()
    if os.getuid() != 0 or python is None:
        pytest.skip("only root can be another user, who needs an interpreter")
    program = shutil.copy(NATIVE / "thawd-thaw", outside.root)
    own, code = outside.root / "own", outside.root / "code"
    for folder in (own, code):
        folder.mkdir()
    for path in (outside.root, own, code):
        os.chown(path, NOBODY, NOBODY)
    mounts = ["--disk-at", own, "--disk-own", own, "--disk-tmp", "/tmp", "--disk-code", code]
    done = subprocess.run(
        [program, *mounts, "--run", python, "-c", PROGRAM, code, own],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Read-only file system", f"['mine'] ['mine'] {NOBODY} set()"]
    assert (own / "mine").exists()
    assert not Path("/tmp/mine").exists()


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--disk-tmp", "/tmp"], 2, "must be given together"),
        (["--disk-at", "/var/tmp", "--disk-own", "/var/tmp", "--disk-tmp", "/no/such"], 120, "/no/such"),
        (["--disk-at", "/var/tmp", "--disk-own", "/var/tmp", "--disk-code", "/no/such"], 120, "/no/such"),
        (["--run"], 121, "cannot be executed: /no/program"),
    ],
)
def test_what_thaw_cannot_mount_or_execute_it_says(options: list[str], status: int, said: str) -> None:
    done = subprocess.run([NATIVE / "thawd-thaw", *options, "/no/program"], capture_output=True, text=True)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
