"""Checks the body of an S3 request against the checksums in its headers and trailers. No I/O.

Source: Amazon S3 API reference, "Checking object integrity".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Mapping
from typing import Protocol

from thawd.gateway.s3.xml import S3Error

_HEX_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_CHECKSUM = "x-amz-checksum-"


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


class Integrity:
    """Checks a body against the checksums and the length in the request's headers and trailers.

    Checked are CRC32, SHA-1 and SHA-256 checksums, Content-MD5, the length in ``x-amz-decoded-content-length`` and the
    SHA-256 in ``x-amz-content-sha256``. CRC32C and CRC64NVME checksums are ignored, since Python's standard library
    cannot compute them.

    Args:
        headers: the request's headers, names in lower case.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._hashes: dict[str, _Hash] = {}
        self._size = 0
        named = [name for name in headers if name.startswith(_CHECKSUM)]
        named += [name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",")]
        for name in named:
            made = _new_hash(name.removeprefix(_CHECKSUM))
            if made is not None:
                self._hashes[name] = made
        self._signed = headers.get("x-amz-content-sha256", "")
        self._sha256 = hashlib.sha256() if _HEX_DIGEST.fullmatch(self._signed) else None

    def update(self, data: bytes) -> None:
        """Add the next bytes of the body."""
        self._size += len(data)
        self._md5.update(data)
        if self._sha256 is not None:
            self._sha256.update(data)
        for each in self._hashes.values():
            each.update(data)

    def verify(self, trailers: Mapping[str, str]) -> str:
        """Check the whole body; returns its MD5 in hexadecimal digits.

        Raises:
            S3Error: a checksum is malformed, or a checksum or the length does not match (400).
        """
        length = self._headers.get("x-amz-decoded-content-length")
        if length is not None and length != str(self._size):
            raise S3Error(
                400, "IncompleteBody", f"{self._size} bytes arrived, but {length} were announced; send the body again"
            )
        md5 = self._headers.get("content-md5")
        if md5 is not None and _decoded("Content-MD5", md5, 16) != self._md5.digest():
            raise _bad_digest("Content-MD5", md5, self._md5.digest())
        for name, each in self._hashes.items():
            given = trailers.get(name) or self._headers.get(name)
            digest = each.digest()
            if given is not None and _decoded(name, given, len(digest)) != digest:
                raise _bad_digest(name, given, digest)
        if self._sha256 is not None and self._sha256.hexdigest() != self._signed.lower():
            raise S3Error(
                400,
                "XAmzContentSHA256Mismatch",
                f"The body's SHA-256 is {self._sha256.hexdigest()}, but x-amz-content-sha256 is {self._signed}; send "
                "the body again",
            )
        return self._md5.hexdigest()


def _new_hash(algorithm: str) -> _Hash | None:
    if algorithm == "crc32":
        return _Crc32()
    if algorithm == "sha1":
        return hashlib.sha1(usedforsecurity=False)
    if algorithm == "sha256":
        return hashlib.sha256()
    return None


def _decoded(name: str, value: str, size: int) -> bytes:
    try:
        digest = base64.b64decode(value, validate=True)
    except binascii.Error:
        digest = b""
    if len(digest) != size:
        raise S3Error(400, "InvalidDigest", f"{name} is {value!r}; it must be {size} bytes in Base64")
    return digest


def _bad_digest(name: str, given: str, digest: bytes) -> S3Error:
    return S3Error(
        400,
        "BadDigest",
        f"{name} is {given}, but the body that arrived has {base64.b64encode(digest).decode()}; send the body again",
    )
