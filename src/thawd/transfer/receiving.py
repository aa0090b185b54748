"""Receives a snapshot from a store of chunks, and puts it into this machine's store of snapshots.

Everything is checked before it is used: the record by its key, each chunk by its key and its digest, the image by its
SHA-256 and by the rules of its format, and each file of this machine that the snapshot depends on by its content. If
anything does not fit, nothing is stored, and the function is initialised as if there were no snapshot.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException, StoreError
from thawd.snapshot.inspect import reader
from thawd.snapshot.store import file_lists
from thawd.snapshot.store.binding import bind
from thawd.snapshot.store.file_digests import FileDigests
from thawd.snapshot.store.file_lists import FileList, FileRecord
from thawd.snapshot.store.folder import Draft, digest_of
from thawd.snapshot.store.image_facts import IMAGE, ImageOrigin
from thawd.snapshot.store.images import Snapshot, SnapshotStore
from thawd.snapshot.store.trust_and_locks import open_as_is, remove_tree, using
from thawd.stores import received_folders
from thawd.stores.chunk_places import ChunkPlace
from thawd.stores.code_copies import is_package
from thawd.transfer import record_body
from thawd.transfer.chunk_downloads import ChunkSource, Patience, write_contents
from thawd.transfer.chunk_format import MAX_RECORD_BYTES, ChunkError, ChunkFacts, decode_record
from thawd.transfer.container_roots import provide_root
from thawd.transfer.folder_trees import complete_tree, difference, make_tree
from thawd.transfer.record_body import Body, SentSnapshot, Tree
from thawd.transfer.sending import DIGESTS
from thawd.transfer.store_keys import FunctionKey, StoreKey
from thawd.transfer.store_layout import RECORDS, record_key

_SHOWN = 3
_RECORD_LIMIT_BYTES = MAX_RECORD_BYTES
ROOM_BYTES = 64 << 20
_ELSEWHERE = "of another machine: "
_FILES = "files"
INITIALISE = "or do nothing: then the function is initialised here"
_CANNOT_THAW = 120  # exit status of thawd-thaw for an image that cannot be thawed on this machine


@dataclass(frozen=True, slots=True)
class Record:
    """A record that was decoded and checked.

    Attributes:
        body: what it says.
        chunks: its chunks, by index.
    """

    body: Body
    chunks: list[ChunkFacts]


@dataclass(frozen=True, slots=True)
class Received:
    """What was received.

    Attributes:
        snapshot: the snapshot in this machine's store.
        received_bytes: contents that were received.
        kept_bytes: those of them that this machine had kept, and that were not fetched.
        was_there: whether the snapshot had been received before.
    """

    snapshot: Snapshot
    received_bytes: int
    kept_bytes: int
    was_there: bool


def read_record(place: ChunkPlace, key: StoreKey | FunctionKey, function: str, sha256: str) -> Record:
    """Fetch and check a record.

    Raises:
        ChunkError: it is damaged, that of another snapshot, or of another key (HTTP 500).
        ResourceNotFoundException: there is no such record (HTTP 404).
        StoreError: the store failed, or the key is that of another function (HTTP 500).
    """
    data = place.get(record_key(function, sha256), limit_bytes=_RECORD_LIMIT_BYTES)
    text, ids = decode_record(data, key=key.function_key(function))
    body = record_body.decode(text, function=function, sha256=sha256)
    if len(ids) != len(body.chunks):
        raise ChunkError("the record is damaged: it does not list as many chunks as it describes")
    pairs = zip(ids, body.chunks, strict=True)
    chunks = [ChunkFacts(i, bytes.fromhex(c.key), bytes.fromhex(c.sha256), c.plain_bytes) for i, c in pairs]
    return Record(body, chunks)


def find(place: ChunkPlace, key: StoreKey | FunctionKey, name: str) -> Record:
    """Find the record of ``function``, ``function:version``, ``function/digits`` in a store.

    Of several snapshots of a function, this is the one that was sent last, by the time in the record. Records that are
    damaged or of another key are passed over if there is another one.

    Raises:
        ChunkError: all records that could be meant are damaged, or of another key (HTTP 500).
        InvalidParameterValueException: several snapshots begin with these digits (HTTP 400).
        ResourceNotFoundException: there is none (HTTP 404).
        StoreError: the store failed (HTTP 500).
    """
    function, _, digits = name.partition("/")
    function, _, version = function.partition(":")
    record_key(function, "")  # checks the name
    names = [one.key.rpartition("/")[2] for one in place.listed(f"{RECORDS}/{function}")]
    fitting = sorted(one for one in names if one.startswith(digits))
    if digits and len(fitting) > 1:
        raise InvalidParameterValueException(f"several snapshots in {place.name} match {name!r}; give more digits.")
    found: list[Record] = []
    bad: list[ChunkError] = []
    for one in fitting:
        try:
            found.append(read_record(place, key, function, one))
        except ChunkError as error:
            bad.append(error)
        except ResourceNotFoundException:
            continue  # removed since it was listed
    if version:
        found = [one for one in found if one.body.snapshots[-1].sidecar.origin.version == version]
    if not found and bad:
        raise bad[0]
    if not found:
        raise ResourceNotFoundException(f"there is no snapshot {name!r} in {place.name}.")
    return max(found, key=lambda one: (one.body.sent_unix_s, one.body.sha256))


def all_records(place: ChunkPlace, key: StoreKey | FunctionKey) -> tuple[list[Record], list[str]]:
    """All records of a store that the key opens, and what is wrong with others; of a function's key, only its records.

    Raises:
        StoreError: the store failed (HTTP 500).
    """
    records: list[Record] = []
    problems: list[str] = []
    for one in place.listed(RECORDS):
        function, _, sha256 = one.key.removeprefix(f"{RECORDS}/").partition("/")
        if isinstance(key, FunctionKey) and key.function != function:
            continue
        try:
            records.append(read_record(place, key, function, sha256))
        except (ChunkError, InvalidParameterValueException) as error:
            problems.append(f"{one.key}: {error.message}")
        except ResourceNotFoundException:
            continue  # removed since it was listed
    return records, problems


def receive(
    store: SnapshotStore,
    source: ChunkSource,
    record: Record,
    *,
    program: Path | None,
    patience: Patience | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Received:
    """Fetch a snapshot, check it, and store it.

    Args:
        store: this machine's snapshots; its folder is in the data folder.
        source: the chunks.
        record: the snapshot's record.
        program: thawd-thaw, which says whether this machine's kernel and CPU can continue the process; None: it is not
            asked, and refuses the image when it is to be thawed.
        patience: how slow the store may be; None: it may take any time.
        progress: called with lines for the operator.

    Raises:
        ChunkError: a chunk is missing, damaged or another one (HTTP 500).
        StoreError: the snapshot does not fit this machine, with the reason; or a disk or the store failed (HTTP 500).
        StoreFullError: the disk is full (HTTP 503).
    """
    there = already_there(store, record)
    if there is not None:
        return Received(there, 0, 0, was_there=True)
    receiving = Receiving(store, source, record, program, patience or Patience())
    with ExitStack() as leases:
        receiving.take_surroundings(leases, progress)
        snapshot = receiving.take_snapshot(record.body.snapshots[-1], progress)
        leases.enter_context(store.use(snapshot))
    return Received(snapshot, receiving.received_bytes, source.kept_bytes, was_there=False)


def already_there(store: SnapshotStore, record: Record) -> Snapshot | None:
    """The usable snapshot of a record in this machine's store; None: it must be received.

    Raises:
        StoreError: it cannot be received into this store (HTTP 500).
    """
    data, body = store.folder.parent, record.body
    if body.kind == "program":
        raise StoreError(f"{body.function} is the image of a program; write it to a file: --output {body.function}.img")
    if body.data != str(data):
        raise StoreError(
            f"the snapshot was made in the data folder {body.data}, and its process knows paths in it; this data "
            f"folder is {data}. Use the same path on all machines (`data` in thawd.toml)."
        )
    return _there(store, body.sha256)


def _there(store: SnapshotStore, sha256: str) -> Snapshot | None:
    """The usable snapshot that was received under this name, or made here.

    One whose files were replaced since, perhaps by files with the same contents, is not usable: it is received again.
    """
    for one in store.snapshots():
        if one.problem is None and one.sidecar is not None and sha256 in (one.sidecar.sent_as, one.sha256):
            if one.files is None:
                return one
            with using(one.files):
                files = file_lists.decode(one.files.read_bytes(), where=one.files)
            if file_lists.unchanged(files.files, disk=one.disk):
                return one
    return None


class Receiving:
    """One snapshot that is being received. The arguments are those of `receive`.

    Attributes:
        store: this machine's snapshots.
        source: the chunks.
        record: the snapshot's record.
        program: thawd-thaw, or None.
        patience: how slow the store may be.
        received_bytes: contents that were received so far.
    """

    def __init__(
        self, store: SnapshotStore, source: ChunkSource, record: Record, program: Path | None, patience: Patience
    ) -> None:
        self.received_bytes = 0
        self.store = store
        self.source = source
        self.record = record
        self.program = program
        self.patience = patience
        self._received: dict[str, Path] = {}  # bases by SHA-256
        self._digests = FileDigests(store.folder / DIGESTS)

    def take_surroundings(self, leases: ExitStack, progress: Callable[[str], None]) -> None:
        """Make what the snapshot needs besides its own image: a root, folders of packages, and the images of bases.

        Args:
            leases: gets a lease of each base.
            progress: called with lines for the operator.

        Raises:
            StoreError: the snapshot does not fit this machine; or a disk or the store failed (HTTP 500).
        """
        body, data = self.record.body, self.store.folder.parent
        provide_root(data, body.snapshots[-1].sidecar.origin, progress=progress)
        for tree in body.trees:
            progress(f"receiving {tree.at}")
            self.take_tree(tree, data)
        for base in body.snapshots[:-1]:
            leases.enter_context(self.store.use(self.take_snapshot(base, progress)))

    def take_tree(self, tree: Tree, data: Path) -> None:
        """Make a folder of packages; if this machine has it, compare it, unless its name is a digest of its contents.

        Code is such a folder: whoever publishes a version verifies that its code is what the name says.

        Raises:
            StoreError: this machine has other packages there (HTTP 500).
        """
        target = data / tree.at
        with using(target):
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _installing(target):
                if target.exists():
                    if _is_environment(target):
                        self._compare(tree, target)
                    return
                # The names of what a process that dies leaves behind are those that are removed in this folder.
                prefix = f".old-{target.name}-" if _is_environment(target) else ".new-"
                for left in target.parent.glob(f".old-{target.name}-*"):
                    remove_tree(left)
                unfinished = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
                try:
                    self.fill(tree, unfinished / "tree")
                    self._admit(target, unfinished / "tree")
                    os.sync()
                    (unfinished / "tree").rename(target)
                finally:
                    remove_tree(unfinished)

    def _admit(self, target: Path, received: Path) -> None:
        """Let no other function use what only this function's key vouches for.

        Raises:
            StoreError: it is not what its name says (HTTP 500).
        """
        if _is_environment(target):
            received_folders.mark_received(received, frozenset({self.record.body.function}))
        elif not is_package(received, target.name):
            raise StoreError(
                f"the snapshot brings code for {target}, but the name is not that of this content, so other functions "
                "could get wrong code. If the function's code was uploaded, upload it here, too; then receive again."
            )

    def _compare(self, tree: Tree, target: Path) -> None:
        function = self.record.body.function
        functions = received_folders.functions_of(target)
        is_of_others = functions is not None and function not in functions
        other = difference(target, tree.entries, self._digests, with_byte_code=is_of_others)
        self._digests.save()
        if other is not None:
            raise StoreError(
                f"{target} contains other packages than where the snapshot was made: {other} differs. Name exact "
                "versions in the requirements, or remove the folder while no server runs."
            )
        if functions is not None and is_of_others:
            received_folders.mark_received(target, functions | {function})

    def fill(self, tree: Tree, root: Path) -> None:
        """Make a folder with the contents of a tree."""
        contents = make_tree(root, tree.entries)
        self.received_bytes += write_contents(self.source, self.record.chunks, contents, self.patience)
        complete_tree(root, tree.entries)

    def take_snapshot(self, sent: SentSnapshot, progress: Callable[[str], None]) -> Snapshot:
        """Fetch one image with its parts, and store it."""
        sha256 = sent.sidecar.sha256
        progress(f"receiving {sent.sidecar.origin.function}:{sent.sidecar.origin.version}")
        if sent.files is None:
            for there in self.store.snapshots():
                if there.sha256 == sha256 and there.problem is None:
                    self._received[sha256] = there.path
                    return there
        room_bytes = ROOM_BYTES + sum(extent.length for extent in sent.extents)
        with self.store.begin(room_bytes=room_bytes) as draft:
            self._fetch(sent, draft)
            origin = sent.sidecar.origin
            if sent.files is None:
                # A base serves only the snapshots that came with it: versions that are published here find their own.
                origin = msgspec.structs.replace(origin, key=f"{_ELSEWHERE}{origin.key}")
            else:
                check_machine(self.program, draft.image, f"{origin.function}:{origin.version}", otherwise=INITIALISE)
                self._bind(sent, sent.files, draft, origin)
            os.sync()  # a disk snapshot and the list of files must be as durable as the image, which the store syncs
            snapshot = self.store.adopt(draft, origin, sent_as=sha256)
        self._received[sha256] = snapshot.path
        return snapshot

    def _fetch(self, sent: SentSnapshot, draft: Draft) -> None:
        """Fetch the image and the disk snapshot into a draft, and check the image."""
        with using(draft.image):
            self.received_bytes += fetch_image(self.source, self.record.chunks, sent, draft.image, self.patience)
            if sent.disk is not None:
                self.fill(sent.disk, draft.disk)

    def _bind(self, sent: SentSnapshot, files: FileList, draft: Draft, origin: ImageOrigin) -> None:
        """Find the files that the snapshot depends on, and write their identities into the image.

        Raises:
            StoreError: a file is missing or has another content (HTTP 500).
        """
        records = self.locate(files, origin, disk=draft.disk if sent.disk is not None else None)
        with using(draft.image):
            bind_image(draft.image, records)
            write_list(draft.files, records)

    def locate(self, files: FileList, origin: ImageOrigin, *, disk: Path | None) -> list[FileRecord]:
        """Find the files of this machine that the snapshot depends on.

        Args:
            files: the list of files.
            origin: names the snapshot in messages.
            disk: the folder with its disk snapshot; None: it has none.

        Raises:
            StoreError: a file is missing or has another content (HTTP 500).
        """
        contents = disk / _FILES if disk is not None else None
        records, problems = file_lists.located(files.files, self._digests, disk=contents, received=self._received)
        self._digests.save()
        folder = str(self.store.folder)
        problems += [
            f"{one.place} is not in {folder}"
            for one in records
            if one.sha256 in self._received and one.place != f"{folder}/{one.sha256}{IMAGE}"
        ]
        if problems:
            raise unfitting(f"{origin.function}:{origin.version}", problems, otherwise=INITIALISE)
        return records


def write_list(path: Path, records: list[FileRecord]) -> None:
    """Write the list of the files that a snapshot depends on."""
    path.write_bytes(file_lists.encode(FileList(files=records)))
    path.chmod(0o600)


def fetch_image(
    source: ChunkSource, chunks: Sequence[ChunkFacts], sent: SentSnapshot, path: Path, patience: Patience
) -> int:
    """Fetch an image into a new file, and check it. Returns the number of bytes that were received.

    Raises:
        ChunkError: a chunk is missing, or the image is damaged (HTTP 500).
        StoreError: the store failed (HTTP 500).
        OSError: the file cannot be written.
    """
    sidecar = sent.sidecar
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.truncate(sidecar.image_bytes)
    received = write_contents(source, chunks, {path: sent.extents}, patience)
    with open_as_is(path) as fd:
        found = digest_of(fd)
    if found != sidecar.sha256:
        raise ChunkError(f"the image {sidecar.sha256[:12]} is damaged: its SHA-256 is {found[:12]}")
    try:
        reader.read(path)
    except reader.ImageError as error:
        raise ChunkError(f"the image {sidecar.sha256[:12]}: {str(error).partition(': ')[2]}") from None
    return received


def check_machine(program: Path | None, image: Path, name: str, *, otherwise: str) -> None:
    """Have thawd-thaw examine the machine, but not the files, which are not bound yet.

    Raises:
        StoreError: the kernel or the CPU cannot continue the process (HTTP 500).
        OSError: the program cannot be started.
    """
    if program is None:
        return
    command: list[str | Path] = [program, "--clocks-back", "--try", "check", image]
    tried = subprocess.run(command, capture_output=True, check=False, text=True, errors="replace")
    # This process may run under fewer seccomp filters than the server; the server will find that out.
    if tried.returncode == _CANNOT_THAW and "seccomp" not in tried.stderr:
        why = tried.stderr.strip().removeprefix("thawd: cannot thaw here: ")
        raise StoreError(f"{name} does not fit this machine: {why}; {otherwise}.")


def unfitting(name: str, problems: Sequence[str], *, otherwise: str) -> StoreError:
    """The error that files of this machine are not those of a snapshot."""
    more = f", and {len(problems) - _SHOWN} more files" if len(problems) > _SHOWN else ""
    return StoreError(
        f"{name} does not fit this machine: {'; '.join(problems[:_SHOWN])}{more}. Install the same versions at the "
        f"same paths; {otherwise}."
    )


def bind_image(image: Path, records: Sequence[FileRecord]) -> None:
    """Write the identities of this machine's files into an image.

    Raises:
        ChunkError: the image is damaged (HTTP 500).
    """
    bind(image, {one.path: (one.modified_ns, one.inode) for one in records})
    try:
        reader.read(image)
    except reader.ImageError as error:
        raise ChunkError(str(error)) from None


def _is_environment(target: Path) -> bool:
    """Whether a folder of packages is a virtual environment, whose name does not prove its contents."""
    return target.parent.name == "environments"


@contextlib.contextmanager
def _installing(target: Path) -> Iterator[None]:
    """Hold the lock of a folder of packages. `thawd.publishing.virtual_environments` takes the same one."""
    lock = os.open(f"{target}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)
