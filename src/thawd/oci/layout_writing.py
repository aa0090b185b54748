"""Writes images into files: an OCI layout as a folder or a tar file, the same bytes for the same image.

The tar file also has Docker's ``manifest.json``, so that ``docker load``, ``podman load`` and ``skopeo`` all read it.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import msgspec

from thawd.errors import ImageError
from thawd.oci import documents
from thawd.oci.blobs import chunks_of
from thawd.oci.documents import Descriptor, Index
from thawd.oci.image_store import NAME, Image, Images
from thawd.system import folders

_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


def write_folder(images: Images, digest: str, folder: Path, *, name: str | None) -> None:
    """Write an image into a folder, as an OCI layout.

    Args:
        images: the store that has the image.
        digest: digest of the image's manifest.
        folder: a new or empty folder, or an OCI layout, to which the image is added. Its index is replaced last.
        name: name of the image in the layout; an image there loses the name.

    Raises:
        ImageError: the folder has other contents, or the image is not in the store (HTTP 400).
        OSError: the folder cannot be written.
    """
    image = images.image(digest)
    index = folder / "index.json"
    listed: list[Descriptor] = []
    if index.exists():
        listed = documents.decode_index(index.read_bytes(), str(index)).manifests
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ImageError(f"{folder} exists and is not an OCI layout; name a new folder")
    folders.make(folder / "blobs" / "sha256")
    for blob in _blobs(image):
        target = folder / "blobs" / "sha256" / blob.removeprefix("sha256:")
        with images.blobs.open(blob) as source, folders.replacing(target) as file:
            for chunk in chunks_of(source):
                file.write(chunk)
    with folders.replacing(folder / "oci-layout") as file:
        file.write(_LAYOUT)
    added = _descriptor(images, image, name)
    kept = [each for each in listed if each.digest != digest or name is not None]
    kept = [each for each in kept if name is None or (each.annotations or {}).get(NAME) != name]
    with folders.replacing(index) as file:
        file.write(documents.encode(Index(2, [*kept, added])))


def write_archive(images: Images, digest: str, path: Path, *, name: str | None) -> None:
    """Write an image into a tar file, replacing it atomically.

    Args:
        images: the store that has the image.
        digest: digest of the image's manifest.
        path: the file.
        name: name that the image gets where it is loaded.

    Raises:
        ImageError: the image is not in the store (HTTP 400).
        OSError: the file cannot be written.
    """
    image = images.image(digest)
    docker = [
        {
            "Config": _place(image.manifest.config.digest),
            "RepoTags": [name] if name else [],
            "Layers": [_place(layer.digest) for layer in image.manifest.layers],
        }
    ]
    with folders.replacing(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for folder in ("blobs", "blobs/sha256"):
            tar.addfile(_header(folder, 0, kind=tarfile.DIRTYPE, mode=0o755))
        for blob in sorted(set(_blobs(image))):
            with images.blobs.open(blob) as source:
                tar.addfile(_header(_place(blob), images.blobs.path(blob).stat().st_size), source)
        index = documents.encode(Index(2, [_descriptor(images, image, name)]))
        _add(tar, "index.json", index)
        _add(tar, "manifest.json", msgspec.json.encode(docker))
        _add(tar, "oci-layout", _LAYOUT)


def _descriptor(images: Images, image: Image, name: str | None) -> Descriptor:
    return Descriptor(
        image.manifest.media_type or documents.MANIFEST,
        image.digest,
        images.blobs.path(image.digest).stat().st_size,
        annotations={NAME: name} if name else None,
        platform=documents.Platform(image.config.architecture, image.config.os),
    )


def _blobs(image: Image) -> list[str]:
    return [image.digest, image.manifest.config.digest, *(layer.digest for layer in image.manifest.layers)]


def _place(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    tar.addfile(_header(name, len(content)), io.BytesIO(content))


def _header(name: str, size: int, *, kind: bytes = tarfile.REGTYPE, mode: int = 0o644) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.type, header.mode = size, kind, mode
    return header
