"""Reads images from files: OCI layouts (a folder or a tar file of it), and both forms that ``docker save`` writes.

Only the files to which the documents refer are read. Nothing is extracted to a path that a file names: blobs are added
to the store, which verifies them. The older form of ``docker save`` has no digests of layers. Their digests are
computed, and compared with the image's configuration when the layers are unpacked.

Source: image-spec, image-layout.md; https://github.com/moby/moby/blob/master/image/spec/v1.2.md (manifest.json).
"""

from __future__ import annotations

import contextlib
import posixpath
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

import msgspec

from thawd.errors import ImageError
from thawd.oci import documents
from thawd.oci.blobs import HashingFile, chunks_of
from thawd.oci.compression import decompressed
from thawd.oci.documents import Descriptor, Index, Manifest
from thawd.oci.image_store import NAME, Images
from thawd.oci.tar_entries import UNREADABLE, Limits, StrictInfo

_CONTAINERD_NAME = "io.containerd.image.name"
_DEEPEST_INDEX = 3
_MOST_LINKS = 8
_MOST_MEMBERS = 100_000  # each layer has three at most


class _DockerImage(msgspec.Struct, rename="pascal"):
    """One image of a file that ``docker save`` wrote: paths of its documents in the tar file."""

    config: str
    layers: list[str]
    repo_tags: list[str] | None = None


