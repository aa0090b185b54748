"""A server that runs as root: it says so, its functions have no capabilities, and it can become another user."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Project, eventually
from tests.integration.disk_bench import NOBODY
from thawd.snapshot.engine import unavailable

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up"),
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]

CODE = """
    import os, subprocess, tempfile

    def rights():
        lines = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
        return {name: int(lines[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}

    def attempt(work, *arguments):
        try:
            work(*arguments)
        except OSError as error:
            return error.strerror
        return None

    at_init = rights()
    at_init["user namespace"] = os.readlink("/proc/self/ns/user")
    at_init["root"] = attempt(os.chroot, "/")

    def handler(event, context):
        child = subprocess.run(["grep", "CapEff", "/proc/self/status"], stdout=subprocess.PIPE, text=True).stdout
        with open(os.path.join(tempfile.gettempdir(), "mine"), "w") as file:
            file.write("mine")
        return {
            "now": rights(),
            "child": int(child.split()[1], 16),
            "init": at_init,
            "users": [os.getresuid(), os.getresgid()],
            "chroot": attempt(os.chroot, "/"),
            "home": os.path.expanduser("~"),
        }
"""
APP = '[functions.f]\nhandler = "app.handler"\nidle_timeout_s = 0\n'
NONE = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0)
DENIED = "Operation not permitted"


@pytest.fixture(params=["in /tmp", "with a /tmp of its own"])
def rooted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """A project with functions that share the machine's /tmp, and one with functions that have private ones."""
    root = tmp_path if request.param == "in /tmp" else Path(tempfile.mkdtemp(dir="/var/tmp", prefix="thawd-test-"))
    project = Project(root)
    project.code(CODE)
    yield project
    if root != tmp_path:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize(
    ("rooted", "way"),
    [("in /tmp", way) for way in ("thaw", "fork", "cold")] + [("with a /tmp of its own", "thaw")],
    indirect=["rooted"],
)
def test_functions_of_root_have_no_capabilities(rooted: Project, way: str) -> None:
    rooted.config(APP + ("snapshot = false\n" if way == "cold" else ""))
    with rooted.up(environ={"THAWD_SNAPSHOTS": "auto" if way == "thaw" else "off"}) as server:
        for _ in range(2):
            answer, error = server.invoke("f", None)
            assert error is None, answer
            assert answer["now"] == NONE
            assert answer["child"] == 0
            assert answer["chroot"] == DENIED
            own = answer["init"]["user namespace"] != str(Path("/proc/self/ns/user").readlink())
            assert own or answer["init"]["CapEff"] == 0, "what init has counts for nothing outside"
            assert answer["users"] == [[0, 0, 0], [0, 0, 0]]
            eventually(lambda: not any(server.function("f")["environments"].values()), what="its end")
        assert server.function("f")["starts"].keys() == {way}
        told = [line for line in server.output if "RUNNING AS ROOT" in line]
        assert len(told) == 1
        assert "--user" in told[0]
        assert "without capabilities" in told[0]


@pytest.mark.parametrize(
    ("rooted", "way"),
    [("in /tmp", "thaw"), ("with a /tmp of its own", "fork"), ("in /tmp", "cold"), ("with a /tmp of its own", "thaw")],
    indirect=["rooted"],
)
def test_a_setting_leaves_them(rooted: Project, way: str) -> None:
    rooted.config("capabilities = true\n" + APP + ("snapshot = false\n" if way == "cold" else ""))
    with rooted.up(environ={"THAWD_SNAPSHOTS": "auto" if way == "thaw" else "off"}) as server:
        answer, error = server.invoke("f", None)
        assert error is None, answer
        assert answer["now"]["CapEff"] == answer["child"] != 0
        assert server.function("f")["starts"].keys() == {way}
        assert any("with all capabilities" in line for line in server.output)


def test_a_burst_of_copies_has_none_either(rooted: Project) -> None:
    rooted.config(APP + "provisioned_concurrency = 6\n")
    with rooted.up() as server:
        answer, error = server.invoke("f", None)
        assert error is None, answer
        assert answer["now"] == NONE


def test_a_program_of_its_own_has_none(rooted: Project) -> None:
    rooted.code(
        """\
        #!/bin/sh
        while :; do
            head=$(mktemp)
            curl -sS -D "$head" -o /dev/null "http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation/next"
            id=$(sed -n 's/^lambda-runtime-aws-request-id: *//Ip' "$head" | tr -d '\\r')
            caps=$(sed -n 's/^CapEff:[^0-9a-f]*//p' /proc/self/status)
            curl -sS -d "\\"$caps\\"" "http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation/$id/response"
        done
        """,
        "bootstrap",
    )
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    (rooted.root / "bootstrap").chmod(0o755)
    rooted.config('[functions.f]\nruntime = "provided.al2023"\nhandler = "any"\n')
    with rooted.up() as server:
        assert server.invoke("f", None) == ("0" * 16, None)


@pytest.fixture
def reachable(tmp_path: Path) -> str:
    """An interpreter like this one that the user nobody can run.

    If this interpreter is below root's home, which nobody may not enter, it runs in a mount namespace where nobody may.
    """
    script = tmp_path / "python"
    home = Path(sys.executable).resolve()
    top = Path("/", home.parts[1])
    show = f"""\
#!/bin/sh
exec unshare -m --propagation private /bin/sh -ec '
    place=$(mktemp -d /var/tmp/thawd-home-XXXXXX)
    mount -t tmpfs -o mode=755 none "$place"
    mkdir "$place/{home.parts[2]}"
    mount --bind "{top}/{home.parts[2]}" "$place/{home.parts[2]}"
    mount --rbind "$place" "{top}"
    umount -l "$place"
    rmdir "$place"
    exec {sys.executable} "$@"' sh "$@"
"""
    script.write_text(show if top == Path("/root") else f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    command = [
        str(script),
        "-c",
        "import os; os.setuid(65534); os.execv('" + sys.executable + "', ['python', '-c', ''])",
    ]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no interpreter that nobody may run")
    return str(script)


@pytest.fixture
def nobodys() -> Iterator[Project]:
    """A project that the user nobody can read."""
    root = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="thawd-test-"))
    root.chmod(0o755)
    project = Project(root)
    project.code(CODE)
    yield project
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("way", ["thaw", "fork", "cold"])
def test_the_server_becomes_another_user_and_its_functions_with_it(nobodys: Project, reachable: str, way: str) -> None:
    nobodys.config(APP + ("snapshot = false\n" if way == "cold" else ""))
    environ = {"THAWD_SNAPSHOTS": "auto" if way == "thaw" else "off"}
    with nobodys.up(environ=environ) as server:  # leaves the data folder of a server that ran as root
        assert server.invoke("f", None)[1] is None
    os.chown(nobodys.root, NOBODY, NOBODY)  # the server writes its ready file there
    with nobodys.up("--user", "nobody", environ=environ, python=reachable) as server:
        answer, error = server.invoke("f", None)
        assert error is None, answer
        assert answer["users"] == [[NOBODY] * 3, [NOBODY] * 3] or answer["users"][0] == [NOBODY] * 3
        assert answer["now"]["CapEff"] == answer["child"] == 0
        assert server.function("f")["starts"].keys() == {way}
        assert not any("RUNNING AS ROOT" in line for line in server.output)
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        assert f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}" in status
    for path in [nobodys.data, *nobodys.data.rglob("*")]:
        assert path.lstat().st_uid == NOBODY, path
    assert stat.S_IMODE(nobodys.data.stat().st_mode) == 0o700


def test_a_user_who_is_not_there_or_cannot_run_thawd_is_told(nobodys: Project) -> None:
    nobodys.config(APP)
    ended = nobodys.command("up", "--user", "no-such-user")
    assert ended.returncode != 0
    assert "there is no user no-such-user" in ended.stderr
    assert not nobodys.data.exists()
