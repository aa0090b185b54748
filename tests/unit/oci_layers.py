"""Layers and images for tests: tar files made entry by entry, also such as no honest tool makes."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

from thawd.oci import documents
from thawd.oci.documents import Descriptor, ImageConfig, Manifest, ProcessConfig, RootFilesystem
from thawd.oci.image_store import Images


def entry(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """A header and a content. `fields` are attributes of the header, as `tarfile` names them."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def layer(*entries: tuple[tarfile.TarInfo, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def add_image(
    images: Images, *layers: bytes, name: str | None = None, config: ProcessConfig | None = None, architecture: str = ""
) -> str:
    """Put an image into a store; returns the digest of its manifest."""
    with images.adding():
        described = []
        for each in layers:
            packed = gzip.compress(each, mtime=0)
            images.blobs.store(digest(packed), [packed], size=len(packed), what="test")
            described.append(Descriptor(documents.LAYER_GZIP, digest(packed), len(packed)))
        content = documents.encode(
            ImageConfig(
                architecture=architecture or documents.machine_architecture(),
                os="linux",
                rootfs=RootFilesystem([digest(each) for each in layers]),
                config=config,
            )
        )
        manifest = Manifest(
            2, Descriptor(documents.CONFIG, images.blobs.add(content), len(content)), described, documents.MANIFEST
        )
        added = images.blobs.add(documents.encode(manifest))
        if name is not None:
            images.set_name(name, added)
    return added


def files(folder: Path) -> dict[str, bytes | str | None]:
    """What is in a folder: content of files, targets of links, None for folders."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        inside = str(path.relative_to(folder))
        if path.is_symlink():
            found[inside] = str(path.readlink())
        else:
            found[inside] = None if path.is_dir() else path.read_bytes()
    return found
