"""The keys of a store of chunks.

A store has one main key, in a file of the machines that send. From it are derived a key for each function, which
encrypts the function's records; the names of chunks; and the keys of chunks, which are in the records. So whoever has
only a function's key reads the snapshots of that function. They cannot read what else the store contains, but of
contents that the function has, too, they can find out that others have them. A machine that only receives needs the
keys of its functions, not the main key.

The name of a chunk depends on its content and on the main key: whoever reads the store cannot find out whether it
contains a known content. Equal contents of all functions have one name, so they are stored once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from thawd.errors import InvalidParameterValueException, StoreError
from thawd.snapshot.store.trust_and_locks import distrust, open_as_is
from thawd.system import folders
from thawd.transfer.chunk_format import ChunkFacts

_MAIN = "thawd-store-key"
_FUNCTION = "thawd-function-key"
_KEY_BYTES = 32
_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True, repr=False)
class StoreKey:
    """A main key.

    Attributes:
        secret: 32 random bytes.
    """

    secret: bytes

    @property
    def name(self) -> str:
        """A name of the key, from which the key cannot be found, 64 hexadecimal digits."""
        return self._derived("name of the main key").hex()

    def function_key(self, function: str) -> bytes:
        """The key of a function's records."""
        return self._derived(f"function {function}")

    def chunk(self, plain: bytes) -> ChunkFacts:
        """Name and key of the chunk with this content."""
        sha256 = hashlib.sha256(plain).digest()
        name = hmac.digest(self._derived("names of chunks"), sha256, "sha256")
        return ChunkFacts(name, hmac.digest(self._derived("keys of chunks"), name, "sha256"), sha256, len(plain))

    def _derived(self, purpose: str) -> bytes:
        """HMAC-SHA256 as a key derivation: the main key is uniformly random, so no extraction is needed (RFC 5869)."""
        return hmac.digest(self.secret, b"thawd store of chunks 1\0" + purpose.encode() + b"\1", "sha256")

    def text(self) -> str:
        """The content of a key file."""
        return f"{_MAIN} {base64.b64encode(self.secret).decode()}\n"


@dataclass(frozen=True, slots=True, repr=False)
class FunctionKey:
    """The key of one function. It only reads.

    Attributes:
        function: name of the function.
        secret: the key of its records, 32 bytes.
    """

    function: str
    secret: bytes

    def function_key(self, function: str) -> bytes:
        """The key of a function's records.

        Raises:
            StoreError: this is the key of another function (HTTP 500).
        """
        if function != self.function:
            raise StoreError(f"the key is that of the function {self.function}, but {function} needs its own")
        return self.secret

    def text(self) -> str:
        """The content of a key file."""
        return f"{_FUNCTION} {self.function} {base64.b64encode(self.secret).decode()}\n"


def read_key(path: Path) -> StoreKey | FunctionKey:
    """Read a key file.

    Raises:
        StoreError: the file is missing, or other users may access it (HTTP 500).
        InvalidParameterValueException: it contains no key (HTTP 400).
    """
    try:
        with open_as_is(path) as fd:
            if (reason := distrust(path, os.fstat(fd))) is not None:
                raise StoreError(f"{reason}. A key belongs to its user alone: chmod 600 {path}")
            words = os.read(fd, _FILE_BYTES).decode(errors="replace").split()
    except OSError as error:
        raise StoreError(
            f"the key {path} cannot be read: {error.strerror}. Copy it from the machine that sends snapshots, or copy "
            "what `thawd snapshot key FUNCTION` prints there."
        ) from None
    try:
        secret = base64.b64decode(words[-1] if words else "", validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) == _KEY_BYTES and len(words) == 2 and words[0] == _MAIN:
        return StoreKey(secret)
    if len(secret) == _KEY_BYTES and len(words) == 3 and words[0] == _FUNCTION:
        return FunctionKey(words[1], secret)
    raise InvalidParameterValueException(f"{path} contains no key of a store of chunks.")


def main_key(path: Path) -> StoreKey:
    """Read the main key; make it if there is no file.

    Raises:
        StoreError: the file cannot be made or read, or holds the key of one function only (HTTP 500).
        InvalidParameterValueException: it contains no key (HTTP 400).
    """
    if not os.path.lexists(path):
        _make(path)
    key = read_key(path)
    if isinstance(key, FunctionKey):
        raise StoreError(
            f"{path} is the key of the function {key.function}, which only receives; sending needs the main key"
        )
    return key


def _make(path: Path) -> None:
    """Write a new main key. If another process makes one at the same time, its key stays."""
    written = path.with_name(f".thawd-key-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "w") as file:
            file.write(StoreKey(os.urandom(_KEY_BYTES)).text())
            file.flush()
            os.fsync(fd)
        try:
            os.link(written, path)
        except FileExistsError:
            pass
        finally:
            written.unlink()
        folders.sync(path.parent)  # what is sent with a key that a power cut removes could never be received
    except OSError as error:
        raise StoreError(f"the key {path} cannot be made: {error.strerror}") from None
