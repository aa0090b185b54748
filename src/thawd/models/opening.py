"""`open`: makes the model at an address available on this machine as a file or folder, complete.

A model with a ``sha256`` is verified. If its address begins with ``file:`` or ``package:``, it is used in place.

A file that was downloaded stays in the cache while it is in use.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from thawd.models import downloads
from thawd.models.addresses import Address, parse
from thawd.models.cache import Cache, CacheLease, has_sha256, key_of, write_record
from thawd.models.faults import ModelChangedError, ModelError, ModelNotFoundError

Progress = Callable[[str, int, int], None]
"""Called about ten times a second with the key, the bytes downloaded so far and the size of the whole object."""

_TRIES = 3
_SHA256 = re.compile("[0-9a-fA-F]{64}")


class Model:
    """A model on this machine.

    Attributes:
        address: the requested address.
        path: path of the file, or of the folder if the address ends with a slash. Read or map it; do not write to it.
        size: size of the model in bytes.
        identity: changes when the model changes. For an object in S3 it is the ETag; for a folder in S3 it is computed
            from the ETags of all objects; for a file on this machine, from path, size, time and inode.
        version: S3's version id, if there is one.
        sha256: SHA-256 of the file; None for folders, and for files on this machine opened without a hash.
        pinned: whether the model was requested by its SHA-256.
        origin: ``cache`` (the model was in the cache), ``downloaded``, or ``in place`` (a file or folder on this
            machine, which is used without a copy).
        cache: the cache that contains the model and the files made from it.
        steps: the steps of `open`, each with name, milliseconds and a note.
    """

    def __init__(self, address: Address, cache: Cache) -> None:
        self.address = address.text
        self.path = address.path
        self.size = 0
        self.identity = ""
        self.version: Optional[str] = None
        self.sha256: Optional[str] = None
        self.pinned = False
        self.origin = "in place" if address.path else "cache"
        self.cache = cache
        self.steps: List[Tuple[str, float, str]] = []
        self.uses: List[CacheLease] = []
        self._address = address

    def is_current(self) -> bool:
        """Whether this model is still the one at its address. This asks the store, or calls stat for local files.

        Raises:
            ModelNotFoundError: there is no longer anything at the address.
            ModelError: the store cannot be reached.
        """
        return _identity_of(self._address) == self.identity

    def hold(self, use: CacheLease) -> None:
        """Keep a lease of files in the cache until this model is closed."""
        self.uses.append(use)

    def close(self) -> None:
        """Release the model, so that the cache may remove it. Mapped and loaded weights remain usable."""
        while self.uses:
            self.uses.pop().end()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Model {self.address}: {self.size} bytes, {self.origin}, {self.path}>"


def open(
    address: str,
    *,
    sha256: Optional[str] = None,
    etag: Optional[str] = None,
    version: Optional[str] = None,
    progress: Optional[Progress] = None,
    cache: Optional[Cache] = None,
) -> Model:
    """Open the model at an address as a file or folder on this machine.

    A model in S3 is downloaded into the cache unless it is there. An interrupted download is resumed. If several
    processes need the same model, only one downloads it. The arguments `sha256`, `etag` and `version` are pins: they
    determine the content that the model must have. Without a pin, the store is asked for the current object. With a
    pin, no request is needed if a model that was opened before with the same pins is still in the cache.

    With ``file:`` and ``package:`` the file itself is used, not a copy.

    Args:
        address: ``s3://bucket/key?region=...``, ``file:path`` or ``package:path``; a slash at the end means a folder.
        sha256: the hexadecimal hash that the file must have.
        etag: the ETag that the object must have.
        version: the version id that the object must have, in a bucket with versioning.
        progress: called during a download.
        cache: the cache to use; None: the default one.

    Raises:
        ModelNotFoundError: there is nothing at the address.
        ModelChangedError: the model at the address does not match a pin.
        ModelError: the store or the disk failed, or the address or a pin is not valid.
    """
    where = parse(address)
    model = Model(where, cache or Cache())
    model.pinned = sha256 is not None
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise ModelError(f"{address}: {sha256!r} is not a SHA-256 hash; such a hash has 64 hexadecimal digits")
    begun_s = time.perf_counter()
    try:
        _open(model, where, _Pins(sha256, etag, version), progress)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise ModelError(f"{address}: {what}; the cache of models is {model.cache.folder}") from error
    note = f"{model.origin}, {model.size / 2**20:.1f} MiB"
    model.steps.append(("open", (time.perf_counter() - begun_s) * 1000, note))
    return model


def _open(model: Model, where: Address, pins: "_Pins", progress: Optional[Progress]) -> None:
    """Fill in the attributes of `model`, and lease the files that it uses, so that the cache keeps them."""
    address = where.text
    is_folder = address.partition("?")[0].endswith("/")
    if is_folder and (pins.sha256 or pins.etag or pins.version):
        raise ModelError(f"{address} is a folder; sha256, etag and version can pin only a single file")
    if where.path:
        if pins.etag or pins.version:
            raise ModelError(f"{address} is a local file and so has no ETag and no version; pin it with sha256")
        _open_here(model, pins.sha256)
    elif is_folder:
        _open_folder(model, where, progress)
    else:
        _open_object(model, where, pins, progress)


class _Pins:
    """What the content of a model must match: a SHA-256, an ETag, a version id, or none of these."""

    def __init__(self, sha256: Optional[str], etag: Optional[str], version: Optional[str]) -> None:
        self.sha256 = sha256.lower() if sha256 else None
        self.etag = etag.strip('"') if etag else None
        self.version = version

    def index_key(self, address: Address, found: Dict[str, Any]) -> str:
        """The key of an object in the cache's index."""
        place = address._replace(text="")
        return key_of(
            place.bucket, place.key, *map(str, sorted(place.parameters.items())), found["etag"], found["version"]
        )


