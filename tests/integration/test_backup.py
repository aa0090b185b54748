"""`thawd backup` beside a running server, and `thawd restore`: all data is restored; a bad restore changes nothing."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from tests import prestarted
from tests.privileges import as_nobody, open_to_all
from thawd import config
from thawd.errors import StoreError
from thawd.server import backup as backups

from .conftest import Project, Running, eventually
from .test_control_durability import create

CODE = """
import thawd

def keep(event, context):
    return {"got": event}

def fails(event, context):
    raise ValueError("always")

later = fails
"""
CONFIGURATION = """
[functions.keep]
handler = "app.keep"
on_success = "table:kept"

[functions.fails]
handler = "app.fails"
maximum_retry_attempts = 0

[functions.later]
handler = "app.later"

[buckets.uploads]
notify = [{ function = "keep" }]

[tables.kept]
[tables.never-used]
"""


def declare(project: Project) -> Project:
    """The function `later` keeps its events waiting, because its retries are an hour away."""
    project.code(CODE)
    project.config(CONFIGURATION)
    file = project.root / "thawd.toml"
    file.write_text(file.read_text().replace("retry_wait_s = 0.05", "retry_wait_s = 3600"))
    return project


@pytest.fixture
def lively(project: Project) -> Project:
    """A project that has not been served yet."""
    return declare(project)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that has been served, with its backup; tests copy it."""
    project = declare(Project(tmp_path_factory.mktemp("filled")))
    fill(project)
    return project


@pytest.fixture
def backup(lively: Project, filled: Project) -> Path:
    """The backup of `lively`, which has data by then."""
    shutil.copytree(filled.root, lively.root, dirs_exist_ok=True)
    return lively.root / "the-backup"


def rows(project: Project) -> dict[str, dict[str, object]]:
    return project.rows("kept")


def depth(running: Running, function: str, *states: str) -> int:
    """Return the number of events in these states, all read at one moment."""
    counts = running.status()["functions"][function]
    return sum(counts[state] for state in states)


def fill(project: Project) -> Path:
    """Fill a server with a row, an object, a dead letter, an uploaded function and a queued event.

    Return its backup.
    """
    backup = project.root / "the-backup"
    with project.up() as running:
        create(running, "uploaded", "from the zip file")
        running.client().invoke(FunctionName="fails", InvocationType="Event", Payload=b"{}")
        running.client().invoke(FunctionName="later", InvocationType="Event", Payload=b'{"waits": 1}')
        (project.root / "uploads" / "one.txt").write_text("1")
        eventually(lambda: len(rows(project)) == 1, what="the row")
        eventually(lambda: depth(running, "fails", "dead") == 1, what="the dead letter")
        # The row exists before the queue records the end of its event. In between, a backup would make the event run
        # again.
        eventually(lambda: depth(running, "keep", "leased") == 0, what="the end of the object's event")
        made = project.command("backup", str(backup), "--buckets")
        assert made.returncode == 0, made.stderr
        assert f"`thawd restore {backup}` restores them" in made.stdout
    return backup


def test_everything_is_back_after_the_data_folder_was_lost(lively: Project, backup: Path) -> None:
    before = rows(lively)
    assert (backup / "thawd.toml").read_text() == (lively.root / "thawd.toml").read_text()
    for lost in (".thawd", "uploads"):
        (lively.root / lost).rename(lively.root / f"{lost}-lost")
    done = lively.command("restore", str(backup))
    assert done.returncode == 0, done.stderr
    with lively.up() as running:
        assert rows(lively) == before
        assert depth(running, "fails", "dead") == 1
        assert depth(running, "later", "queued", "leased") == 1
        assert running.invoke("uploaded", {}) == ("from the zip file", None)
        assert (lively.root / "uploads" / "one.txt").read_text() == "1"
        # The first object was there when the backup was made, so it does not count as new. The second one does.
        (lively.root / "uploads" / "two.txt").write_text("2")
        eventually(lambda: len(rows(lively)) == 2, what="the second row")
        runs = running.status()["functions"]["keep"]["invocations"]
        assert sum(kind["count"] for kind in runs.values()) == 1


