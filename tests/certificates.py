"""Certificates for tests: an authority, and machines' certificates that it has signed."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


def make_certificates(folder: Path, stem: str = "cluster") -> tuple[Path, Path]:
    """Write a certificate with its private key, and the authority's certificate. Returns both files' paths."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)

    def build(name: str, issuer: str, public: ec.EllipticCurvePublicKey, *, is_ca: bool) -> x509.Certificate:
        subject, signer = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)]) for each in (name, issuer))
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(signer).public_key(public)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(1))
        builder = builder.not_valid_after(now + datetime.timedelta(2))
        builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        return builder.sign(ca_key, hashes.SHA256())

    authority, certificate = folder / f"{stem}-authority.pem", folder / f"{stem}.pem"
    name = f"{stem} authority"
    pem = serialization.Encoding.PEM
    authority.write_bytes(build(name, name, ca_key.public_key(), is_ca=True).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    certificate.write_bytes(private + build("machine", name, key.public_key(), is_ca=False).public_bytes(pem))
    certificate.chmod(0o600)
    return certificate, authority


def make_server_certificate(
    folder: Path,
    stem: str,
    *,
    name: str = "localhost",
    days: float = 90,
    with_rsa: bool = False,
    password: bytes = b"",
    purpose: str = "server",
) -> tuple[Path, Path]:
    """Write a self-signed certificate for `name` and 127.0.0.1, and its private key. Returns both files' paths."""
    now = datetime.datetime.now(datetime.UTC)
    key = rsa.generate_private_key(65537, 2048) if with_rsa else ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, stem)])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(30))
    builder = builder.not_valid_after(now + datetime.timedelta(days))
    names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    usage = x509.ExtendedKeyUsageOID.SERVER_AUTH if purpose == "server" else x509.ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    pem = serialization.Encoding.PEM
    certificate, private = folder / f"{stem}.pem", folder / f"{stem}.key"
    certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    kind = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private.touch(mode=0o600)
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, kind))
    return certificate, private
