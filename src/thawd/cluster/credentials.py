"""The credentials of a machine whose cluster issues certificates itself, and the tokens with which machines join.

The folder ``cluster`` in the data folder contains:

- ``authority.pem``, ``authority-key.pem``: certificate and private key of the cluster's authority;
- ``machine.pem``: this machine's certificate, which names it, and its private key;
- ``key``: the key with which machines prove that they belong to the cluster (`thawd.cluster.handshake`).

All machines have the authority's key, so that each of them can let others join. Whoever can read one machine's folder
can therefore be any machine. A token proves to a machine that its bearer may join, and tells the bearer which authority
to expect. It ends after a time, and can be used several times until then.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import os
import secrets
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from thawd.errors import ThawdError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

FOLDER = "cluster"
_AUTHORITY, _AUTHORITY_KEY, _MACHINE, _KEY = "authority.pem", "authority-key.pem", "machine.pem", "key"
SAVED = (_AUTHORITY, _AUTHORITY_KEY, _KEY)
"""Names of the files that `saved` returns."""
# Machines whose clocks are wrong by less than a day accept each other. Certificates are not renewed.
_SKEW = datetime.timedelta(days=1)
_VALID = datetime.timedelta(days=3650)
_TOKEN = "thawd1"


class CredentialsError(ThawdError):
    """The credentials of this machine are missing or cannot be used; the message says what to do."""


class Granted(msgspec.Struct, frozen=True):
    """What a machine that joins gets.

    Attributes:
        authority: the authority's certificate, PEM.
        authority_key: its private key, PEM.
        certificate: the new machine's certificate, PEM.
        key: the cluster's key.
    """

    authority: str
    authority_key: str
    certificate: str
    key: str

    def __repr__(self) -> str:
        return "Granted()"  # keys are not for logs


class Request:
    """A machine's request for a certificate.

    Args:
        name: the machine's name.

    Attributes:
        text: the request, PEM; the private key is not in it.
    """

    def __init__(self, name: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        self._key = _new_key()
        builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
        signed = builder.sign(self._key, hashes.SHA256())
        self.text = signed.public_bytes(serialization.Encoding.PEM).decode()

    def store(self, granted: Granted, data: Path) -> None:
        """Store the credentials in the data folder. What was there before is replaced.

        Raises:
            OSError: they cannot be stored.
        """
        folder, new = data / FOLDER, data / f"{FOLDER}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(0o700, parents=True)
        files = {
            _AUTHORITY: granted.authority,
            _AUTHORITY_KEY: granted.authority_key,
            _MACHINE: granted.certificate + _pem(self._key),
            _KEY: granted.key,
        }
        for name, text in files.items():
            with open(os.open(new / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)


class Credentials:
    """The credentials in a data folder.

    Args:
        data: the data folder.

    Raises:
        CredentialsError: there are none, or they cannot be read.
    """

    def __init__(self, data: Path) -> None:
        self._folder = data / FOLDER
        try:
            self.key = (self._folder / _KEY).read_text()
            self.authority = (self._folder / _AUTHORITY).read_text()
        except FileNotFoundError:
            raise CredentialsError(
                f"this machine has no credentials of a cluster in {self._folder}; run `thawd cluster up` on the first "
                "machine, and `thawd cluster join` with a token of that machine on the others"
            ) from None
        except OSError as error:
            raise CredentialsError(f"the file {error.filename} cannot be read: {error.strerror}") from None

    @property
    def files(self) -> tuple[Path, Path]:
        """This machine's certificate with its key, and the authority's certificate."""
        return self._folder / _MACHINE, self._folder / _AUTHORITY

    @property
    def fingerprint(self) -> str:
        """What identifies the authority: the SHA-256 of its certificate, in hexadecimal digits."""
        return fingerprint_of(self.authority)

    def token(self, *, valid_s: float, now: float) -> str:
        """Return a token with which machines may join.

        Args:
            valid_s: how long, seconds.
            now: the time, seconds since the epoch.
        """
        until = f"{round(now + valid_s):x}"
        return "-".join((_TOKEN, until, self._mac(until), self.fingerprint))

    def _mac(self, until: str) -> str:
        return hmac.new(self.key.encode(), f"thawd join {until}".encode(), "sha256").hexdigest()[:40]

    def grant(self, token: str, request: str, name: str, *, now: float) -> Granted:
        """Return what a machine with a token gets.

        Args:
            token: the token.
            request: its request for a certificate, PEM.
            name: its name.
            now: the time, seconds since the epoch.

        Raises:
            CredentialsError: the token is wrong or has ended, or the request names another machine.
        """
        _, until, mac, fingerprint = parts_of(token)
        if not hmac.compare_digest(mac, self._mac(until)) or fingerprint != self.fingerprint:
            raise CredentialsError("the token is not one of this cluster")
        if int(until, 16) < now:
            raise CredentialsError("the token has ended; make a new one with `thawd cluster token`")
        return self._granted(request, name)

    def _granted(self, request: str, name: str) -> Granted:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization

        key = (self._folder / _AUTHORITY_KEY).read_bytes()
        signed = x509.load_pem_x509_csr(request.encode())
        if signed.subject != _name(name) or not signed.is_signature_valid:
            raise CredentialsError("the request for a certificate names another machine")
        authority = x509.load_pem_x509_certificate(self.authority.encode())
        private: EllipticCurvePrivateKey = serialization.load_pem_private_key(key, None)  # type: ignore[assignment]
        certificate = _signed(name, authority.subject, signed.public_key(), private, is_authority=False)
        return Granted(self.authority, key.decode(), certificate, self.key)


def create(data: Path, name: str) -> None:
    """Make an authority, and the credentials of the cluster's first machine.

    Raises:
        CredentialsError: the library for certificates is not installed.
        OSError: they cannot be stored.
    """
    from cryptography import x509

    with _needing_library():
        request, private = Request(name), _new_key()
        subject = _name(f"thawd cluster {secrets.token_hex(4)}")
        authority = _signed("", subject, private.public_key(), private, is_authority=True)
        own = x509.load_pem_x509_csr(request.text.encode()).public_key()
        certificate = _signed(name, subject, own, private, is_authority=False)
        request.store(Granted(authority, _pem(private), certificate, secrets.token_urlsafe(32)), data)


def saved(data: Path) -> dict[str, bytes]:
    """The files of a data folder that all machines of the cluster have: its authority, with the key, and its key.

    Raises:
        OSError: a file cannot be read.
    """
    return {name: (data / FOLDER / name).read_bytes() for name in SAVED}


def restore(folder: Path, data: Path, name: str) -> None:
    """Give a machine credentials of the cluster whose files `saved` returned.

    Args:
        folder: has these files.
        data: the machine's data folder.
        name: the machine's name.

    Raises:
        CredentialsError: the library for certificates is not installed, or the files are no keys.
        OSError: a file cannot be read or written.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    with _needing_library():
        authority, private, key = ((folder / each).read_text() for each in SAVED)
        request = Request(name)
        try:
            signer = x509.load_pem_x509_certificate(authority.encode())
            signing: EllipticCurvePrivateKey = serialization.load_pem_private_key(private.encode(), None)  # type: ignore[assignment]
        except ValueError:
            raise CredentialsError(f"{folder} has no keys of a cluster") from None
        own = x509.load_pem_x509_csr(request.text.encode()).public_key()
        certificate = _signed(name, signer.subject, own, signing, is_authority=False)
        request.store(Granted(authority, private, certificate, key), data)