def test_a_restore_moves_nothing_unless_told_and_then_aside(lively: Project, backup: Path) -> None:
    before = rows(lively)
    (lively.root / "uploads" / "later.txt").write_text("later")
    refused = lively.command("restore", str(backup))
    assert refused.returncode == 1
    assert "exists already" in refused.stderr
    assert "--replace" in refused.stderr
    assert (lively.root / "uploads" / "later.txt").exists()
    replaced = lively.command("restore", str(backup), "--replace")
    assert replaced.returncode == 0, replaced.stderr
    assert rows(lively) == before
    assert not (lively.root / "uploads" / "later.txt").exists()
    (aside,) = lively.root.glob("uploads.before-restore-*")
    assert (aside / "later.txt").read_text() == "later"


def test_what_a_restore_of_the_same_second_moved_aside_stays(lively: Project, backup: Path) -> None:
    names = [time.strftime("%Y%m%d-%H%M%S", time.localtime(time.time() + ahead)) for ahead in range(120)]
    for name in names:
        (lively.root / f"uploads.before-restore-{name}").mkdir()
        (lively.root / f"uploads.before-restore-{name}" / "kept").touch()
        (lively.root / ".thawd" / f"thawd.db.before-restore-{name}").write_text("kept")
    replaced = lively.command("restore", str(backup), "--replace")
    assert replaced.returncode == 0, replaced.stderr
    assert len(list(lively.root.glob("uploads.before-restore-*/kept"))) == len(names)
    assert len(list(lively.root.glob("uploads.before-restore-*"))) == len(names) + 1
    kept = [path for path in (lively.root / ".thawd").glob("thawd.db.before-restore-*") if path.stat().st_size == 4]
    assert len(kept) == len(names)


def test_a_restore_does_not_take_the_log_of_another_file_for_its_own(lively: Project, backup: Path) -> None:
    with lively.up() as running:
        running.client().invoke(FunctionName="later", InvocationType="Event", Payload=b'{"lost": 1}')
        running.process.kill()
        running.process.wait()
    state = lively.data / "thawd.db"
    assert state.with_name("thawd.db-wal").stat().st_size
    state.rename(state.with_name("aside"))  # the state that a restore leaves when it is interrupted at this point
    refused = lively.command("restore", str(backup))
    assert refused.returncode != 0
    assert "exists already" in refused.stderr
    assert lively.command("restore", str(backup), "--replace").returncode == 0
    with lively.up() as running:
        assert depth(running, "later", "queued", "leased") == 1


def test_a_restore_is_refused_beside_a_running_server(lively: Project, backup: Path) -> None:
    with lively.up():
        refused = lively.command("restore", str(backup), "--replace")
    assert refused.returncode == 1
    assert "another thawd" in refused.stderr


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing", "manifest", "newer", "no backup"])
def test_a_damaged_backup_is_refused_before_anything_is_touched(lively: Project, backup: Path, damage: str) -> None:
    state = backup / "thawd.db"
    manifest = backup / "manifest.json"
    if damage == "flipped":
        data = bytearray(state.read_bytes())
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    elif damage == "cut":
        state.write_bytes(state.read_bytes()[:-1])
    elif damage == "missing":
        (backup / "tables" / "kept.db").unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    elif damage == "newer":
        manifest.write_text(manifest.read_text().replace('"schema": ', '"schema": 9'))
    else:
        manifest.unlink()
    state_before = (lively.root / ".thawd" / "thawd.db").read_bytes()
    refused = lively.command("restore", str(backup), "--replace")
    assert refused.returncode == 1
    assert str(backup) in refused.stderr
    if damage == "newer":
        assert "was made by a newer thawd, " in refused.stderr
        assert "or restore a backup that this version made" in refused.stderr
    assert (lively.root / ".thawd" / "thawd.db").read_bytes() == state_before
    assert not list(lively.root.glob("*.before-restore-*"))