def _open_here(model: Model, sha256: Optional[str]) -> None:
    model.size, model.identity = _stamp(model.path, model.address)
    if sha256 is not None:
        seen = model.cache.place("index", key_of(model.path) + ".seen")
        if not has_sha256(model.path, sha256, seen=seen):
            raise ModelChangedError(f"{model.address}: its SHA-256 is not {sha256}")
        model.sha256 = sha256


def _stamp(path: str, address: str) -> Tuple[int, str]:
    """Size and identity of a file, or of all files in a folder."""
    if not os.path.exists(path):
        raise ModelNotFoundError(f"{address}: there is no file or folder {path}")
    files = [path]
    if os.path.isdir(path):
        files = sorted(os.path.join(parent, name) for parent, _, names in os.walk(path) for name in names)
    stats = [os.stat(file) for file in files]
    stamps = [f"{file} {status.st_size} {status.st_mtime_ns} {status.st_ino}" for file, status in zip(files, stats)]
    return sum(status.st_size for status in stats), key_of(*stamps)


def _open_object(model: Model, address: Address, pins: _Pins, progress: Optional[Progress]) -> None:
    found = _pinned(model.cache, address, pins)
    if found is None:
        found = downloads.head(address, version=pins.version)
        if pins.etag is not None and found["etag"] != pins.etag:
            raise ModelChangedError(f"{address.text}: its ETag is {found['etag']}, but {pins.etag} was requested")
    recorded = _hold(model, address, pins, found, progress)
    model.path = model.cache.place("blobs", recorded["sha256"])
    model.size, model.sha256 = recorded["size"], recorded["sha256"]
    model.identity, model.version = recorded["etag"], recorded["version"]


