"""A data folder that is removed, moved or replaced while a server uses it, or that other users can read."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.privileges import MODULES, open_to_all, unprivileged_python

from .conftest import DEADLINE_S, Project, Running, eventually

CODE = """
import os, time

def handler(event, context):
    while not os.path.exists(os.environ["GATE"]):
        time.sleep(0.005)
    with open(os.environ["SEEN"], "a") as seen:
        seen.write(f"{event['n']}\\n")
"""


@pytest.fixture
def waiting(project: Project) -> Project:
    """A project with events that wait until the file ``gate`` exists, and then write their number to ``seen``."""
    project.code(CODE, "code/app.py")
    gate, seen = project.root / "gate", project.root / "seen"
    variables = f'{{ GATE = "{gate}", SEEN = "{seen}" }}'
    project.config(
        f'grace_s = 0\n[functions.app]\nhandler = "app.handler"\ncode = "code"\nenvironment = {variables}\n'
        "[tables.labels]\n"
    )
    return project


def accept(running: Running, n: int) -> bool:
    """Send an asynchronous invocation and return whether it was accepted.

    Otherwise it must be refused with 5xx, or the server must be unreachable.
    """
    try:
        running.client().invoke(FunctionName="app", InvocationType="Event", Payload=json.dumps({"n": n}))
    except ClientError as error:
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500
        return False
    except OSError:  # the server has stopped
        return False
    except Exception as error:
        if "onnect" not in type(error).__name__:
            raise
        return False
    return True


def removed(project: Project) -> None:
    for path in project.data.glob("thawd.db*"):
        path.unlink()


def log_removed(project: Project) -> None:
    (project.data / "thawd.db-wal").unlink()


def replaced(project: Project) -> None:
    other = project.root / "other.db"
    other.write_bytes(b"")
    other.replace(project.data / "thawd.db")


def moved(project: Project) -> None:
    (project.data / "thawd.db").rename(project.root / "moved.db")


def renamed(project: Project) -> None:
    project.data.rename(project.root / "renamed")


def folder_removed(project: Project) -> None:
    while project.data.exists():  # a file written meanwhile makes rmtree stop, so repeat it
        shutil.rmtree(project.data, ignore_errors=True)


def put_back(project: Project) -> None:
    """Do what the server's message tells the operator to do."""
    if (project.root / "renamed").exists():
        shutil.rmtree(project.data, ignore_errors=True)
        (project.root / "renamed").rename(project.data)
    if (project.root / "moved.db").exists():
        (project.root / "moved.db").rename(project.data / "thawd.db")
    for saved in project.data.glob("thawd.db.rescued-*"):
        (project.data / "thawd.db-wal").unlink(missing_ok=True)
        (project.data / "thawd.db-shm").unlink(missing_ok=True)
        saved.rename(project.data / "thawd.db")


@pytest.mark.parametrize("trouble", [removed, log_removed, replaced, moved, renamed, folder_removed])
def test_a_state_file_that_is_taken_away_is_noticed_before_anything_more_is_accepted_in_it(
    waiting: Project, trouble: Callable[[Project], None]
) -> None:
    accepted: list[int] = []
    over = threading.Event()
    with waiting.up() as running:

        def send() -> None:
            n = 0
            while not over.wait(0.005):
                if accept(running, n):
                    accepted.append(n)
                n += 1

        sender = threading.Thread(target=send)
        sender.start()
        eventually(lambda: len(accepted) >= 20, what="events")
        trouble(waiting)
        try:
            gone = len(accepted) + 1  # one more may have been accepted just before
            assert running.process.wait(DEADLINE_S) == 1
        finally:
            over.set()
            sender.join()
        running.until_said("thawd stops")
        assert len(accepted) <= gone
    if trouble is folder_removed:
        return
    put_back(waiting)
    (waiting.root / "gate").touch()
    seen = waiting.root / "seen"
    with waiting.up():
        eventually(
            lambda: seen.exists() and {int(line) for line in seen.read_text().split()} >= set(accepted),
            what="all accepted events",
        )


@pytest.mark.parametrize("trouble", [removed, moved, replaced])
def test_what_was_saved_is_told_of_at_the_next_start(waiting: Project, trouble: Callable[[Project], None]) -> None:
    with waiting.up() as running:
        assert accept(running, 1)
        trouble(waiting)
        assert running.process.wait(DEADLINE_S) == 1
        (saved,) = waiting.data.glob("thawd.db.rescued-*")
        assert stat.S_IMODE(saved.stat().st_mode) == 0o600
        running.until_said(f"is saved in {saved}")
    with waiting.up() as running:
        assert any(f"mv {saved} {waiting.data / 'thawd.db'}" in line for line in running.output)
    with sqlite3.connect(saved) as rescued:
        assert rescued.execute("SELECT count(*) FROM events").fetchone() == (1,)


