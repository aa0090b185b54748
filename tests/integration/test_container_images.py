"""Functions whose code is a container image run with the image as their root: thawed, or by their own entry point.

The images have the layout of Lambda's Python base image, and are made from the interpreter that runs the tests.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

import thawd
from tests.image_roots import PYTHON, add_image, lambda_config
from tests.integration.conftest import Project, Running, eventually, processes_of
from tests.privileges import MODULES, unprivileged_python
from thawd.oci.image_store import Images
from thawd.snapshot.engine import LIBRARY_NAME, PROGRAM_NAME, native_folder, unavailable

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

APP = """
import os, ssl, sys, time

with open("/tmp/left", "w") as left:
    left.write("by init")
opened = open("/tmp/left")
initialised_in = os.getpid()

def attempt(work):
    try:
        return work() and None
    except OSError as error:
        return error.strerror

def handler(event, context):
    while "gate" in event and not os.path.exists("/.thawd/buckets/things/gate"):
        time.sleep(0.005)
    if "evaluate" in event:
        return eval(event["evaluate"])
    return {
        "folder": os.getcwd(),
        "left": opened.read(),
        "tmp": sorted(os.listdir("/tmp")),
        "initialisation": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"],
        "python": sys.executable,
        "greeting": os.environ.get("GREETING"),
        "user": os.getuid(),
        "same process": initialised_in == os.getpid(),
    }
"""
# A client of the Runtime API in shell and Python: not awslambdaric, so thawd cannot replace it.
PROGRAM = """#!/bin/sh
exec /var/lang/bin/python3 /function/serve.py "$@"
"""
SERVE = """
import json, os, sys, urllib.request
api = "http://%s/2018-06-01/runtime/invocation/" % os.environ["AWS_LAMBDA_RUNTIME_API"]
while True:
    with urllib.request.urlopen(api + "next") as event:
        number = event.headers["Lambda-Runtime-Aws-Request-Id"]
        answer = {"event": json.load(event), "arguments": sys.argv[1:], "folder": os.getcwd(), "root": os.listdir("/")}
    urllib.request.urlopen(api + number + "/response", json.dumps(answer).encode()).close()
"""
ROLE = "arn:aws:iam::000000000000:role/any"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project without functions, whose store has the images of this module."""
    project = Project(tmp_path_factory.mktemp("images"))
    project.data.mkdir(mode=0o700)
    store = Images(project.data / "images")
    add_image(store, "app:1", {"var/task/app.py": APP})
    add_image(store, "app:2", {"var/task/app.py": APP + "\nopened = open('/tmp/left', 'w+')\n"})
    files = {"function/serve.py": SERVE, "function/bootstrap*": PROGRAM}
    add_image(
        store, "program:1", files, config=lambda_config(["one"], entrypoint=["./bootstrap"], working_dir="/function")
    )
    client = [PYTHON.rpartition("/")[2], "-m", "awslambdaric"]
    add_image(
        store, "client:1", {"function/app.py": APP}, config=lambda_config(entrypoint=client, working_dir="/function")
    )
    add_image(store, "many:1", {"var/task/app.py": APP, "var/task/many.txt": "its own root"})
    links = {"var/task/app.py": APP, "var/task/out": "->/../../../..", "var/task/passwd": "->/etc/passwd"}
    add_image(store, "links:1", links)
    add_image(store, "arm:1", {"var/task/app.py": APP}, architecture="arm64")
    missing = lambda_config([], entrypoint=["/no/such/python", "-m", "awslambdaric", "app.handler"])
    add_image(store, "missing:1", {"var/task/app.py": APP}, config=missing)
    broken = {"var/task/app.py": APP, "usr/bin/python3*": "#!/no/such/interpreter\n"}
    add_image(store, "broken:1", broken, config=lambda_config(entrypoint=["/usr/bin/python3", "-m", "awslambdaric"]))
    return project