class _Files(Protocol):
    """The files of a layout."""

    def open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Open a file. Raises KeyError if there is none of this name."""


def add_layout(
    images: Images, path: Path, *, name: str | None, architecture: str, on_line: Callable[[str], None]
) -> str:
    """Add an image from a file or folder to a store.

    Args:
        images: the store.
        path: folder of an OCI layout, tar file of one, or file that ``docker save`` wrote; also compressed.
        name: name or tag of the image there; None: the only one, or the only one for this architecture.
        architecture: wanted architecture in Go's names.
        on_line: called with each line of progress.

    Returns:
        Digest of the image's manifest.

    Raises:
        ImageError: there is no such image, or it is broken (HTTP 400).
        OSError: the disk failed or is full.
    """
    if not path.exists():
        raise ImageError(f"{path} does not exist; name an OCI layout, or a file that `docker save` wrote")
    with images.adding(), _opened(path, images.folder) as files:
        what = str(path)
        if _has(files, "index.json"):
            index = documents.decode_index(_document(files, "index.json", what), what)
            found = _find(files, index, name, architecture, what)
            return _Adding(images, files, what, on_line).manifest(found)
        if _has(files, "manifest.json"):
            return _add_docker(images, files, name, what, on_line)
    raise ImageError(f"{path} is neither an OCI layout (index.json) nor a file of `docker save` (manifest.json)")


class _Adding:
    """Adds one image of a layout to a store."""

    def __init__(self, images: Images, files: _Files, what: str, on_line: Callable[[str], None]) -> None:
        self._images = images
        self._files = files
        self._what = what
        self._on_line = on_line

    def manifest(self, found: Descriptor) -> str:
        content = _blob(self._files, found, self._what)
        manifest = documents.decode_manifest(content, self._what)
        for blob in (manifest.config, *manifest.layers):
            if not self._images.blobs.has(blob.digest):
                self._on_line(f"copying {blob.digest[:19]} ({blob.size / 1e6:.1f} MB)")
                with _open_blob(self._files, blob.digest, self._what) as file:
                    self._images.blobs.store(blob.digest, chunks_of(file), size=blob.size, what=self._what)
        return self._images.blobs.add(content)


def _find(files: _Files, index: Index, name: str | None, architecture: str, what: str, depth: int = 0) -> Descriptor:
    """Return the descriptor of the manifest that the name and architecture select."""
    found = index.manifests
    if name is not None and depth == 0:
        found = [each for each in found if name in _names(each)]
    if not found:
        names = ", ".join(sorted({each for one in index.manifests for each in _names(one)})) or "none has a name"
        raise ImageError(f"{what} has no image {name or ''}; names there: {names}")
    found = list({each.digest: each for each in found}.values())  # an image may have several names
    if depth == 0:
        _check_one_is_meant(found, architecture, what)
    chosen = found[0] if len(found) == 1 else documents.choose(Index(2, found), architecture, what)
    kind = chosen.media_type
    if kind not in (*documents.MANIFESTS, *documents.INDEXES):
        kind = documents.media_type_of(_blob(files, chosen, what), kind, what)
    if kind in documents.MANIFESTS:
        return chosen
    if depth >= _DEEPEST_INDEX:
        raise ImageError(f"{what}: its indexes are nested more than {_DEEPEST_INDEX} deep")
    inner = documents.decode_index(_blob(files, chosen, what), what)
    return _find(files, inner, name, architecture, what, depth + 1)


def _check_one_is_meant(found: list[Descriptor], architecture: str, what: str) -> None:
    fitting = {each.digest for each in found if each.platform is None or each.platform.architecture == architecture}
    if len(fitting) > 1:
        names = {name for each in found for name in _names(each)} or fitting
        raise ImageError(f"{what} has several images; name one of: {', '.join(sorted(names))}")


def _names(descriptor: Descriptor) -> set[str]:
    annotations = descriptor.annotations or {}
    return {annotations[key] for key in (NAME, _CONTAINERD_NAME) if key in annotations}


def _add_docker(images: Images, files: _Files, name: str | None, what: str, on_line: Callable[[str], None]) -> str:
    try:
        found = msgspec.json.decode(_document(files, "manifest.json", what), type=list[_DockerImage])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ImageError(f"{what}: manifest.json cannot be read: {error}") from None
    named = [each for each in found if name is None or name in (each.repo_tags or [])]
    if len(named) != 1:
        tags = ", ".join(sorted(tag for each in found for tag in each.repo_tags or [])) or "none has a name"
        raise ImageError(f"{what}: {len(named)} images fit{'' if name is None else ' ' + name}; names there: {tags}")
    [image] = named
    config = _document(files, image.config, what)
    stem = posixpath.basename(image.config).removesuffix(".json")
    if len(stem) == 64 and documents.digest_of(config) != f"sha256:{stem}":
        raise ImageError(f"{what}: the configuration {image.config} has other content than its name says")
    decoded = documents.decode_config(config, what)
    if len(decoded.rootfs.diff_ids) != len(image.layers):
        raise ImageError(f"{what}: it has {len(image.layers)} layers, and its configuration lists others")
    layers = [_docker_layer(images, files, path, what, on_line) for path in image.layers]
    described = Descriptor(documents.CONFIG, images.blobs.add(config), len(config))
    return images.blobs.add(documents.encode(Manifest(2, described, layers, documents.MANIFEST)))


def _docker_layer(images: Images, files: _Files, path: str, what: str, on_line: Callable[[str], None]) -> Descriptor:
    on_line(f"copying {path[:19]}")
    with _open(files, path, what) as file:
        start = file.read(2)
        file.seek(0)

        def copy(target: HashingFile) -> None:
            for chunk in chunks_of(file):
                if target.size + len(chunk) > documents.LARGEST_LAYER_BYTES:
                    raise ImageError(f"{what}: {path} has more than {documents.LARGEST_LAYER_BYTES:,} bytes")
                target.write(chunk)

        digest, size = images.blobs.add_written(copy)
    return Descriptor(documents.LAYER_GZIP if start == b"\x1f\x8b" else documents.LAYER_TAR, digest, size)


def _has(files: _Files, name: str) -> bool:
    try:
        with files.open(name):
            return True
    except KeyError:
        return False


def _document(files: _Files, name: str, what: str) -> bytes:
    with _open(files, name, what) as file:
        content = file.read(documents.LARGEST_DOCUMENT_BYTES + 1)
    if len(content) > documents.LARGEST_DOCUMENT_BYTES:
        raise ImageError(f"{what}: {name} is larger than {documents.LARGEST_DOCUMENT_BYTES} bytes")
    return content


def _blob(files: _Files, blob: Descriptor, what: str) -> bytes:
    with _open_blob(files, blob.digest, what) as file:
        content = file.read(documents.LARGEST_DOCUMENT_BYTES + 1)
    if documents.digest_of(content) != blob.digest or len(content) != blob.size:
        raise ImageError(f"{what}: the document {blob.digest} has other content than its digest or size says")
    return content


@contextmanager
def _open_blob(files: _Files, digest: str, what: str) -> Iterator[IO[bytes]]:
    with _open(files, "blobs/" + documents.checked_digest(digest).replace(":", "/"), what) as file:
        yield file


@contextmanager
def _open(files: _Files, name: str, what: str) -> Iterator[IO[bytes]]:
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(files.open(name))
        except KeyError:
            raise ImageError(f"{what}: the file {name} is missing; is the copy complete?") from None
        try:
            yield file
        except tarfile.TarError as error:
            raise ImageError(f"{what}: {name} cannot be read: {error}") from None


@contextmanager
def _opened(path: Path, store: Path) -> Iterator[_Files]:
    if path.is_dir():
        yield _Folder(path)
        return
    with contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(path.open("rb"))
        if file.read(4)[:2] in (b"\x1f\x8b", b"\x28\xb5"):
            file.seek(0)
            file = stack.enter_context(_unpacked(file, str(path), store))
        file.seek(0)
        try:
            tar = stack.enter_context(tarfile.open(fileobj=file, mode="r:", tarinfo=StrictInfo))
            members = _members(tar)
        except UNREADABLE as error:
            raise ImageError(f"{path} is not a tar file that can be read: {error}") from None
        yield _Tar(tar, members)


def _members(tar: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    """Return the entries of a tar file by name.

    Raises:
        tarfile.ReadError: there are more than an image can need.
    """
    members: dict[str, tarfile.TarInfo] = {}
    for count, member in enumerate(tar, 1):
        if count > _MOST_MEMBERS:
            raise tarfile.ReadError(f"it has more than {_MOST_MEMBERS:,} entries")
        members[posixpath.normpath(member.name)] = member
    return members


@contextmanager
def _unpacked(file: IO[bytes], what: str, store: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file with the uncompressed content, because layers are not read in the file's order."""
    left = Limits().bytes
    with tempfile.TemporaryFile(dir=store) as plain, decompressed(file, what) as stream:
        while chunk := stream.read(1 << 20):
            left -= len(chunk)
            if left < 0:
                raise ImageError(f"{what} has more than {Limits().bytes:,} bytes uncompressed")
            plain.write(chunk)
        yield plain


class _Folder:
    """A layout that is a folder. Links in it are followed, because the folder belongs to the user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str) -> IO[bytes]:
        """See `_Files`."""
        if ".." in name.split("/") or name.startswith("/") or "\0" in name:
            raise KeyError(name)
        try:
            return (self._folder / name).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise KeyError(name) from None


class _Tar:
    """A layout that is a tar file."""

    def __init__(self, tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo]) -> None:
        self._tar = tar
        self._members = members

    def open(self, name: str) -> IO[bytes]:
        """See `_Files`. ``docker save`` writes links for layers that several images have."""
        for _ in range(_MOST_LINKS):
            member = self._members[posixpath.normpath(name)]
            if member.issym():
                name = posixpath.join(posixpath.dirname(name), member.linkname)
            elif member.islnk():
                name = member.linkname
            elif (file := self._tar.extractfile(member)) is not None:
                return file
            else:
                break
        raise KeyError(name)
