"""Claims about the certificate of thawd's port when its files change while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from tests.certificates import make_server_certificate
from tests.unit.execution_fakes import until
from thawd.config import TlsSettings
from thawd.server.tls import certificates
from thawd.server.tls.certificates import Certificate


def _certificate(folder: Path) -> Certificate:
    certificate, key = make_server_certificate(folder, "own")
    return Certificate(TlsSettings(certificate=certificate, key=key))


def _no_descriptors(*_: object) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_renewed_certificate_is_loaded_once_the_system_has_descriptors_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = _certificate(tmp_path)
    before = certificate.context
    monkeypatch.setattr(certificates, "_LOOK_S", 0.002)
    monkeypatch.setattr(certificates, "_MISMATCH_S", 0.0)
    printed: list[str] = []

    def reported() -> bool:
        printed.append(capsys.readouterr().err)
        return "Too many open files" in "".join(printed)

    async def main() -> None:
        watching = asyncio.create_task(certificate.watch())
        with monkeypatch.context() as scarce:
            scarce.setattr(os, "memfd_create", _no_descriptors)
            make_server_certificate(tmp_path, "own")
            await until(lambda: watching.done() or reported())
            assert not watching.done(), watching.exception()
            assert certificate.context is before
        await until(lambda: watching.done() or certificate.context is not before)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    asyncio.run(main())


def test_each_request_to_reload_is_answered_although_the_mistake_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = _certificate(tmp_path)
    (tmp_path / "own.key").chmod(0o644)
    for _ in range(2):
        certificate.reload()
        assert "other users can read the private key" in capsys.readouterr().err