CONFIG = """
[functions.thawed]
image = "app:1"
environment = { GREETING = "hello" }
[functions.cold]
image = "app:1"
snapshot = false
[functions.program]
image = "program:1"
image_config = { command = ["two", "three"] }
[functions.client]
image = "client:1"
[functions.links]
image = "links:1"
[functions.missing]
image = "missing:1"
[functions.arm]
image = "arm:1"
[functions.broken]
image = "broken:1"
[buckets.things]
"""


@pytest.fixture(scope="module")
def server(images: Project) -> Iterator[Running]:
    images.config(CONFIG)
    with images.up() as running:
        yield running


def evaluated(server: Running, function: str, expression: str) -> Any:
    answer, error = server.invoke(function, {"evaluate": expression})
    assert error is None, answer
    return answer


def test_a_function_of_an_image_is_thawed_with_the_image_as_its_root(server: Running) -> None:
    answer, error = server.invoke("thawed", {})

    assert error is None, answer
    assert answer == {
        "folder": "/var/task",
        "left": "by init",
        "tmp": ["left"],
        "initialisation": "snap-start",
        "python": PYTHON,
        "greeting": "hello",
        "user": os.getuid(),
        "same process": False,
    }
    assert server.function("thawed")["start"] == "thaw"
    assert server.function("thawed")["start_reason"] is None
    assert server.function("thawed")["paths"] == "image"


def test_a_burst_is_thawed_and_not_forked(server: Running, images: Project) -> None:
    answers = server.invoke_at_once("thawed", 8, {}, gate=images.root / "things" / "gate")

    assert [error for _, error in answers] == [None] * 8
    assert server.function("thawed")["starts"].keys() == {"thaw"}


def test_a_function_of_an_image_without_a_snapshot_is_started_cold_by_the_images_interpreter(server: Running) -> None:
    answer, error = server.invoke("cold", {})

    assert error is None, answer
    assert (answer["initialisation"], answer["python"], answer["same process"]) == ("on-demand", PYTHON, True)


def test_an_interpreter_with_awslambdaric_is_thawed_in_its_working_folder(server: Running) -> None:
    answer, error = server.invoke("client", {})

    assert error is None, answer
    assert (answer["initialisation"], answer["folder"]) == ("snap-start", "/function")
    assert evaluated(server, "client", "sys.path[0]") == "/function"


def test_another_entry_point_is_executed_as_it_is_and_the_reason_is_in_the_status(server: Running) -> None:
    answer, error = server.invoke("program", {"a": 1})

    assert error is None, answer
    assert (answer["event"], answer["folder"]) == ({"a": 1}, "/function")
    assert answer["arguments"] == ["two", "three"], "image_config replaces CMD"
    assert "function" in answer["root"]
    status = server.function("program")
    assert status["start"] == "cold"
    assert "entry point is ./bootstrap, and not a Python with awslambdaric" in status["start_reason"]


@pytest.mark.parametrize("function", ["thawed", "cold"])
def test_a_handler_sees_nothing_of_the_machine_but_its_root(server: Running, images: Project, function: str) -> None:
    assert evaluated(server, function, f"os.path.exists({str(images.root)!r})") is False
    assert evaluated(server, function, "os.path.exists('/root') or os.path.exists('/home')") is False
    seen = evaluated(server, function, "sorted(os.listdir('/'))")
    assert set(seen) <= {
        "bin",
        "dev",
        "etc",
        "lambda-entrypoint.sh",
        "lib64",
        "opt",
        "proc",
        "tmp",
        "usr",
        "var",
        ".thawd",
    }
    assert evaluated(server, function, "sorted(os.listdir('/dev'))") == sorted(
        ["null", "zero", "full", "random", "urandom", "shm", "fd", "stdin", "stdout", "stderr"]
    )
    mounts = evaluated(server, function, "[line.split()[4] for line in open('/proc/self/mountinfo')]")
    assert not [place for place in mounts if place.startswith((str(images.root), "/sys", "/home"))]


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/new', 'w')",
        "open('/var/task/new', 'w')",
        "os.unlink('/var/task/app.py')",
        "open('/etc/resolv.conf', 'a')",
        "open('/.thawd/thawd/new', 'w')",
        "os.mkdir('/dev/new')",
        # The machine's own, which its root could change without a capability. Neither call would change anything.
        "open('/proc/sys/vm/swappiness', 'r+')",
        "os.chmod('/dev/null', 0o666)",
    ],
)
@pytest.mark.parametrize("function", ["thawed", "cold"])
def test_a_handler_cannot_write_to_its_root(server: Running, function: str, attempt: str) -> None:
    refused = ("Read-only file system", "Permission denied", "Operation not permitted")
    assert evaluated(server, function, f"attempt(lambda: {attempt})") in refused


