"""Provides the container image that the process of a received snapshot has as its root.

The digest of the image's manifest decides, and `thawd.oci` verifies everything below it: so the files of the root are
those of the machine that sent the snapshot. An image that this machine lacks is fetched if the function's configuration
names a registry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from thawd.errors import ImageError, StoreError
from thawd.oci import image_lookup, references
from thawd.oci.image_store import Images
from thawd.snapshot.store.image_facts import ImageOrigin

_FOLDER = "images"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def provide_root(data: Path, origin: ImageOrigin, *, progress: Callable[[str], None]) -> None:
    """Unpack the container image of a snapshot's function, unless that was done; nothing to do for other functions.

    Args:
        data: the data folder, whose folder `images` is the store of images.
        origin: the snapshot's origin.
        progress: called with lines for the operator.

    Raises:
        StoreError: this machine lacks the image, and it cannot be fetched (HTTP 500).
        OSError: the disk failed or is full.
    """
    digest = origin.container_image
    if not digest:
        return
    if not _DIGEST.fullmatch(digest):
        raise StoreError(f"the record is damaged: {digest!r} is not the digest of a container image")
    images = Images(data / _FOLDER)
    try:
        with images.adding():
            if not images.blobs.has(digest):
                _fetch(images, digest, origin.container_image_name, progress)
            images.root(digest, on_line=progress)
    except ImageError as error:
        raise StoreError(
            f"the process of the snapshot runs in the container image {origin.container_image_name}, {digest}, which "
            f"is not complete here: {error.message}"
        ) from None


def _fetch(images: Images, digest: str, name: str, progress: Callable[[str], None]) -> None:
    """Fetch an image by its digest, and give it its name, or one with the digest if the name is that of another image.

    Raises:
        ImageError: the name has no registry, or the registry has no such image.
    """
    if image_lookup.is_path(name) or not (reference := references.parse(name)).registry:
        raise ImageError(f"it is not in {images.folder}; put it there, from where the sender has it: thawd image pull")
    progress(f"fetching {reference}")
    by_digest = replace(reference, digest=digest)
    image_lookup.pull(images, by_digest, os.environ, progress)
    free = str(reference) not in images.names()
    images.set_name(str(reference if free else by_digest), digest)