def test_a_table_whose_file_is_removed_takes_nothing_more_and_the_server_lives(waiting: Project) -> None:
    waiting.code(
        """
        import thawd
        def handler(event, context):
            thawd.table("labels").put(event["key"], {"n": 1})
        """,
        "code/app.py",
    )
    with waiting.up() as running:
        assert running.invoke("app", {"key": "a"}) == (None, None)
        file = waiting.data / "tables" / "labels.db"
        aside = waiting.root / "labels.db"
        file.rename(aside)
        document, error = running.invoke("app", {"key": "b"})
        assert (error, "was removed, moved or replaced" in document["errorMessage"]) == ("Unhandled", True)
        aside.rename(file)
        assert running.invoke("app", {"key": "b"}) == (None, None)
    with sqlite3.connect(file) as table:
        assert {key for (key,) in table.execute("SELECT key FROM items")} == {"a", "b"}


def modes(folder: Path) -> dict[str, int]:
    """Return the modes of all files that others could read if the folder above them allowed it, by path."""
    found = {}
    for place, _, names in os.walk(folder):
        inner = Path(place).relative_to(folder)
        if inner.parts and inner.parts[0] in ("packages", "environments", "tmp"):
            if len(inner.parts) > 1:
                continue
            names.clear()
        for path in (Path(place), *(Path(place) / name for name in names)):
            found[str(path.relative_to(folder))] = stat.S_IMODE(path.lstat().st_mode)
    return found


def open_to_others(folder: Path) -> None:
    for place, _, names in os.walk(folder):
        Path(place).chmod(0o755)
        for name in names:
            (Path(place) / name).chmod(0o644)


def test_a_data_folder_that_is_there_is_made_its_owners_alone_and_that_is_told_once(waiting: Project) -> None:
    (waiting.root / "gate").touch()
    with waiting.up() as running:
        assert accept(running, 1)
        assert all(not mode & 0o077 for mode in modes(waiting.data).values()), modes(waiting.data)
    open_to_others(waiting.data)
    with waiting.up() as running:
        assert len([line for line in running.output if "was open to other users (mode 0755)" in line]) == 1
        found = {name: oct(mode) for name, mode in modes(waiting.data).items() if mode & 0o077}
        assert not found
        assert running.invoke("app", {"n": 2}) == (None, None)
    with waiting.up() as running:
        assert not any("open to other users" in line for line in running.output)
    open_to_others(waiting.data)
    (waiting.data / "theirs").write_text("")
    with waiting.up() as running:
        assert any("contains files of other programs (theirs)" in line for line in running.output)
        left = {name for name, mode in modes(waiting.data).items() if mode & 0o077}
        assert left == {".", "theirs"}


def test_a_backup_and_a_restore_are_their_owners_alone(waiting: Project) -> None:
    with waiting.up() as running:
        assert accept(running, 1)
        (waiting.root / "backup").mkdir(mode=0o755)
        assert waiting.command("backup", "backup").returncode == 0
    assert all(not mode & 0o077 for mode in modes(waiting.root / "backup").values()), modes(waiting.root / "backup")
    open_to_others(waiting.data)
    done = waiting.command("restore", "--replace", "backup")
    assert (done.returncode, "was open to other users" in done.stdout) == (0, True), done
    assert all(not mode & 0o077 for mode in modes(waiting.data).values()), modes(waiting.data)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to give a folder away")
def test_a_data_folder_of_another_user_is_refused_and_root_is_told(waiting: Project) -> None:
    python = unprivileged_python()
    open_to_all(waiting.root)
    waiting.data.mkdir(mode=0o777)
    waiting.data.chmod(0o777)
    os.chown(waiting.data, 12345, 12345)
    done = subprocess.run(
        [python, "-m", "thawd", "up"],
        cwd=waiting.root,
        env={**os.environ, **MODULES},
        user=65534,
        group=65534,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1, done
    assert "belongs to the user number 12345, who could read" in done.stderr
    assert "chown -R" in done.stderr
    with waiting.up() as running:
        assert any("who can change the code that thawd runs as root" in line for line in running.output)
        assert accept(running, 1)
        (waiting.root / "gate").touch()
