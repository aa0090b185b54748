"""`thawd.server.emulator.service_models`: sessions of botocore share what they read."""

from __future__ import annotations

import boto3
import botocore.session
import pytest

from thawd.server.emulator import service_models


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(botocore.session, "create_loader", botocore.session.create_loader)
    service_models.share()


def loader_of(session: boto3.Session) -> object:
    return session._session.get_component("data_loader")


@pytest.mark.usefixtures("sharing")
def test_sessions_read_botocores_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DATA_PATH", raising=False)
    first, second = boto3.Session(), boto3.Session()
    assert loader_of(first) is loader_of(second)
    assert "eu-central-1" in second.get_available_regions("ec2")


@pytest.mark.usefixtures("sharing")
def test_a_session_that_looks_for_data_in_other_folders_reads_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    shared = loader_of(boto3.Session())
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    assert loader_of(boto3.Session()) is not shared
