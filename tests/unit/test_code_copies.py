"""Packages: what is copied, under which name, and what happens when a folder, a link or a disk causes trouble."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.privileges import as_nobody
from thawd.errors import StoreError
from thawd.stores.code_copies import Package, PackageStore

SOURCES = Path(__file__).parents[2] / "src"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="thawd-packages-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def code(folder: Path) -> Path:
    """A small code folder."""
    path = folder / "code"
    path.mkdir()
    (path / "handler.py").write_text("def handler(event, context): return event\n")
    (path / "lib").mkdir()
    (path / "lib" / "data.bin").write_bytes(bytes(range(256)) * 8)
    return path


_on_mkdir: list[Callable[[str], object]] = []


def _hear_of_mkdir(event: str, arguments: tuple[object, ...]) -> None:
    if event == "os.mkdir":
        for listener in _on_mkdir:
            listener(str(arguments[0]))


sys.addaudithook(_hear_of_mkdir)


@contextmanager
def at_each_copy(action: Callable[[], object]) -> Iterator[None]:
    """Call a function between the reading of a folder and its copying, when the unfinished copy's folder is made."""
    _on_mkdir.append(lambda path: action() if Path(path).name.startswith(".new-") else None)
    try:
        yield
    finally:
        _on_mkdir.clear()


def contents(tree: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(tree)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(tree.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def entries(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_a_package_holds_what_the_folder_holds(folder: Path, code: Path) -> None:
    package = PackageStore(folder / "packages").publish(code)

    assert contents(package.path) == contents(code)
    assert package.size_bytes == sum(path.stat().st_size for path in code.rglob("*") if path.is_file())
    assert package.path == folder / "packages" / package.sha256
    assert entries(folder / "packages") == {package.sha256}


def test_an_unchanged_folder_is_the_same_package_and_not_copied_again(folder: Path, code: Path) -> None:
    store = PackageStore(folder / "packages")
    first = store.publish(code)
    inode = (first.path / "handler.py").stat().st_ino

    with at_each_copy(lambda: pytest.fail("copied again")):
        assert store.publish(code) == first
        assert PackageStore(folder / "packages").publish(code) == first
    assert (first.path / "handler.py").stat().st_ino == inode


def test_the_digest_does_not_depend_on_the_place_or_the_order_of_making(folder: Path, code: Path) -> None:
    other = folder / "elsewhere"
    other.mkdir()
    for path in sorted(code.rglob("*"), reverse=True):
        copy = other / path.relative_to(code)
        copy.parent.mkdir(exist_ok=True)
        if path.is_file():
            copy.write_bytes(path.read_bytes())

    store = PackageStore(folder / "packages")

    assert store.publish(other) == store.publish(code)


@pytest.mark.parametrize(
    "change",
    [
        lambda code: (code / "handler.py").write_text("x"),
        lambda code: (code / "handler.py").chmod(0o755),
        lambda code: (code / "handler.py").rename(code / "other.py"),
        lambda code: (code / "empty").mkdir(),
        lambda code: (code / "lib").chmod(0o700),
        lambda code: (code / "link").symlink_to("handler.py"),
        lambda code: (code / "new.py").touch(),
    ],
    ids=["content", "permissions", "name", "empty folder", "folder permissions", "link", "new file"],
)
def test_every_change_makes_another_package(folder: Path, code: Path, change: Callable[[Path], object]) -> None:
    store = PackageStore(folder / "packages")
    before = store.publish(code)
    old = contents(before.path)

    change(code)
    after = store.publish(code)

    assert after.sha256 != before.sha256
    assert contents(before.path) == old
    assert contents(after.path) == contents(code)


def test_permissions_are_kept_but_for_setuid(folder: Path, code: Path) -> None:
    (code / "tool").write_text("#!/bin/sh\n")
    (code / "tool").chmod(0o4755)
    (code / "lib").chmod(0o555)

    package = PackageStore(folder / "packages").publish(code)

    assert (package.path / "tool").stat().st_mode & 0o7777 == 0o755
    assert (package.path / "lib").stat().st_mode & 0o7777 == 0o555


def test_what_is_no_code_stays_out(folder: Path, code: Path) -> None:
    for name in (
        ".git/config",
        ".thawd/db",
        "__pycache__/a.pyc",
        "lib/__pycache__/b.pyc",
        "old.pyc",
        "uploads/cat.png",
    ):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).touch()
    (code / "my-environment").mkdir()
    (code / "my-environment" / "pyvenv.cfg").touch()
    (code / "venv").symlink_to(folder / "somewhere")
    (folder / "somewhere").mkdir()
    (folder / "somewhere" / "pyvenv.cfg").touch()
    (code / ".#handler.py").symlink_to("me@host.123")
    (code / "labels.db").touch()
    (code / ".env").write_text("kept: a file, not a folder")
    os.mkfifo(code / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(code / "socket"))
        package = PackageStore(code / "packages").publish(code, exclude=[code / "uploads", code / "labels.db"])

    assert contents(package.path).keys() == {".env", "handler.py", "lib/data.bin"}


def test_odd_names_and_large_files_are_copied(folder: Path, code: Path) -> None:
    (code / "a\nb c'\"é").write_text("x")
    Path(os.fsdecode(os.fsencode(code) + b"/not-utf8-\xff")).write_text("y")
    (code / "large").write_bytes(os.urandom(3 << 20))

    package = PackageStore(folder / "packages").publish(code)

    assert contents(package.path) == contents(code)


def test_links_within_the_folder_lead_into_the_copy(folder: Path, code: Path) -> None:
    (code / "lib" / "up.py").symlink_to("../handler.py")
    (code / "absolute.py").symlink_to(code / "handler.py")
    (code / "chain.py").symlink_to("absolute.py")
    (code / "also-lib").symlink_to("lib")
    (code / "self").symlink_to(".")

    package = PackageStore(folder / "packages").publish(code)
    shutil.rmtree(code)

    for name in ("lib/up.py", "absolute.py", "chain.py", "self/handler.py"):
        assert (package.path / name).read_text().startswith("def handler"), name
    assert (package.path / "also-lib" / "data.bin").stat().st_size == 2048


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nowhere.py", "nowhere.py, which does not exist"),
        ("../outside.py", "../outside.py, which is outside "),
        ("link", "round in a circle"),
        (".hidden/x.py", ".hidden/x.py, which is not part of a package"),
    ],
)
def test_a_link_that_would_be_broken_in_the_copy_is_told(folder: Path, code: Path, target: str, why: str) -> None:
    (folder / "outside.py").touch()
    (code / ".hidden").mkdir()
    (code / ".hidden" / "x.py").touch()
    (code / "link").symlink_to(target)

    with pytest.raises(StoreError) as refused:
        PackageStore(folder / "packages").publish(code)

    assert str(refused.value).startswith(f"{code}/link is a link to ")
    assert why in str(refused.value)
    assert "put the file itself there" in str(refused.value)