def exist(data: Path) -> bool:
    """Whether a data folder has credentials of a cluster."""
    return (data / FOLDER / _KEY).exists()


def remove(data: Path) -> None:
    """Remove a machine's credentials, because it has left its cluster."""
    shutil.rmtree(data / FOLDER, ignore_errors=True)


def parts_of(token: str) -> tuple[str, str, str, str]:
    """The parts of a token: its version, when it ends, its MAC, and the authority's fingerprint.

    Raises:
        CredentialsError: the text is no token.
    """
    parts = token.split("-")
    with contextlib.suppress(ValueError):
        if len(parts) == 4 and parts[0] == _TOKEN and len(parts[3]) == 64 and int(parts[1], 16) >= 0:
            return parts[0], parts[1], parts[2], parts[3]
    raise CredentialsError(
        "this is no token for joining a cluster; `thawd cluster token` on one of its machines makes one"
    )


def fingerprint_of(authority: str) -> str:
    """What identifies an authority.

    Raises:
        ValueError: this is no certificate in PEM format.
    """
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority)).hexdigest()


@contextlib.contextmanager
def _needing_library() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError:
        raise CredentialsError(
            "certificates need the package cryptography; install it with `pip install 'thawd[cluster]'`"
        ) from None


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _pem(key: EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


def _name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _signed(
    name: str, issuer: x509.Name, public: object, authority: EllipticCurvePrivateKey, *, is_authority: bool
) -> str:
    """Return a certificate, PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(issuer if is_authority else _name(name)).issuer_name(issuer)
    builder = builder.public_key(public).serial_number(x509.random_serial_number())  # type: ignore[arg-type]
    builder = builder.not_valid_before(now - _SKEW).not_valid_after(now + _VALID)
    builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
