"""An index of the images in a folder by key, so that thawd finds an image without reading all sidecars.

`thawd.snapshot.store.images` uses this module. The index may miss an image; then the image is made again. The caller
must examine each image that the index names, because it may have been removed. Each sidecar is read once, when it first
appears.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from thawd.snapshot.store.image_facts import IMAGE, SIDECAR, Snapshot, digest_in, look
from thawd.snapshot.store.trust_and_locks import using

# A folder's modification time advances only every few milliseconds. If the folder was listed less than this time
# after its last change, a later change may have left the modification time as it was. Source: inode_timestamps(7),
# current_time().
_CLOCK_NS = 100_000_000


class KeyIndex:
    """The images of one folder by their keys. Several threads may use it.

    Args:
        folder: the folder of the images.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        # For each image, by digest: the inode of its sidecar, and its key. Digests and keys are kept as bytes.
        self._known: dict[bytes, tuple[int, bytes]] = {}
        self._by_key: dict[bytes, set[bytes]] = {}
        self._listed_mtime_ns = -1

    def find(self, key: str) -> tuple[list[str], list[Snapshot]]:
        """Return the digests of the images with this key. Also return images that must not be used, whatever their key.

        Raises:
            StoreError: the folder cannot be read (HTTP 500).
        """
        with self._lock, using(self._folder):
            bad = self._update()
            return [digest.hex() for digest in self._by_key.get(_compact(key), ())], bad

    def _update(self) -> list[Snapshot]:
        now_ns = time.time_ns()
        modified_ns = self._folder.stat().st_mtime_ns
        if modified_ns == self._listed_mtime_ns:
            return []
        images: set[str] = set()
        sidecars: dict[str, int] = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if (digest := digest_in(entry.name, suffixes=(SIDECAR,))) is not None:
                    sidecars[digest] = entry.inode()
                elif (digest := digest_in(entry.name, suffixes=(IMAGE,))) is not None:
                    images.add(digest)
        for known in [known for known in self._known if known.hex() not in images]:
            self._forget(known)
        bad = [found for digest in images if (found := self._read(digest, sidecars.get(digest, 0))) is not None]
        # With a bad image, the folder must be listed again: repairing the image does not change the folder's time.
        is_certain = modified_ns < now_ns - _CLOCK_NS and not bad
        self._listed_mtime_ns = modified_ns if is_certain else -1
        return bad

    def _read(self, digest: str, inode: int) -> Snapshot | None:
        """Add one image to the index; returns the image if it must not be used."""
        name = bytes.fromhex(digest)
        known = self._known.get(name)
        if known is not None and known[0] == inode:
            return None
        self._forget(name)
        found = look(self._folder / f"{digest}{IMAGE}", in_use=False)
        if found is None or found.problem is not None or found.sidecar is None:
            return found
        key = _compact(found.sidecar.origin.key)
        self._known[name] = (inode, key)
        self._by_key.setdefault(key, set()).add(name)
        return None

    def _forget(self, digest: bytes) -> None:
        known = self._known.pop(digest, None)
        if known is not None:
            digests = self._by_key[known[1]]
            digests.discard(digest)
            if not digests:
                del self._by_key[known[1]]


def _compact(key: str) -> bytes:
    """A key as bytes, which need half the memory of its hexadecimal digits."""
    try:
        return bytes.fromhex(key)
    except ValueError:
        return key.encode()
