"""Uploaded code: a package with many files is used before it is on the disk, and only by the process that made it."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import pause
from thawd.stores import uploaded_code
from thawd.stores.uploaded_code import CodeStore


def _until(is_so: Callable[[], bool]) -> None:
    begun_s = time.monotonic()
    while not is_so():
        assert time.monotonic() < begun_s + 60
        pause(begun_s)


def _zip(count: int) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        for number in range(count):
            made.writestr(f"folder{number % 7}/file{number}.py", f"number = {number}")
    return content.getvalue()


def test_a_package_that_was_not_synced_is_unpacked_again_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    monkeypatch.setattr(os, "sync", lambda: synced.wait(60))  # a slow disk
    first = CodeStore(tmp_path)
    code = asyncio.run(first.add(_zip(300)))  # does not wait for the disk
    folder = first.ensure(code.name)
    assert folder.stat().st_mode & stat.S_ISVTX
    (folder / "folder0/file0.py").write_bytes(b"")  # as after a power cut
    (folder / "folder1/file1.py").unlink()
    assert CodeStore(tmp_path).ensure(code.name) == folder
    assert (folder / "folder0/file0.py").read_text() == "number = 0"
    assert (folder / "folder1/file1.py").exists()
    synced.set()
    _until(lambda: not folder.stat().st_mode & stat.S_ISVTX)
    assert CodeStore(tmp_path).ensure(code.name) == folder
    (folder / "folder0/file0.py").write_text("number = 5")
    CodeStore(tmp_path).ensure(code.name)
    assert (folder / "folder0/file0.py").read_text() == "number = 5"  # once synced, it is as it is


def test_functions_that_start_together_unpack_a_package_that_was_not_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    monkeypatch.setattr(os, "sync", lambda: synced.wait(60))
    code = asyncio.run(CodeStore(tmp_path).add(_zip(300)))
    found: list[int] = []
    store = CodeStore(tmp_path)

    def start(_: int) -> None:
        folder = store.ensure(code.name)
        found.append(sum(len(names) for _, _, names in os.walk(folder)))

    with ThreadPoolExecutor(4) as functions:
        list(functions.map(start, range(4)))
    synced.set()
    assert found == [300] * 4


def test_code_that_was_announced_is_unpacked_before_it_is_added(tmp_path: Path) -> None:
    store = CodeStore(tmp_path)
    store.begin(_zip(3))
    store.begin(b"no zip file")  # `add` says why
    _until(lambda: len(list((tmp_path / "code").glob("*.zip"))) == 1)
    code = asyncio.run(store.add(_zip(3)))
    assert store.recent() >= {code.name}
    assert (store.package_path(code.name) / "folder2/file2.py").read_text() == "number = 2"


class Links(dict[str, str]):
    """Links of a zip file. A zip file can have a million, so nothing may look at all of them for each link."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all links are looked at")


@pytest.mark.parametrize(
    ("link", "points_to", "stays"),
    [
        ("a", "b/c", True),
        ("a/b", "../c", True),
        ("a", "folder/x", True),
        ("a/b", "../../c", False),
        ("a", "up/x", False),
        ("a", "again/up", False),
        ("a", "circle", False),
        ("a", "/etc", False),
        ("folders", "folder2/up", True),
    ],
)
def test_where_a_link_leads_is_found_without_a_look_at_all_links(link: str, points_to: str, stays: bool) -> None:
    links = Links({"folder": "real", "up": "..", "again": ".", "circle": "circle2", "circle2": "circle"})
    assert uploaded_code._stays_inside(link, points_to, links) is stays
