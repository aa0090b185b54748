"""`thawd.gateway.s3.files` and `object_parts`: stopping the server or removing old uploads disturbs no other upload."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from thawd.gateway.s3 import parts as object_parts
from thawd.gateway.s3.files import Upload, clear_staging
from thawd.gateway.s3.parts import PartFolder

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