@pytest.mark.parametrize("kind", ["rewritten", "removed", "replaced by a folder", "by a pipe", "by a link"])
def test_a_folder_changed_while_copied_is_copied_again(folder: Path, code: Path, kind: str) -> None:
    changing = code / "handler.py"

    def change() -> None:
        if kind == "rewritten" and changing.read_text() != "new":
            changing.write_text("new")
        elif kind != "rewritten" and changing.is_file() and not changing.is_symlink():
            changing.unlink()
            if kind == "replaced by a folder":
                changing.mkdir()
            elif kind == "by a pipe":
                os.mkfifo(changing)
            elif kind == "by a link":
                changing.symlink_to("lib/data.bin")

    with at_each_copy(change):
        package = PackageStore(folder / "packages").publish(code)

    assert contents(package.path) == contents(code)
    assert (package.path / "handler.py").is_dir() == (kind == "replaced by a folder")
    assert entries(folder / "packages") == {package.sha256}


def test_a_file_that_is_written_to_all_the_time_is_told(folder: Path, code: Path) -> None:
    log = code / "lib" / "app.log"
    log.touch()

    with (
        at_each_copy(lambda: log.write_text(log.read_text() + "line\n")),
        pytest.raises(StoreError, match=r"code/lib/app\.log was written to during each of 3 attempts to copy"),
    ):
        PackageStore(folder / "packages").publish(code)

    assert entries(folder / "packages") == set()


def test_a_file_that_is_renamed_all_the_time_is_told(folder: Path, code: Path) -> None:
    one, other = code / "one", code / "other"
    one.touch()

    def rename() -> None:
        one.rename(other) if one.exists() else other.rename(one)

    with at_each_copy(rename), pytest.raises(StoreError, match=r"code/one was written to during"):
        PackageStore(folder / "packages").publish(code)


def test_a_damaged_package_is_made_again(folder: Path, code: Path) -> None:
    first = PackageStore(folder / "packages").publish(code)
    (first.path / "handler.py").write_bytes(b"\0" * 10)

    second = PackageStore(folder / "packages").publish(code)

    assert second == first
    assert contents(second.path) == contents(code)