def test_devices_can_be_written_to(server: Running) -> None:
    assert evaluated(server, "thawed", "attempt(lambda: open('/dev/null', 'w').write('x') and None)") is None


@pytest.mark.parametrize(
    "attempt",
    [
        "os.listdir('/proc/%d/root/' % os.getppid())",
        "os.listdir('/proc/%d/cwd/' % os.getppid())",
        "os.chroot('/tmp')",
        "__import__('ctypes').CDLL(None, use_errno=True).umount2(b'/tmp', 2) and os.close(-1)",
        "__import__('ctypes').CDLL(None).mount(b'/', b'/tmp', None, 4096, None) and os.close(-1)",
    ],
)
def test_a_handler_cannot_leave_its_root(server: Running, attempt: str) -> None:
    assert evaluated(server, "thawed", f"attempt(lambda: {attempt})") is not None


def test_links_of_an_image_stay_in_it(server: Running) -> None:
    assert evaluated(server, "links", "os.listdir('/var/task/out') == os.listdir('/')") is True
    assert evaluated(server, "links", "os.path.exists('/var/task/passwd')") is False


def test_no_descriptor_leads_out_of_the_root(server: Running) -> None:
    numbers = "[n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)]"
    opened = evaluated(server, "thawed", f"[os.readlink('/proc/self/fd/' + n) for n in {numbers}]")
    assert [place for place in opened if place.startswith("/")] in (
        ["/dev/null", "/tmp/left"],
        ["/dev/null", "/tmp/left", "/proc"],
    )


def test_each_environment_has_its_own_tmp_and_shared_memory(server: Running) -> None:
    evaluated(server, "thawed", "open('/dev/shm/mine', 'w').close() or open('/tmp/mine', 'w').close()")

    assert evaluated(server, "cold", "os.listdir('/dev/shm') + sorted(os.listdir('/tmp'))") == ["left"]


def test_a_bucket_is_at_hand_in_a_root(server: Running, images: Project) -> None:
    server.s3().put_object(Bucket="things", Key="a.txt", Body=b"written")

    assert evaluated(server, "thawed", "__import__('thawd').bucket('things').read('a.txt').decode()") == "written"


def test_an_image_without_its_program_is_refused_when_it_is_published(server: Running) -> None:
    status = server.function("missing")

    assert status["state"] == "Failed"
    assert "the image missing:1 is to execute /no/such/python, which is not in it" in status["reason"]


def test_an_image_for_another_architecture_is_refused_when_it_is_published(server: Running) -> None:
    status = server.function("arm")

    assert status["state"] == "Failed"
    assert "arm64" in status["reason"]


def test_a_kernel_that_refuses_namespaces_is_named_with_the_way_out(images: Project) -> None:
    (root,) = list(images.data.glob("images/roots/*/tree"))[:1]
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    thaw = [Path(native_folder() or "", PROGRAM_NAME), "--root", root, "--try", "disk", "/dev/null"]
    inside = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", *thaw]

    done = subprocess.run(inside, capture_output=True, text=True)

    assert done.returncode == 120, done.stderr
    assert "this user may not create one; allow user namespaces (sysctl user.max_user_namespaces" in done.stderr


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--root", "/no/such"], 120, "root folder of the function's container image cannot be mounted"),
        (["--root", "{empty}", "--root-work", "/no/such"], 120, "in the container image's root this is missing"),
        (["--root-work", "/tmp"], 2, "need --root"),
        (["--root", "/var", "--disk-tmp", "/tmp", "--disk-at", "/tmp", "--disk-own", "/tmp"], 2, "need --root"),
        (["--root", "/var", "--root-bind", "/var"], 2, "wrong usage"),
    ],
)
def test_what_thaw_cannot_make_a_root_of_it_says(options: list[str], status: int, said: str, tmp_path: Path) -> None:
    program = Path(native_folder() or "", PROGRAM_NAME)
    options = [option.format(empty=tmp_path) for option in options]

    done = subprocess.run([program, *options, "/dev/null"], capture_output=True, text=True)

    assert (done.returncode, said in done.stderr) == (status, True), done.stderr


