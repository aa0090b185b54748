"""Each environment has its own temporary folder, which begins as init left it and is removed with the environment."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from thawd.snapshot.engine import unavailable

from .conftest import Project, Running, eventually

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

CODE = """
import mmap, os, tempfile
folder = tempfile.gettempdir()
path = os.path.join(folder, "model.bin")
with open(path, "wb") as file:
    file.write(b"weights " * 100_000)
with open(path, "rb") as file:
    weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
THREADS = 0

def handler(event, context):
    note = os.path.join(folder, "note")
    seen = open(note).read() if os.path.exists(note) else None
    with open(note, "w") as file:
        file.write(event["note"])
    if event.get("cut"):
        with open(path, "r+b") as file:
            file.write(b"changed ")
    return {
        "folder": folder, "seen": seen, "files": sorted(os.listdir(tempfile.gettempdir())),
        "mapped": weights[:8].decode(), "read": open(path, "rb").read(8).decode(), "bytes": os.path.getsize(path),
    }
"""
APP = '[functions.app]\nhandler = "app.handler"\n'
WAYS = {"thaw": "auto", "fork": "off", "cold": "off"}


def none_alive(running: Running) -> None:
    eventually(lambda: not any(running.function("app")["environments"].values()), what="the end of the environments")


def folders(project: Project) -> list[Path]:
    """Return the folders that are not empty. A thawed copy mounts its folder over an empty one."""
    found = []
    for path in (project.data / "tmp").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the folder is being removed
            if any(path.iterdir()):
                found.append(path)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_init_wrote_is_in_each_environment_and_private_to_it(project: Project, way: str) -> None:
    project.code(CODE)
    project.config(APP + "idle_timeout_s = 0\n" + ("snapshot = false\n" if way == "cold" else ""))
    with project.up(environ={"THAWD_SNAPSHOTS": WAYS[way]}) as running:
        answers = []
        for number in range(3):
            document, error = running.invoke("app", {"note": f"of {number}", "cut": number == 1})
            assert error is None, document
            answers.append(document)
            none_alive(running)
        assert running.function("app")["starts"].keys() == {way}
        for answer in answers:
            assert answer["seen"] is None, "what another environment wrote"
            assert answer["files"] == ["model.bin", "note"]
            assert answer["bytes"] == 800_000
            assert answer["mapped"] in ("weights ", "changed ")
        assert [answer["read"] for answer in answers] == ["weights ", "changed ", "weights "]


def test_two_environments_at_once_do_not_see_each_others_files(project: Project) -> None:
    project.code(CODE)
    project.config(APP + "provisioned_concurrency = 2\n")
    with project.up() as running:
        first = running.invoke("app", {"note": "first"})[0]
        again = running.invoke("app", {"note": "again"})[0]
        assert first["seen"] is None
        assert again["seen"] == "first", "the same environment goes on with its own"


def test_a_restarted_server_thaws_with_the_same_files(project: Project) -> None:
    project.code(CODE)
    project.config(APP)
    with project.up() as running:
        before = running.invoke("app", {"note": "before"})[0]
    with project.up() as running:
        after = running.invoke("app", {"note": "after"})[0]
        assert running.function("app")["starts"].keys() == {"thaw"}
        assert (after["seen"], after["files"]) == (None, ["model.bin", "note"])
        assert (after["mapped"], after["folder"]) == ("weights ", before["folder"])


def test_a_folder_goes_with_its_environment_and_what_a_killed_server_left_with_the_next(project: Project) -> None:
    project.code(CODE)
    project.config(APP + "idle_timeout_s = 0\n")
    with project.up() as running:
        running.invoke("app", {"note": "x"})
        none_alive(running)
        eventually(lambda: not folders(project), what="the end of the folders")
        project.config(APP)
        running.stop(number=signal.SIGKILL)
    (project.data / "tmp" / "left-over" / "files").mkdir(parents=True)
    with project.up():
        assert "left-over" not in [path.name for path in folders(project)]


def test_a_folder_that_the_function_names_itself_is_left_alone(project: Project, tmp_path: Path) -> None:
    project.code("import tempfile\n\ndef handler(event, context):\n    return tempfile.gettempdir()\n")
    project.config(APP + f'environment = {{ TMPDIR = "{tmp_path}" }}\n')
    with project.up() as running:
        assert running.invoke("app", {}) == (str(tmp_path), None)
