"""cryptography and ssl: keys made before the freeze still work, and random values differ between copies."""

from __future__ import annotations

import hashlib
import ssl
from typing import Any

import scenario
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class SecretsKept:
    """Keys and a TLS context."""

    def __init__(self) -> None:
        self._signer = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
        self._rsa = rsa.generate_private_key(65537, 2048)
        self._fernet = Fernet(Fernet.generate_key())
        self._sealed = self._fernet.encrypt(b"before the freeze")
        self._gcm = AESGCM(bytes(range(16)))
        self._context = ssl.create_default_context()

    def answer(self, number: int) -> Any:
        text = f"message {number}".encode() * 1000
        signature = self._rsa.sign(text, padding.PKCS1v15(), hashes.SHA256())
        return {
            "ed25519": self._signer.sign(text).hex(),
            "rsa": signature.hex(),
            "gcm": hashlib.sha256(self._gcm.encrypt(bytes(12), text, None)).hexdigest(),
            "kept": self._fernet.decrypt(self._sealed).decode(),
        }

    def exercise(self) -> None:
        assert self._fernet.encrypt(b"x") != self._fernet.encrypt(b"x")
        text = b"secret" * 10
        sealed = self._rsa.public_key().encrypt(
            text, padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
        )
        assert self._rsa.decrypt(sealed, padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)) == text
        assert rsa.generate_private_key(65537, 1024 * 2).key_size == 2048
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        connection = self._context.wrap_bio(incoming, outgoing, server_hostname="example.com")
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            pass
        assert outgoing.pending > 100  # the client's hello message


if __name__ == "__main__":
    scenario.main(lambda _options: SecretsKept())