def test_an_interpreter_that_does_not_work_is_executed_as_a_program_and_its_error_is_shown(server: Running) -> None:
    answer, error = server.invoke("broken", {})

    assert error == "Unhandled"
    assert answer["errorType"] == "Runtime.InvalidEntrypoint"


def test_the_lambda_api_makes_changes_and_shows_functions_with_images(server: Running) -> None:
    client = server.client()
    snap_start = {"ApplyOn": "PublishedVersions"}
    made = client.create_function(
        FunctionName="api",
        Role=ROLE,
        PackageType="Image",
        Code={"ImageUri": "app:1"},
        ImageConfig={"WorkingDirectory": "/opt"},
        SnapStart=snap_start,
        Timeout=30,
    )
    client.get_waiter("function_active_v2").wait(FunctionName="api")
    shown = client.get_function(FunctionName="api")
    first = server.invoke("api", {})[0]
    number = client.publish_version(FunctionName="api")["Version"]
    client.update_function_code(FunctionName="api", ImageUri="app:2")
    client.get_waiter("function_updated_v2").wait(FunctionName="api")

    assert "Handler" not in made
    assert "Runtime" not in made
    assert (made["PackageType"], made["CodeSize"]) == ("Image", 0)
    assert made["ImageConfigResponse"] == {"ImageConfig": {"WorkingDirectory": "/opt"}}
    resolved = f"app@sha256:{made['CodeSha256']}"
    assert shown["Code"] == {"RepositoryType": "ECR", "ImageUri": "app:1", "ResolvedImageUri": resolved}
    assert (first["folder"], first["initialisation"]) == ("/opt", "snap-start")
    assert server.invoke("api", {})[0]["left"] == ""
    client.get_waiter("published_version_active").wait(FunctionName="api", Qualifier=number)
    assert server.invoke("api", {}, Qualifier=number)[0]["left"] == "by init", "a version keeps its image"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"Handler": "a.b"}, "Please don't provide Handler or Runtime or Layer when the intended function PackageType"),
        ({"Runtime": "python3.12"}, "Please don't provide Handler or Runtime or Layer"),
        ({"Code": {"ImageUri": "none:1"}}, "Source image none:1 is not valid. Provide a valid source image."),
        ({"Code": {"ZipFile": b"x"}}, "Please provide ImageUri"),
        ({"PackageType": "Zip"}, "Please don't provide ImageUri"),
    ],
)
def test_a_request_that_mixes_both_kinds_of_function_is_refused(
    server: Running, parameters: dict[str, Any], said: str
) -> None:
    request = {"FunctionName": "no", "Role": ROLE, "PackageType": "Image", "Code": {"ImageUri": "app:1"}, **parameters}

    with pytest.raises(ClientError) as caught:
        server.client().create_function(**request)

    assert caught.value.response["Error"]["Code"] == "InvalidParameterValueException"
    assert said in caught.value.response["Error"]["Message"]


@pytest.fixture
def sharing(images: Project, project: Project) -> Project:
    """An empty project that shares the store of images."""
    project.data.mkdir(mode=0o700)
    (project.data / "images").symlink_to(images.data / "images")
    return project