def _pinned(cache: Cache, address: Address, pins: _Pins) -> Optional[Dict[str, Any]]:
    """The cache's record of an object with these pins; None if there are no pins, or the object is not in the cache."""
    if pins.sha256 is None and pins.etag is None and pins.version is None:
        return None
    recorded = cache.recorded(_pin_key(address, pins))
    return recorded if recorded is not None and os.path.exists(cache.place("blobs", recorded["sha256"])) else None


def _pin_key(address: Address, pins: _Pins) -> str:
    return key_of("pin", address.text, pins.sha256, pins.etag, pins.version)


def _hold(
    model: Model, address: Address, pins: _Pins, found: Dict[str, Any], progress: Optional[Progress]
) -> Dict[str, Any]:
    """Download an object into the cache if necessary, verify it, and lease it for `model`; returns its record."""
    cache = model.cache
    key = pins.index_key(address, found)
    for _ in range(_TRIES):
        recorded = cache.recorded(key)
        if recorded is None or not os.path.exists(cache.place("blobs", recorded["sha256"])):
            recorded = _download(model, address, pins, {**found, "key": key}, progress)
        use = cache.use("blobs", recorded["sha256"])
        if use is not None and cache.is_sound(recorded["sha256"]):
            model.hold(use)
            if pins.sha256 not in (None, recorded["sha256"]):
                raise ModelChangedError(
                    f"{address.text}: its SHA-256 is {recorded['sha256']}, but {pins.sha256} was requested"
                )
            if pins.sha256 or pins.etag or pins.version:
                _record_pin(cache, _pin_key(address, pins), recorded)
            return recorded
        if use is not None:
            use.end()
    raise ModelError(
        f"{address.text} cannot be kept in the cache {cache.folder}: it was damaged or removed {_TRIES} times. Check "
        "the disk, and whether another program deletes files there"
    )


def _download(
    model: Model, address: Address, pins: _Pins, found: Dict[str, Any], progress: Optional[Progress]
) -> Dict[str, Any]:
    cache = model.cache
    cache.make_room(found["size"])

    def on_progress(line: Dict[str, Any]) -> None:
        if progress is not None and "done" not in line and not line.get("waiting"):
            progress(line["progress"], line["at"], line["size"])

    recorded = downloads.fetch(
        address,
        on_progress,
        partial=cache.place("partial", found["key"]),
        index=cache.place("index", found["key"] + ".json"),
        blobs=os.path.dirname(cache.place("blobs", "x")),
        lock=cache.lock,
        etag=found["etag"],
        version=found["version"],
        size=found["size"],
        sha256=pins.sha256,
    )
    if recorded["downloaded"]:
        model.origin = "downloaded"
        if recorded["resumed"]:
            model.steps.append(("resume", 0.0, f"{recorded['resumed']} bytes were downloaded earlier"))
    return recorded


def _record_pin(cache: Cache, key: str, recorded: Dict[str, Any]) -> None:
    path = cache.place("index", key + ".json")
    if not os.path.exists(path):
        write_record(path, recorded)


def _open_folder(model: Model, address: Address, progress: Optional[Progress]) -> None:
    objects = downloads.below(address)
    if not objects:
        raise ModelNotFoundError(f"{address.text}: the bucket has no object with this prefix")
    files: Dict[str, str] = {}
    for found in objects:
        part = address._replace(text=f"s3://{address.bucket}/{found['key']}", key=found["key"])
        recorded = _hold(model, part, _Pins(None, None, None), found, progress)
        files[found["key"][len(address.key) :]] = recorded["sha256"]
        model.size += recorded["size"]
    model.path = model.cache.tree(files)
    model.identity = _listing_identity(objects)


def _listing_identity(objects: List[Dict[str, Any]]) -> str:
    return key_of(*(f"{found['key']} {found['etag']}" for found in objects))


def _identity_of(address: Address) -> str:
    if address.path:
        return _stamp(address.path, address.text)[1]
    if address.key.endswith("/"):
        return _listing_identity(downloads.below(address))
    identity: str = downloads.head(address)["etag"]
    return identity