def test_publishers_of_the_same_folder_do_not_hinder_each_other(folder: Path, code: Path) -> None:
    (code / "large").write_bytes(os.urandom(4 << 20))
    program = (
        "import sys; from pathlib import Path; from thawd.stores.code_copies import PackageStore\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(PackageStore(Path(sys.argv[1])).publish(Path(sys.argv[2])).sha256)"
    )
    arguments = [sys.executable, "-c", program, str(folder / "packages"), str(code)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}

    # Given four processes that are about to publish the same code
    publishers = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(4)
    ]
    for publisher in publishers:
        assert publisher.stdout and publisher.stdout.readline() == "ready\n"
    # When all of them publish
    for publisher in publishers:
        assert publisher.stdin
        publisher.stdin.write("\n")
        publisher.stdin.flush()
    digests = {publisher.communicate(timeout=300)[0].strip() for publisher in publishers}

    # Then they get the same digest, and there is one complete package
    [digest] = digests
    assert entries(folder / "packages") == {digest}
    assert contents(folder / "packages" / digest) == contents(code)


def test_only_what_is_kept_remains(folder: Path, code: Path) -> None:
    store = PackageStore(folder / "packages")
    packages: list[Package] = []
    for text in ("one", "two", "three"):
        (code / "handler.py").write_text(text)
        (code / "lib").chmod(0o555)
        packages.append(store.publish(code))
    (folder / "packages" / ".new-dead").mkdir()
    os.utime(folder / "packages" / ".new-dead", (0, 0))
    (folder / "packages" / ".new-alive").mkdir()
    (folder / "packages" / ".old-half-removed").mkdir()

    store.remove_except(lambda name: name == packages[1].sha256)

    assert entries(folder / "packages") == {packages[1].sha256, ".new-alive"}
    assert contents(packages[1].path)["handler.py"] == b"two"
    (code / "handler.py").write_text("one")
    assert store.publish(code) == packages[0]
    assert contents(packages[0].path) == contents(code)


def test_cleaning_up_before_the_first_publishing_does_nothing(folder: Path) -> None:
    PackageStore(folder / "packages").remove_except(lambda name: False)

    assert not (folder / "packages").exists()


def test_what_is_no_folder_is_told(folder: Path, code: Path) -> None:
    for path in (folder / "nope", code / "handler.py"):
        with pytest.raises(StoreError, match=f"{path} is not a folder"):
            PackageStore(folder / "packages").publish(path)


def test_a_file_that_may_not_be_read_is_told(folder: Path, code: Path) -> None:
    (code / "secret.py").touch()
    (code / "secret.py").chmod(0)

    with as_nobody(), pytest.raises(StoreError, match=r"code/secret\.py cannot be read: Permission denied; every file"):
        PackageStore(folder / "packages").publish(code)


def test_a_data_folder_that_may_not_be_written_to_is_told(folder: Path, code: Path) -> None:
    (folder / "packages").mkdir()
    (folder / "packages").chmod(0o555)

    with as_nobody(), pytest.raises(StoreError, match="packages cannot be written: Permission denied; thawd must be"):
        PackageStore(folder / "packages").publish(code)


def test_a_full_disk_is_told_and_nothing_is_kept(folder: Path, code: Path) -> None:
    (code / "large").write_bytes(os.urandom(1 << 20))
    (folder / "disk").mkdir()
    program = (
        "import os, sys; from pathlib import Path; from thawd.errors import StoreFullError\n"
        "from thawd.stores.code_copies import PackageStore\n"
        "try: PackageStore(Path(sys.argv[1])).publish(Path(sys.argv[2]))\n"
        "except StoreFullError as error: print(error.status, os.listdir(sys.argv[1]), error)\n"
    )
    mount = 'mount -t tmpfs -o size=512k none "$1" || exit 77; shift; exec "$@"'
    arguments = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", str(folder / "disk")]
    arguments += [sys.executable, "-c", program, str(folder / "disk"), str(code)]

    done = subprocess.run(
        arguments, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCES)}, timeout=300
    )

    if done.returncode in (1, 77) and not done.stdout:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    assert done.stdout.startswith("503 [] "), done
    assert "large cannot be written: No space left on device; free some space" in done.stdout


def test_what_was_made_for_a_package_is_stored_with_everything_in_it(folder: Path) -> None:
    files = {".libs/lib.so": "so", "a/__pycache__/b.pyc": "code", "c.pyc": "code", "env/pyvenv.cfg": "", "d.py": "d"}

    def make(target: Path) -> None:
        for name, text in files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(text)
        (target / ".link").symlink_to(".libs/lib.so")

    for store in (PackageStore(folder / "packages"), PackageStore(folder / "packages")):  # a restart trusts it again
        package = store.publish_made(make)
        assert all((package.path / name).read_text() == text for name, text in files.items())
        assert (package.path / ".link").read_text() == "so"
    assert [path.name for path in (folder / "packages").iterdir()] == [package.sha256]


def test_what_could_not_be_made_leaves_nothing(folder: Path) -> None:
    def make(target: Path) -> None:
        (target / "half").write_text("half")
        raise OSError(28, "No space left on device")

    store = PackageStore(folder / "packages")
    with pytest.raises(StoreError):
        store.publish_made(make)
    assert list((folder / "packages").iterdir()) == []