def mounts_of(root: Path) -> list[str]:
    """Processes that have an image's root mounted."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "mountinfo").read_text()
        except OSError:
            continue
        if f"/roots/{root.parent.name}/" in text:
            found.append(process.name)
    return found


def test_fifty_environments_leave_no_mounts_when_they_end_or_when_the_server_is_killed(sharing: Project) -> None:
    store = Images(sharing.data / "images")
    root = store.root(store.names()["many:1"]).folder
    sharing.config(
        'max_environments = 60\n[functions.many]\nimage = "many:1"\nmemory_mb = 128\nprovisioned_concurrency = 50\n'
    )
    with sharing.up() as many:
        eventually(lambda: many.function("many")["environments"]["idle"] == 50, what="50 environments")
        processes = processes_of(sharing.data)
        assert len(processes) >= 50
        assert set(mounts_of(root)) == set(map(str, processes)), "only in the environments' own namespaces"
        many.stop(number=signal.SIGKILL)
        eventually(lambda: not processes_of(sharing.data), what="the end of the environments")
    assert not mounts_of(root)
    with sharing.up() as again:
        assert again.invoke("many", {})[0]["left"] == "by init"
    assert not mounts_of(root)


def test_a_reload_takes_the_names_new_image_and_a_published_version_keeps_its_own(sharing: Project) -> None:
    store = Images(sharing.data / "images")
    code = "def handler(event, context):\n    return {}\n"
    add_image(store, "renamed:1", {"var/task/app.py": code.format(1)})
    sharing.config('[functions.f]\nimage = "renamed:1"\nsnapshot = false\n')
    with sharing.up() as running:
        assert running.invoke("f", {})[0] == 1
        published = running.client().publish_version(FunctionName="f")
        add_image(store, "renamed:1", {"var/task/app.py": code.format(2)})
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: running.invoke("f", {})[0] == 2, what="the new image")

        assert running.invoke("f", {}, Qualifier=published["Version"])[0] == 1
        assert published["PackageType"] == "Image"
        assert running.client().get_function(FunctionName="f")["Code"]["ImageUri"] == "renamed:1"


def test_an_image_that_is_removed_after_its_publication_is_a_clear_error(images: Project, sharing: Project) -> None:
    sharing.config('[functions.gone]\nimage = "app:2"\nsnapshot = false\nidle_timeout_s = 0\n')
    with sharing.up() as running:
        assert running.invoke("gone", {})[1] is None
        (root,) = [Path(part).parent for part in images.data.glob("images/roots/*/in-use")][:1]
        aside = root.parent.with_name("aside")
        root.parent.rename(aside)
        eventually(lambda: not any(running.function("gone")["environments"].values()), what="its end")
        answer, error = running.invoke("gone", {})
        aside.rename(root.parent)
        assert error == "Unhandled"
        assert "the files of the container image are gone" in answer["errorMessage"]
        eventually(lambda: running.invoke("gone", {})[1] is None, what="a start with the files back")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="thawd-test-"))
    try:
        (folder / "project").mkdir()
        folder.chmod(0o755)
        yield folder / "project"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become another user")
def test_a_user_without_privileges_thaws_functions_of_images(open_folder: Path) -> None:
    python = unprivileged_python()
    project = Project(open_folder)
    project.config('[functions.thawed]\nimage = "app:1"\n')
    project.data.mkdir(mode=0o700)
    add_image(Images(project.data / "images"), "app:1", {"var/task/app.py": APP})
    for place, folders, names in os.walk(open_folder.parent):
        for name in (*folders, *names):
            os.chown(Path(place, name), 65534, 65534, follow_symlinks=False)
    package = open_folder.parent / "lib" / "thawd"  # as it is installed, with the compiled parts beside the sources
    shutil.copytree(Path(thawd.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (LIBRARY_NAME, PROGRAM_NAME):
        shutil.copy2(Path(native_folder() or "", name), package)
    modules = {"PYTHONPATH": f"{package.parent}{os.pathsep}{MODULES['PYTHONPATH']}"}
    with project.up(python=python, environ=modules, user=65534, group=65534, extra_groups=[]) as running:
        answer, error = running.invoke("thawed", {})
        assert error is None, answer
        assert (answer["left"], answer["initialisation"], answer["user"]) == ("by init", "snap-start", 65534)
        assert evaluated(running, "thawed", "attempt(lambda: open('/new', 'w'))") == "Read-only file system"
        assert running.function("thawed")["start"] == "thaw"