def test_a_backup_is_of_one_moment_while_events_come(lively: Project) -> None:
    """The queue and its payloads match in every backup. Nothing accepted before a backup began is missing from it."""
    with lively.up() as running:
        accepted = 0
        stop = threading.Event()

        def accept() -> None:
            nonlocal accepted
            client = running.client()
            while not stop.wait(0.005):
                client.invoke(FunctionName="later", InvocationType="Event", Payload=b"{}")
                accepted += 1

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            least = []
            for number in range(2):
                eventually(lambda number=number: accepted > 20 * number, what="events")  # type: ignore[misc]
                least.append(accepted)
                assert lively.command("backup", str(lively.root / f"backup-{number}")).returncode == 0
        finally:
            stop.set()
            thread.join()
    for number, count in enumerate(least):
        for lost in lively.root.glob(".thawd"):
            lost.rename(lively.root / f"lost-{number}")
        assert lively.command("restore", str(lively.root / f"backup-{number}")).returncode == 0
        with lively.up() as running:
            waiting = depth(running, "later", "queued", "leased")
            assert waiting >= count


def test_a_backup_takes_a_table_that_is_being_made_for_an_empty_one(lively: Project) -> None:
    with lively.up():
        pass
    file = lively.data / "tables" / "kept.db"
    assert not file.exists()
    file.parent.mkdir(exist_ok=True)
    file.touch()
    made = lively.command("backup", str(lively.root / "the-backup"))
    assert made.returncode == 0, made.stderr
    assert "kept: has no item yet" in made.stdout + made.stderr
    assert not (lively.root / "the-backup" / "tables" / "kept.db").exists()


def test_a_backup_may_be_made_into_the_folder_one_is_in(lively: Project) -> None:
    with lively.up():
        pass
    folder = lively.root / "empty"
    folder.mkdir()
    configuration = str(lively.root / "thawd.toml")
    made = prestarted.run(
        [sys.executable, "-m", "thawd", "backup", ".", "-c", configuration], cwd=folder, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert (folder / "thawd.db").is_file()


def test_code_that_goes_away_while_a_backup_is_made_is_in_it_when_the_state_names_it(
    lively: Project, tmp_path: Path
) -> None:
    with lively.up() as running:
        create(running, "uploaded", "from the zip file")
        running.client().invoke(FunctionName="keep", InvocationType="Event", Payload=b"{}")
        eventually(lambda: len(rows(lively)) == 1, what="the row")
    (named,) = (lively.data / "code").glob("*.zip")
    settings = config.load(lively.root / "thawd.toml", environ={})

    def meanwhile(said: str) -> None:
        if said == "table kept":  # the state file has been copied
            named.unlink()

    manifest = backups.make(settings, tmp_path / "the-backup", with_buckets=False, say=meanwhile)
    assert f"code/{named.name}" in manifest.files


@pytest.mark.parametrize("where", ["uploads", ".thawd"])
def test_a_backup_is_not_made_into_what_it_is_of(lively: Project, where: str) -> None:
    with lively.up():
        pass
    (lively.root / "uploads" / "one.txt").write_text("1")
    before = sorted((lively.root / where).rglob("*"))
    refused = lively.command("backup", str(lively.root / where / "below" / "backup"), "--buckets")
    assert refused.returncode == 1
    assert "name a folder outside of it" in refused.stderr
    assert sorted((lively.root / where).rglob("*")) == before


def test_a_backup_leaves_nothing_behind_when_it_cannot_be_made(lively: Project) -> None:
    nothing = lively.command("backup", str(lively.root / "backup"))
    assert nothing.returncode == 1
    assert "nothing to back up" in nothing.stderr
    backup = fill(lively)
    again = lively.command("backup", str(backup))
    assert again.returncode == 1
    assert "exists already" in again.stderr
    state = lively.root / ".thawd" / "thawd.db"
    data = bytearray(state.read_bytes())
    data[4096 * 2 : 4096 * 3] = bytes(4096)
    state.write_bytes(data)
    damaged = lively.command("backup", str(lively.root / "of-damaged"))
    assert damaged.returncode == 1
    assert "is damaged" in damaged.stderr
    assert not list(lively.root.glob("of-damaged*"))


def test_no_server_starts_on_what_a_restore_left_half_done(lively: Project, backup: Path) -> None:
    before = rows(lively)
    # Given a restore that was interrupted after its tables were restored and before its state file was
    (lively.root / ".thawd" / "restore-unfinished").write_text(str(backup))
    (lively.root / ".thawd" / "thawd.db").unlink()
    refused = lively.command("up")
    assert refused.returncode == 1
    assert f"thawd restore --replace {backup}" in refused.stderr
    assert not (lively.root / ".thawd" / "thawd.db").exists()
    assert lively.command("restore", "--replace", str(backup)).returncode == 0
    with lively.up() as running:
        assert rows(lively) == before
        assert depth(running, "fails", "dead") == 1


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (["tables/kept.db"], "kept.db exists already; add --replace to rename it"),
        (["tables/kept.db", "code/a"], "exists already, and so does 1 other file or folder; add --replace to rename"),
        (["tables/kept.db", "code/a", "thawd.db"], "exists already, and so do 2 other files or folders; add --replace"),
    ],
)
def test_a_restore_counts_the_files_that_are_in_its_way(
    lively: Project, backup: Path, targets: list[str], words: str
) -> None:
    shutil.rmtree(lively.data)
    shutil.rmtree(lively.root / "uploads")
    for target in targets:
        (lively.data / target).parent.mkdir(parents=True, exist_ok=True)
        (lively.data / target).touch()
    refused = lively.command("restore", str(backup))
    assert refused.returncode == 1
    assert words in refused.stderr


