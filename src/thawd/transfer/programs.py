"""Sends and receives images of programs that froze themselves (`thawd.snapshot.freeze`), which are files of the user.

Such an image belongs to no data folder and no function. What it depends on is in its own tables: the files that the
process had mapped or open. Other files that the program read are not compared, neither here nor by thaw.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from thawd import __version__
from thawd.errors import StoreError
from thawd.snapshot.inspect import reader
from thawd.snapshot.store import file_lists
from thawd.snapshot.store.file_digests import FileDigests
from thawd.snapshot.store.file_lists import FileList
from thawd.snapshot.store.folder import digest_of
from thawd.snapshot.store.image_facts import ImageOrigin, Sidecar
from thawd.snapshot.store.trust_and_locks import distrust, open_as_is, using
from thawd.stores.chunk_places import ChunkPlace
from thawd.transfer.chunk_downloads import ChunkSource, Patience
from thawd.transfer.chunk_uploads import ChunkUploads
from thawd.transfer.cutting import Cutter, cut_image
from thawd.transfer.receiving import Record, bind_image, check_machine, fetch_image, unfitting
from thawd.transfer.record_body import Body, SentSnapshot
from thawd.transfer.sending import Sent, put_record, with_digests
from thawd.transfer.store_keys import StoreKey
from thawd.transfer.store_layout import doomed, record_key

_NOWHERE = Path("/")  # a folder without images
_VERSION = "program"
_FREEZE = "or freeze the program here"


def send_program(image: Path, name: str, place: ChunkPlace, key: StoreKey, *, anew: bool = False) -> Sent:
    """Send the image of a program. It may be thawed meanwhile.

    Args:
        image: the file that `thawd.snapshot.freeze` wrote.
        name: under which name to send it; letters, digits, ``_`` and ``-``.
        place: the store of chunks.
        key: its main key.
        anew: whether to upload every chunk, also those that the store has, because they may be damaged.

    Raises:
        ThawdError: the image cannot be sent, with the reason; or the store failed.
    """
    begun_s = time.monotonic()
    try:
        found = reader.read(image)
    except reader.ImageError as error:
        raise StoreError(str(error)) from None
    with using(image), open_as_is(image) as fd:
        status = os.fstat(fd)
        if (reason := distrust(image, status)) is not None:
            raise StoreError(reason)
        sha256 = digest_of(fd)
        record_key(name, sha256)  # checks the name
        listed = file_lists.listed([], found, find=lambda path: "")
        files = with_digests(listed, FileDigests(), images=_NOWHERE, what=str(image), again="Freeze the program again.")
        with ChunkUploads(place, key, anew=None if anew else doomed(place)) as uploads:
            cutter = Cutter(uploads.add)
            extents = cut_image(cutter, fd, found)
            cutter.finish()
        if digest_of(fd) != sha256:
            raise StoreError(f"{image} was changed while it was sent; a snapshot must never be written to")
    sidecar = _sidecar(name, sha256, status, found)
    body = Body(
        function=name,
        sha256=sha256,
        data="",
        sent_unix_s=time.time(),
        chunks=uploads.entries,
        snapshots=[SentSnapshot(sidecar, extents, files)],
        trees=[],
        kind="program",
    )
    return put_record(place, key, body, uploads, begun_s=begun_s)


def _sidecar(name: str, sha256: str, status: os.stat_result, image: reader.Image) -> Sidecar:
    origin = ImageOrigin(
        function=name,
        version=_VERSION,
        key=f"{_VERSION} {sha256}",
        python="",
        init_ms=0.0,
        freeze_ms=0.0,
        data_bytes=status.st_blocks * 512,
        self_test="a program has none",
    )
    return Sidecar(
        sha256=sha256,
        image_bytes=status.st_size,
        parts_bytes=0,
        created_unix_s=image.process.frozen_unix_ns / 1e9,
        boot_id="",
        kernel="",
        thawd=__version__,
        origin=origin,
    )


def receive_program(
    source: ChunkSource,
    record: Record,
    output: Path,
    *,
    program: Path | None,
    progress: Callable[[str], object] = lambda line: None,
) -> int:
    """Fetch the image of a program, check it, and write it to a file, which is replaced as a whole.

    Args:
        source: the chunks.
        record: the record of a program.
        output: the file. Processes that were thawed from an earlier file with this name go on.
        program: thawd-thaw, which says whether this machine's kernel and CPU can continue the process.
        progress: called with lines for the operator.

    Returns:
        The number of bytes that were received.

    Raises:
        ChunkError: a chunk is missing, damaged or another one (HTTP 500).
        StoreError: the image does not fit this machine, with the reason; or a disk or the store failed (HTTP 500).
    """
    if record.body.kind != "program":
        raise StoreError(f"{record.body.function} is a function: receive its snapshot without --output")
    sent = record.body.snapshots[-1]
    assert sent.files is not None
    name = record.body.function
    with using(output), tempfile.TemporaryDirectory(prefix=".new-", dir=output.parent) as folder:
        image = Path(folder) / "image"
        progress(f"receiving {name}")
        received = fetch_image(source, record.chunks, sent, image, Patience())
        check_machine(program, image, name, otherwise=_FREEZE)
        bind_image(image, locate_files(name, sent.files))
        with open_as_is(image) as fd:
            os.fsync(fd)
        image.rename(output)
    return received


def locate_files(name: str, files: FileList) -> list[file_lists.FileRecord]:
    """Find the files of this machine that a program's image depends on.

    Raises:
        StoreError: one is missing or has another content (HTTP 500).
    """
    records, problems = file_lists.located(files.files, FileDigests(), disk=None, received={})
    if problems:
        raise unfitting(name, problems, otherwise=_FREEZE)
    return records
