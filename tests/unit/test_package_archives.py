"""`thawd.deploy.packages.archives`: the bytes depend on paths, permissions and contents only."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import time
from pathlib import Path

import pytest

from thawd.deploy.packages.archives import write_tar, write_zip
from thawd.deploy.packages.contents import Item, items_of
from thawd.deploy.packages.measuring import Packer
from thawd.deploy.packages.sizes import END_BYTES
from thawd.deploy.packages.targets import PackageError, Target, python_version
from thawd.deploy.packages.trial import unpack

ODD_NAMES = ("with space.py", "ünï/cødé.txt", "-rf", "quote'\"name", "%s$HOME", "a" * 255, "..data", "日本.bin")


def folder_of(root: Path, *, reverse: bool = False) -> Path:
    """Make a folder with a bit of everything; the order of creation, times and unused permissions differ."""
    root.mkdir()
    for name in sorted(ODD_NAMES, reverse=reverse):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(name.encode() * 100)
        (root / name).chmod(0o600 if reverse else 0o664)
        os.utime(root / name, (time.time() - 1e6, 1e9 if reverse else 1.5e9))
    (root / "empty.txt").touch()
    (root / "hollow").mkdir(mode=0o700 if reverse else 0o755)
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o700 if reverse else 0o775)
    (root / "link").symlink_to("run")
    return root


def zipped(items: list[Item]) -> bytes:
    target = io.BytesIO()
    write_zip(items, target)
    return target.getvalue()


def tarred(items: list[Item]) -> bytes:
    target = io.BytesIO()
    write_tar(items, target)
    return target.getvalue()


@pytest.mark.parametrize("written", [zipped, tarred])
def test_an_archive_made_twice_is_the_same_bytes(tmp_path: Path, written: object) -> None:
    one = items_of(folder_of(tmp_path / "one"))
    other = items_of(folder_of(tmp_path / "other", reverse=True))
    assert written(one) == written(list(reversed(other)))  # type: ignore[operator]


def test_an_unpacked_zip_file_has_the_same_files_links_and_permissions(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "one")
    (tmp_path / "a.zip").write_bytes(zipped(items_of(folder)))
    unpack(tmp_path / "a.zip", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").rglob("*")} == {path.name for path in folder.rglob("*")}
    assert all((tmp_path / "out" / name).read_bytes() == name.encode() * 100 for name in ODD_NAMES)
    assert (tmp_path / "out/empty.txt").read_bytes() == b""
    assert (tmp_path / "out/hollow").is_dir()
    assert (tmp_path / "out/link").readlink() == Path("run")
    assert stat.S_IMODE((tmp_path / "out/run").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "out/empty.txt").stat().st_mode) == 0o644


def test_an_unpacked_tar_file_has_the_same_files_and_links(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "one")
    with tarfile.open(fileobj=io.BytesIO(tarred(items_of(folder))), mode="r|gz") as archive:
        archive.extractall(tmp_path / "out", filter="data")
    assert {path.name for path in (tmp_path / "out").rglob("*")} == {path.name for path in folder.rglob("*")}
    assert (tmp_path / "out/link").readlink() == Path("run")
    assert os.access(tmp_path / "out/run", os.X_OK)


def test_the_size_of_a_zip_file_is_known_before_it_is_written(tmp_path: Path) -> None:
    items = items_of(folder_of(tmp_path / "one"))
    assert Packer().packed_bytes(items) + END_BYTES == len(zipped(items))


@pytest.mark.parametrize("name", ["back\\slash", "new\nline", "bell\x07"])
def test_a_name_that_readers_of_zip_files_would_change_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(PackageError, match="rename it"):
        items_of(tmp_path)


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()
    with pytest.raises(PackageError, match="not UTF-8"):
        items_of(tmp_path)


def test_sockets_and_pipes_are_no_part_of_a_package(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    assert [item.path for item in items_of(tmp_path)] == ["file"]


@pytest.mark.parametrize(
    ("python", "architecture", "platform"),
    [
        ((3, 11), "x86_64", "x86_64-manylinux2014"),
        ((3, 12), "x86_64", "x86_64-manylinux_2_34"),
        ((3, 13), "arm64", "aarch64-manylinux_2_34"),
    ],
)
def test_wheels_are_chosen_for_the_glibc_of_the_runtime(
    python: tuple[int, int], architecture: str, platform: str
) -> None:
    target = Target(python=python, architecture=architecture)
    assert target.uv_platform == platform
    newest = "manylinux_2_26_" if python < (3, 12) else "manylinux_2_34_"
    assert target.pip_platforms[0].startswith(newest)
    assert f"manylinux2014_{target.machine}" in target.pip_platforms


@pytest.mark.parametrize("text", ["3.13", "python3.13", "3.13.2"])
def test_a_version_of_python_is_read(text: str) -> None:
    assert python_version(text) == (3, 13)


@pytest.mark.parametrize("text", ["3", "3.8", "4.0", "nodejs22.x", "", "3.x"])
def test_a_version_that_lambda_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(PackageError, match=r"it has 3\.9, 3\.10"):
        python_version(text)
