"""`thawd.gateway.s3.files` and `object_parts`: stopping the server or removing old uploads disturbs no other upload."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path

import pytest

from thawd.gateway.s3 import parts as object_parts
from thawd.gateway.s3.files import Upload, clear_staging, explained
from thawd.gateway.s3.parts import PartFolder
from thawd.resources import Bucket
from thawd.system import folders

pytestmark = pytest.mark.in_memory

ETAG = hashlib.md5(b"x").hexdigest()


def test_an_upload_that_is_given_up_while_parts_are_joined_leaves_nothing_behind(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    upload_id = object_parts.begin(root, b"k")
    parts = PartFolder(root, upload_id, key=b"k")
    folder = tmp_path / f".thawd-staging/upload-{upload_id}"
    # The second part is a pipe, so that joining the parts blocks on it
    (folder / f"00001-{ETAG}").write_bytes(b"x")
    os.mkfifo(folder / f"00002-{ETAG}")
    upload = Upload(root)
    errors: list[OSError] = []

    def join() -> None:
        try:
            parts.join([(1, ETAG), (2, ETAG)], upload)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=join)
    thread.start()
    with open(folder / f"00002-{ETAG}", "wb") as pipe:
        upload.discard()
        pipe.write(b"late")
    thread.join(10)
    assert not thread.is_alive()
    assert "cancelled" in str(errors[0])
    parts.remove()
    assert list((tmp_path / ".thawd-staging").iterdir()) == []
    with pytest.raises(OSError, match="cancelled"):
        upload.publish(b"k", exclusive=False)


def test_uploads_begun_while_staging_is_cleared_survive(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    done = threading.Event()

    def clear() -> None:
        while not done.is_set():
            clear_staging(root, files=True)

    thread = threading.Thread(target=clear)
    thread.start()
    try:
        uploads = []
        for number in range(300):
            upload = Upload(root)
            upload.consume(b"%d" % number)
            uploads.append(upload)
    finally:
        done.set()
        thread.join()
    for number, upload in enumerate(uploads):
        upload.publish(b"k%d" % number, exclusive=False)
        upload.discard()
        assert (tmp_path / f"k{number}").read_bytes() == b"%d" % number
    assert list((tmp_path / ".thawd-staging").iterdir()) == []


def test_an_upload_makes_its_folders_again_if_another_one_removes_them_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = os.fsencode(tmp_path)
    removed: list[bytes] = []
    sync = folders.sync

    def sync_and_remove(folder: bytes) -> None:
        sync(folder)
        if folder == root and not removed:
            removed.append(folder)
            (tmp_path / "x").rmdir()  # as an upload of the key x does

    monkeypatch.setattr(folders, "sync", sync_and_remove)
    upload = Upload(root)
    upload.consume(b"content")

    upload.publish(b"x/y/z", exclusive=False)

    assert removed
    assert (tmp_path / "x/y/z").read_bytes() == b"content"


def test_what_others_removed_is_a_conflict_as_long_as_the_bucket_exists(tmp_path: Path) -> None:
    bucket = Bucket(name="uploads", path=tmp_path / "uploads")
    assert explained(FileNotFoundError(errno.ENOENT, "missing"), bucket).code == "NoSuchBucket"
    bucket.path.mkdir()
    assert explained(FileNotFoundError(errno.ENOENT, "missing"), bucket).code == "OperationAborted"
