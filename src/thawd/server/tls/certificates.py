"""Loads the certificate of thawd's port, and replaces it while the server runs.

Guarantees:
- a private key that other users can read is refused;
- a certificate is used only after a handshake with it in memory has succeeded, so that a file that is half written, or
  a key that belongs to another certificate, never replaces a pair that works;
- connections that are open keep the certificate with which they began.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thawd.config import TlsSettings
from thawd.server.port_and_folder_locks import StartError
from thawd.system.retry import SayOnce
from thawd.telemetry.console import complain, say

_LOOK_S = 1.0
# An ACME client writes certificate and key one after the other; only later is it a mistake if they do not match.
_MISMATCH_S = 10.0
_SOON_DAYS = 14
_DAY_S = 86_400
# Source: <openssl/x509_vfy.h>, X509_V_FLAG_NO_CHECK_TIME.
_NO_CHECK_TIME = 0x200000


class CertificateError(Exception):
    """The certificate or its key cannot be used; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Validity:
    """What a certificate says about itself.

    Attributes:
        names: the host names and addresses that it is for.
        ends_s: its end, in seconds since 1970.
    """

    names: tuple[str, ...]
    ends_s: float

    def describe(self) -> str:
        """Return the names and the last day."""
        return f"{', '.join(self.names) or 'no name'}, until {time.strftime('%Y-%m-%d', time.gmtime(self.ends_s))}"


class Certificate:
    """The certificate of the port.

    Args:
        settings: where the certificate and its key are.

    Attributes:
        context: the TLS context for connections that are accepted now; `load` makes another one. A context has a
            certificate for each kind of key, so that one in use could keep an old certificate beside a new one.
        validity: what the certificate in use says about itself.

    Raises:
        StartError: the certificate cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._certificate = settings.certificate
        self._key = settings.key or settings.certificate
        self._reports = SayOnce(complain)
        self.context: ssl.SSLContext
        self.validity: Validity
        self._seen = self._state()
        try:
            self.load()
        except CertificateError as error:
            raise StartError(f"server.tls: {error}") from None
        self._warn()

    def load(self) -> None:
        """Read the files, and use them for the connections that begin from now on.

        Raises:
            CertificateError: they cannot be used; the certificate from before stays in use.
        """
        certificate = _read(self._certificate)
        key = certificate if self._key == self._certificate else _read(self._key)
        _check_rights(self._key)
        context = _server_context()
        try:
            with _in_memory(certificate) as certificate_path, _in_memory(key) as key_path:
                context.load_cert_chain(certificate_path, key_path, password=_refuse_password)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(_why_unusable(error, self._certificate, self._key)) from None
        except OSError as error:
            raise CertificateError(
                f"{self._certificate} cannot be loaded ({error.strerror}): free what the system lacks, such as open "
                "files (ulimit -n), and send SIGHUP"
            ) from None
        self.validity = _try(context, certificate, self._certificate)
        self.context = context

    def reload(self) -> None:
        """Load the files again because the operator asks for it, and report the outcome."""
        self._seen = self._state()
        self._reports.resolved()  # the operator asks again, and gets the answer again
        try:
            self.load()
        except CertificateError as error:
            self._report(error)
        else:
            self._loaded()

    async def watch(self) -> None:
        """Load the files again whenever they have changed, until cancelled."""
        broken_since_s, warned_day = None, time.time() // _DAY_S
        while True:
            await asyncio.sleep(_LOOK_S)
            if time.time() // _DAY_S != warned_day:
                warned_day = time.time() // _DAY_S
                self._warn()
            if (state := self._state()) == self._seen:
                broken_since_s = None
                continue
            try:
                self.load()
            except CertificateError as error:
                broken_since_s = broken_since_s or time.monotonic()
                if time.monotonic() - broken_since_s >= _MISMATCH_S:
                    self._report(error)
            else:
                self._seen, broken_since_s = state, None
                self._loaded()

    def _loaded(self) -> None:
        self._reports.resolved()
        say(f"certificate loaded: {self.validity.describe()}")
        self._warn()

    def _report(self, error: CertificateError) -> None:
        self._reports.say(f"thawd: server.tls: the certificate from before stays in use: {error}")

    def _warn(self) -> None:
        """Report a certificate that has ended, or ends soon."""
        left_s = self.validity.ends_s - time.time()
        if left_s < _SOON_DAYS * _DAY_S:
            when = "has ended" if left_s <= 0 else "ends soon"
            complain(
                f"thawd: the certificate {self._certificate} {when} ({self.validity.describe()}): renew it. thawd "
                "loads the new files when they change"
            )

    def _state(self) -> tuple[tuple[int, ...] | None, ...]:
        """What changes when one of the files is replaced, or a symbolic link to it."""
        found: list[tuple[int, ...] | None] = []
        for path in (self._certificate, self._key):
            try:
                status = path.stat()
                found.append((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
            except OSError:
                found.append(None)
        return tuple(found)


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be read ({error.strerror}); name a file in PEM format that the user who runs thawd can read"
        ) from None


def _check_rights(path: Path) -> None:
    """Refuse a private key that others can read. A file of root's may be readable by a group, such as ssl-cert.

    Raises:
        CertificateError: others can read or change the file.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise CertificateError(f"{path} cannot be read ({error.strerror})") from None
    allowed = 0o640 if status.st_uid == 0 else 0o600
    if status.st_uid not in (0, os.geteuid()):
        raise CertificateError(
            f"the private key {path} belongs to another user: run `chown {os.geteuid()} {path}`, or let root own it"
        )
    if stat.S_IMODE(status.st_mode) & 0o077 & ~allowed:
        raise CertificateError(
            f"other users can read the private key {path} (mode {stat.S_IMODE(status.st_mode):04o}): run "
            f"`chmod {allowed:o} {path}`"
        )


def _refuse_password() -> str:
    """Called by OpenSSL for the password of an encrypted key; without this, it would ask on the terminal."""
    raise ValueError("the key is encrypted")


def _why_unusable(error: ssl.SSLError | ValueError, certificate: Path, key: Path) -> str:
    if not isinstance(error, ssl.SSLError):
        return f"the private key {key} is encrypted; write it without a password (openssl pkey -in {key} -out ...)"
    if error.reason in ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):  # keys of the same and of different kinds
        return f"the private key {key} belongs to another certificate than {certificate}"
    return (
        f"{certificate} and {key} cannot be used ({error.reason or error}); they must have a certificate with its "
        "intermediate certificates, and a private key, in PEM format"
    )


def _try(context: ssl.SSLContext, pem: bytes, path: Path) -> Validity:
    """Make a handshake in memory, as a client that trusts exactly this certificate, and whatever the time is.

    Raises:
        CertificateError: no client would accept the certificate of a server.
    """
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    try:
        trusting.load_verify_locations(cadata=pem.decode("ascii", "replace"))
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(to_client, to_server)
        server = context.wrap_bio(to_server, to_client, server_side=True)
        for side in (client, server, client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        found = client.getpeercert()
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
        raise CertificateError(f"a TLS handshake with {path} fails ({reason}); clients would fail, too") from None
    assert found is not None
    entries: Any = found.get("subjectAltName", ())
    names = tuple(str(value) for kind, value in entries if kind in ("DNS", "IP Address"))
    return Validity(names, ssl.cert_time_to_seconds(str(found["notAfter"])))


@contextlib.contextmanager
def _in_memory(contents: bytes) -> Iterator[str]:
    """The path of a file in memory with these contents: OpenSSL reads files only, and the original can change."""
    descriptor = os.memfd_create("thawd-tls", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, contents)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
