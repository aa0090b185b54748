"""``thawd snapshot`` as its users run it: as separate processes, on a folder that the snapshot store has filled."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import prestarted
from tests.unit.snapshot_images import whole
from thawd.snapshot.store.images import ImageOrigin, Snapshot, SnapshotStore

from .conftest import DEADLINE_S, Project


def command(project: Project, *arguments: str | Path, status: int = 0, **kwargs: Any) -> tuple[str, str]:
    """Run ``thawd snapshot …`` and return its standard output and standard error."""
    done = prestarted.run(
        [sys.executable, "-m", "thawd", "snapshot", *map(str, arguments)],
        cwd=project.root,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        **kwargs,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def add(store: SnapshotStore, *, function: str = "classify", version: str = "1", content: bytes = b"") -> Snapshot:
    """Add a snapshot of a valid image, or of `content`."""
    image = whole()
    image.string(f"{function}:{version}")  # makes every image different
    with store.begin() as draft:
        draft.image.write_bytes(content or image.image())
        origin = ImageOrigin(
            function=function,
            version=version,
            key=f"key of {version}",
            python="3.12.1",
            init_ms=2900.5,
            freeze_ms=210.25,
            data_bytes=49152,
            self_test="passed",
            self_test_ms=23.5,
        )
        return store.adopt(draft, origin)


@pytest.fixture
def store(project: Project) -> SnapshotStore:
    project.config("[functions.classify]\nhandler = 'app.handler'\n")
    return SnapshotStore(project.data / "snapshots")


def test_an_empty_list_says_how_to_get_a_snapshot(project: Project, store: SnapshotStore) -> None:
    said, _ = command(project, "list")
    assert f"no snapshots in {store.folder}; `thawd up` takes a snapshot" in said
    assert json.loads(command(project, "list", "--json")[0]) == []
    assert not store.folder.exists()
    project.config("snapshots = 'off'\n[functions.classify]\nhandler = 'app.handler'\n")
    assert 'thawd.toml has snapshots = "off"' in command(project, "list")[0]


def test_the_list_shows_what_is_in_use_unused_and_not_usable(project: Project, store: SnapshotStore) -> None:
    snapshots = {name: add(store, function=name) for name in ("used", "unused", "loose")}
    snapshots["loose"].path.chmod(0o644)
    with store.use(snapshots["used"]):
        said, errors = command(project, "list")
        documents = json.loads(command(project, "list", "--json")[0])
    header, *rows, total = said.splitlines()
    assert " ".join(header.split()) == "id function on disk created last used init freeze self-test state"
    states = {row.split()[1]: row.rpartition("  ")[2] for row in rows}
    assert states == {"used:1": "in use", "unused:1": "unused", "loose:1": "not usable"}
    assert all(f"{snapshot.id}  {name}:1" in said for name, snapshot in snapshots.items())
    assert "2.90 s  210 ms  passed" in rows[0]
    assert [" now  " in row for row in rows] == [row.split()[1] == "used:1" for row in rows]
    assert total.startswith("3 snapshots, 0.")
    assert (
        "the mode 0644, with which other users may access it. The snapshot is not used; remove it: thawd snapshot rm"
        in errors
    )
    shown = next(item for item in documents if item["function"] == "used")
    assert shown["id"] == snapshots["used"].sha256
    assert (shown["in_use"], shown["problem"]) == (True, None)
    assert shown["created_at"].endswith("Z")
    assert (shown["init_ms"], shown["self_test"], shown["python"]) == (2900.5, "passed", "3.12.1")


def test_a_damaged_sidecar_and_odd_times_do_not_break_the_list(project: Project, store: SnapshotStore) -> None:
    damaged, odd = add(store, version="1"), add(store, version="2")
    damaged.path.with_suffix(".json").write_text("{")
    sidecar = odd.path.with_suffix(".json")
    sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), "created_unix_s": 1e300}))
    said, errors = command(project, "list")
    assert f"{damaged.id}  ?" in said
    assert "is damaged" in errors
    assert len(json.loads(command(project, "list", "--json")[0])) == 2
    command(project, "inspect", odd.id)


@pytest.mark.parametrize("name", ["id", "prefix", "function", "function and version"])
def test_inspect_shows_where_a_snapshot_comes_from_and_what_is_in_it(
    project: Project, store: SnapshotStore, name: str
) -> None:
    snapshot = add(store)
    text = {"id": snapshot.sha256, "prefix": snapshot.id[:6], "function": "classify"}.get(name, "classify:1")
    said, _ = command(project, "inspect", text)
    assert said.startswith(f"classify:1, {snapshot.sha256}\n")
    assert "Python 3.12.1" in said
    assert "init 2.90 s, freeze 210 ms, self-test passed in 24 ms" in said
    assert "Largest parts, MiB" in said
    document = json.loads(command(project, "inspect", text, "--json")[0])
    assert document["snapshot"]["id"] == snapshot.sha256
    assert document["image"]["memory"]["mapped_bytes"] > 0


def test_inspect_reads_an_image_anywhere_without_a_configuration(project: Project) -> None:
    (project.root / "folder").mkdir()
    image = whole().write(project.root / "folder" / "my.img")
    whole().write(project.root / "classify")
    for path in (image, "folder/my.img", "classify"):
        assert "Largest parts, MiB" in command(project, "inspect", path)[0]
        document = json.loads(command(project, "inspect", path, "--json")[0])
        assert document["snapshot"] is None
        assert len(document["image"]["threads"]) == 2


def test_inspect_can_show_every_row(project: Project) -> None:
    image = whole().write(project.root / "my.img")
    assert len(command(project, "inspect", image, "--full")[0]) > len(command(project, "inspect", image)[0])


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be opened: No such file"), (b"hello", "is not an image: it"), (b"THAWDIMG", "is cut off")],
)
def test_inspect_says_why_a_file_is_no_image(project: Project, content: bytes | None, said: str) -> None:
    path = project.root / "file.img"
    if content is not None:
        path.write_bytes(content)
    for options in ([], ["--json"]):
        out, errors = command(project, "inspect", path, *options, status=1)
        assert out == ""
        assert said in errors
        assert str(path) in errors


def test_verify_tells_sound_from_damaged(project: Project, store: SnapshotStore) -> None:
    sound, damaged = add(store, version="1"), add(store, version="2")
    assert command(project, "verify", "classify:1")[0] == f"{sound.id}  classify:1  sound\n"
    with damaged.path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    said, errors = command(project, "verify", status=1)
    assert f"{sound.id}  classify:1  sound\n" in said
    assert f"{damaged.id}  classify:2  not sound\n" in said
    assert "is damaged: its SHA-256 is" in errors
    out, _ = command(project, "verify", "--json", status=1)
    assert {item["id"]: item["sound"] for item in json.loads(out)} == {sound.sha256: True, damaged.sha256: False}


def test_verify_goes_on_after_what_cannot_be_read(project: Project, store: SnapshotStore) -> None:
    link, folder, sound = (add(store, version=version) for version in "123")
    link.path.unlink()
    link.path.symlink_to("nowhere")
    folder.path.unlink()
    folder.path.mkdir()
    said, errors = command(project, "verify", status=1)
    assert f"{sound.id}  classify:3  sound\n" in said
    assert said.count("not sound") == 2
    assert errors.count("is not a regular file. The snapshot is not used; remove it") == 2
    command(project, "rm", link.id, folder.id)
    assert len(store.snapshots()) == 1


def test_verify_of_nothing_is_no_failure(project: Project, store: SnapshotStore) -> None:
    assert command(project, "verify")[0] == f"no snapshots in {store.folder}\n"
    assert json.loads(command(project, "verify", "--json")[0]) == []


def test_verify_shows_how_far_it_is_on_a_terminal(project: Project, store: SnapshotStore) -> None:
    snapshot = add(store)
    master, slave = pty.openpty()
    done = prestarted.run(
        [sys.executable, "-m", "thawd", "snapshot", "verify"], cwd=project.root, stdout=subprocess.PIPE, stderr=slave
    )
    os.close(slave)
    said = os.read(master, 1 << 16).decode()
    os.close(master)
    assert done.returncode == 0
    assert snapshot.id in said
    assert "100%" in said
    assert done.stdout.decode() == f"{snapshot.id}  classify:1  sound\n"


def test_rm_removes_what_is_named_and_says_what_it_could_not(project: Project, store: SnapshotStore) -> None:
    first, _, third = (add(store, version=version) for version in "123")
    said, errors = command(project, "rm", first.id, "classify:2", "classify:2", "nobody", status=1)
    assert f"removed {first.id} (classify:1), 0." in said
    assert said.count("removed") == 2
    assert "there is no snapshot 'nobody'" in errors
    assert [snapshot.sha256 for snapshot in store.snapshots()] == [third.sha256]


def test_rm_leaves_what_is_in_use(project: Project, store: SnapshotStore) -> None:
    used = add(store, version="1")
    with store.use(used):
        _, errors = command(project, "rm", "classify", status=1)
        assert f"is in use by process {os.getpid()}" in errors
        add(store, version="2")
        assert "removed" in command(project, "rm", "--unused")[0]
        add(store, version="3")
        said, errors = command(project, "rm", "--all", status=1)
        assert "(classify:3)" in said
        assert "(classify:1) is in use" in errors
    command(project, "rm", "--all")
    assert store.snapshots() == []
    assert "nothing to remove" in command(project, "rm", "--all")[0]


def test_rm_takes_what_was_left_half_made(project: Project, store: SnapshotStore) -> None:
    add(store)
    (store.folder / ".new-dead").mkdir()
    said, _ = command(project, "rm", "--unused")
    assert "removed 1 unfinished file" in said
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["--all", "--unused"], ["abcd", "--all"]])
def test_rm_wants_to_know_exactly_what(project: Project, store: SnapshotStore, arguments: list[str]) -> None:
    assert "choose snapshots by ID, with --unused or with --all" in command(project, "rm", *arguments, status=2)[1]


@pytest.mark.parametrize("verb", [["list"], ["inspect", "abcd"], ["verify"], ["rm", "abcd"]])
def test_a_mistake_in_the_configuration_is_told(project: Project, store: SnapshotStore, verb: list[str]) -> None:
    project.config("nonsense = 1\n")
    _, errors = command(project, *verb, status=1)
    assert "server.nonsense: found an unknown option" in errors
    assert "thawd: " in errors
    assert "in the configuration" in errors


@pytest.mark.parametrize("verb", [["inspect"], ["verify"], ["rm"]])
def test_a_name_that_no_snapshot_has_is_told(project: Project, store: SnapshotStore, verb: list[str]) -> None:
    add(store, version="1"), add(store, version="2")
    assert "`thawd snapshot list` shows all snapshots" in command(project, *verb, "nobody", status=1)[1]
    assert "matches several snapshots" in command(project, *verb, "classify", status=1)[1]


def test_another_data_folder_is_found_by_configuration_and_environment(project: Project, store: SnapshotStore) -> None:
    other = SnapshotStore(project.root / "other" / "snapshots")
    snapshot = add(other)
    said, _ = command(project, "list", env={**os.environ, "THAWD_DATA": str(project.root / "other")})
    assert snapshot.id in said
    config = project.root / "other.toml"
    config.write_text("[server]\ndata = 'other'\n[functions.f]\nhandler = 'a.b'\n")
    assert snapshot.id in command(project, "list", "-c", config)[0]


def test_every_verb_has_help(project: Project) -> None:
    said, _ = command(project, "-h")
    for verb in ("list", "inspect", "verify", "rm"):
        assert verb in said
        assert "Show this message" in command(project, verb, "-h")[0]
