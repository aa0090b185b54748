"""Loads a split package: fetches the part that is too large for Lambda into /tmp, then imports the handler.

This file is copied into split packages, beside thawd_parts.json. It uses only the standard library and, for s3:// URLs,
boto3, which Lambda's Python runtimes have. PACKAGE_PARTS_URL is where the parts are, such as s3://bucket/prefix.
"""

import fcntl
import hashlib
import importlib
import io
import json
import os
import shutil
import site
import sys
import tarfile
import tempfile
import urllib.request
import zlib
from typing import Any, BinaryIO

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.join(tempfile.gettempdir(), f"package-parts-{os.getuid()}")


class _Hashed(io.RawIOBase):
    """A stream that computes the SHA-256 of the bytes that were read from it."""

    def __init__(self, source: BinaryIO) -> None:
        self.source, self.digest = source, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        chunk = self.source.read(size)
        self.digest.update(chunk)
        return chunk


def _opened(url: str) -> BinaryIO:
    if not url.startswith("s3://"):
        return urllib.request.urlopen(url, timeout=60)  # type: ignore[no-any-return]
    import boto3

    bucket, _, key = url[len("s3://") :].partition("/")
    return boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"]  # type: ignore[no-any-return]


def _fetched(file: str, sha256: str, base: str) -> str:
    """Return the folder with a part's files, which is made if it is missing."""
    folder = os.path.join(_ROOT, sha256)
    os.makedirs(_ROOT, 0o700, exist_ok=True)
    if os.stat(_ROOT).st_uid != os.getuid():
        raise RuntimeError(f"{_ROOT} belongs to another user")
    with open(os.path.join(_ROOT, "lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two processes, the second waits and finds the folder
        if not os.path.isdir(folder):
            unfinished = folder + ".new"
            shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
            try:
                _unpack(base.rstrip("/") + "/" + file, sha256, unfinished)
                os.rename(unfinished, folder)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
    return folder


def _unpack(url: str, sha256: str, folder: str) -> None:
    """Unpack a part into a folder. The caller removes the folder if this fails."""
    try:
        source = _opened(url)
    except Exception as error:
        raise RuntimeError(f"the part {url} of this package cannot be fetched: {error}") from error
    with source:
        stream, broken = _Hashed(source), None
        try:
            with tarfile.open(fileobj=stream, mode="r|gz") as archive:
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, zlib.error, EOFError) as error:
            broken = error  # the digest says whether the part is another one
        while stream.read(1 << 20):
            pass
    if stream.digest.hexdigest() != sha256:
        found = stream.digest.hexdigest()
        raise RuntimeError(f"the part {url} has the SHA-256 {found}, not {sha256}: upload it again") from broken
    if broken is not None:
        raise broken


def _handler() -> Any:
    with open(os.path.join(_HERE, "thawd_parts.json")) as file:
        manifest = json.load(file)
    base = os.environ.get("PACKAGE_PARTS_URL") or manifest["url"]
    if not base:
        raise RuntimeError("set PACKAGE_PARTS_URL to where the parts of this package are, such as s3://bucket/prefix")
    for part in manifest["parts"]:
        folder, before = _fetched(part["file"], part["sha256"], base), list(sys.path)
        site.addsitedir(folder)  # also reads .pth files
        # Behind the code and before the runtime, as if the part were in the package.
        at = before.index(_HERE) + 1 if _HERE in before else 0
        sys.path[:] = before[:at] + [path for path in sys.path if path not in before] + before[at:]
    module, _, name = manifest["handler"].rpartition(".")
    return getattr(importlib.import_module(module.replace("/", ".")), name)


handler = _handler()
