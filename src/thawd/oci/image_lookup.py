"""Finds the image that a user names in the store, in a file or in a registry, and adds it to the store.

    oci:PATH[:NAME]               an OCI layout, a folder or a tar file of it
    docker-archive:PATH[:NAME]    a file that ``docker save`` wrote
    PATH                          a file or folder in either form; begins with ``/``, ``./``, ``../`` or ``~``
    [REGISTRY/]REPOSITORY[:TAG]   an image in the store; if it is not there, from the registry that the name contains

The same forms name images in `thawd.toml`, in the Lambda API, in a Dockerfile's FROM and on the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from thawd.errors import ImageError
from thawd.oci import documents
from thawd.oci.credentials import Credentials
from thawd.oci.documents import Descriptor
from thawd.oci.image_store import Images
from thawd.oci.layout_reading import add_layout
from thawd.oci.references import Reference, parse
from thawd.oci.registry import Registry

_PREFIXES = ("oci:", "oci-archive:", "docker-archive:")
_PATHS = ("/", "./", "../", "~/")
_DEEPEST_INDEX = 3


def obtain(
    images: Images,
    text: str,
    *,
    folder: Path,
    environ: Mapping[str, str],
    on_line: Callable[[str], None] = lambda line: None,
    refresh: bool = False,
) -> str:
    """Find the image that a text names, add it to the store, and return its digest.

    Args:
        images: the store.
        text: names the image, in one of the forms that this module lists.
        folder: the folder to which relative paths are relative.
        environ: environment variables, for credentials and proxies.
        on_line: called with each line of progress.
        refresh: whether to fetch the image from its registry even if the store has an image of this name.

    Returns:
        Digest of the manifest of the image for this machine's architecture.

    Raises:
        ImageError: there is no such image, or it cannot be used (HTTP 400).
        RegistryError: the registry refused or failed (HTTP 502).
        OSError: the disk failed or is full.
    """
    if is_path(text):
        path, name = _path_and_name(text, folder)
        with images.adding():
            digest = add_layout(images, path, name=name, architecture=documents.machine_architecture(), on_line=on_line)
            images.set_name(f"{path}{':' + name if name else ''}", digest)
        return digest
    reference = parse(text)
    stored = images.names().get(str(reference))
    if stored is not None and images.blobs.has(stored) and not (refresh and reference.registry):
        return stored
    if not reference.registry:
        known = ", ".join(name for name in images.names() if not is_path(name)) or "none"
        raise ImageError(
            f"there is no image {reference} in {images.folder} (there: {known}). Build it with `thawd image build -t "
            f"{reference}`, or name its registry, such as docker.io/{reference}"
        )
    with images.adding():
        digest = pull(images, reference, environ, on_line)
        images.set_name(str(reference), digest)
    return digest


def is_path(text: str) -> bool:
    """Return whether a text is the path of a file or folder, and not the name of an image."""
    return text.startswith((*_PREFIXES, *_PATHS))


def read_from(text: str, folder: Path) -> Path | None:
    """Return the file that an image is read from; if it is replaced, the text may name another image.

    Args:
        text: names the image, in one of the forms that this module lists.
        folder: folder where relative paths begin.

    Returns:
        The file; it may be missing. None: the text names an image of the store.
    """
    if not is_path(text):
        return None
    path, _ = _path_and_name(text, folder)
    return path / "index.json" if path.is_dir() else path


def pull(images: Images, reference: Reference, environ: Mapping[str, str], on_line: Callable[[str], None]) -> str:
    """Fetch an image from its registry into the store, without a name. See `obtain` for what it raises."""
    registry = Registry(reference, environ)
    try:
        content = _manifest(registry, reference)
        manifest = documents.decode_manifest(content, str(reference))
        for blob in (manifest.config, *manifest.layers):
            _fetch(images, registry, blob, str(reference), on_line)
        config = documents.decode_config(images.blobs.read(manifest.config.digest), str(reference))
        documents.check_platform(config, documents.machine_architecture(), str(reference))
        return images.blobs.add(content)
    finally:
        registry.close()


def push(
    images: Images,
    digest: str,
    reference: Reference,
    environ: Mapping[str, str],
    *,
    credentials: Credentials | None = None,
) -> None:
    """Upload an image of the store to a registry, its manifest last.

    Args:
        images: the store.
        digest: digest of the image's manifest.
        reference: the name under which to upload it. It contains a registry.
        environ: environment variables, for credentials and proxies.
        credentials: the way to sign in; None: that of `docker login` or `podman login`.

    Raises:
        ImageError: the image is not in the store, or `reference` names no registry (HTTP 400).
        RegistryError: the registry refused or failed (HTTP 502).
    """
    if not reference.registry:
        raise ImageError(f"{reference} names no registry; write for example localhost:5000/{reference}")
    image = images.image(digest)
    registry = Registry(reference, environ, credentials_given=credentials)
    try:
        for blob in dict.fromkeys((image.manifest.config, *image.manifest.layers)):
            registry.push_blob(images.blobs, blob.digest)
        media_type = image.manifest.media_type or documents.MANIFEST
        registry.push_manifest(reference.tag or digest, images.blobs.read(digest), media_type)
    finally:
        registry.close()


def _manifest(registry: Registry, reference: Reference) -> bytes:
    wanted = reference.wanted
    for _ in range(_DEEPEST_INDEX):
        content, media_type = registry.manifest(wanted)
        if media_type in documents.MANIFESTS:
            return content
        index = documents.decode_index(content, str(reference))
        # The index's content is verified only if its digest is one that `Registry.manifest` verifies.
        wanted = documents.checked_digest(
            documents.choose(index, documents.machine_architecture(), str(reference)).digest
        )
    raise ImageError(f"{reference}: its indexes are nested more than {_DEEPEST_INDEX} deep")


def _fetch(images: Images, registry: Registry, blob: Descriptor, what: str, on_line: Callable[[str], None]) -> None:
    if images.blobs.has(blob.digest):
        return
    on_line(f"fetching {blob.digest[:19]} ({blob.size / 1e6:.1f} MB)")
    images.blobs.store(blob.digest, registry.blob(blob.digest).chunks(), size=blob.size, what=what)


def _path_and_name(text: str, folder: Path) -> tuple[Path, str | None]:
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    whole = _path(text, folder)
    if whole.exists():
        return whole, None
    path, colon, name = text.partition(":")
    return _path(path, folder), name if colon else None


def _path(text: str, folder: Path) -> Path:
    # Not `Path.expanduser`, which raises an error if there is no such user.
    return Path(os.path.normpath(folder / os.path.expanduser(text)))  # noqa: PTH111