@pytest.mark.parametrize("has_file", [True, False])
def test_a_restore_names_the_configuration_in_the_backup_only_if_there_is_one(
    lively: Project, backup: Path, has_file: bool
) -> None:
    file = lively.root / "thawd.toml"
    file.write_text(file.read_text().replace("[tables.kept]", "").replace('on_success = "table:kept"', ""))
    if not has_file:
        (backup / "thawd.toml").unlink()
        manifest = backup / "manifest.json"
        entries = msgspec.json.decode(manifest.read_bytes())
        entries["files"] = {name: each for name, each in entries["files"].items() if (backup / name).exists()}
        manifest.write_bytes(msgspec.json.encode(entries))
    refused = lively.command("restore", str(backup))
    assert refused.returncode == 1
    assert "the backup contains the embedded table kept" in refused.stderr
    assert (f"compare it with {backup / 'thawd.toml'}" in refused.stderr) == has_file
    assert "--config" in refused.stderr or has_file


def test_a_backup_names_the_folder_that_must_be_writable(lively: Project) -> None:
    fill(lively)
    outer = lively.root / "outer"
    (outer / "monday").mkdir(parents=True)
    os.chown(outer / "monday", 65534, -1)
    for folder in (lively.root, lively.root / ".thawd"):
        open_to_all(folder)
    settings = config.load(lively.root / "thawd.toml", environ={})
    for folder in (outer / "monday", outer / "other" / "monday"):
        with as_nobody(), pytest.raises(StoreError, match=rf"cannot write to {outer}, and must: .*monday\.unfinished"):
            backups.make(settings, folder, with_buckets=False, say=print)


def test_a_backup_says_whether_a_file_or_a_full_folder_has_its_name(lively: Project) -> None:
    settings = config.load(lively.root / "thawd.toml", environ={})
    (lively.root / "file").touch()
    (lively.root / "full" / "inner").mkdir(parents=True)
    for name, words in (("file", "it is a file; name a new folder"), ("full", "exists already and is not empty; name")):
        with pytest.raises(StoreError, match=words):
            backups.make(settings, lively.root / name, with_buckets=False, say=print)
