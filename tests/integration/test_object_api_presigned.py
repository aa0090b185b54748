"""`thawd.gateway.s3.endpoint`: URLs that boto3 signed work, and requests meant for S3 are recognised."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config

from tests.integration.served import Served, xml_code
from thawd.gateway.s3.request import speaks_s3

VERSIONS = [None, "s3", "s3v4"]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as folder, Served(Path(folder)) as running:
        yield running


def signer(served: Served, version: str | None) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{served.port}",
        region_name="us-east-1",
        aws_access_key_id="dummy",
        aws_secret_access_key="dummy",
        aws_session_token="token",
        config=Config(signature_version=version, s3={"addressing_style": "path"}),
    )


def target(url: str) -> str:
    return f"{urlsplit(url).path}?{urlsplit(url).query}"


@pytest.mark.parametrize("version", VERSIONS)
def test_presigned_urls_put_get_list_and_delete(served: Served, version: str | None) -> None:
    client = signer(served, version)
    of_key = {"Bucket": "uploads", "Key": "a b/ü.png"}
    put = client.generate_presigned_url("put_object", Params={**of_key, "ContentType": "image/png"})
    assert served.request("PUT", target(put), b"image", {"content-type": "image/png"})[0] == 200
    assert (served.folder / "uploads/a b/ü.png").read_bytes() == b"image"
    get = client.generate_presigned_url("get_object", Params=of_key)
    assert served.request("GET", target(get))[::2] == (200, b"image")
    listing = client.generate_presigned_url("list_objects_v2", Params={"Bucket": "uploads", "Prefix": "a b/"})
    assert served.request("GET", target(listing))[0] == 200
    delete = client.generate_presigned_url("delete_object", Params=of_key)
    assert served.request("DELETE", target(delete))[0] == 204
    assert not (served.folder / "uploads/a b/ü.png").exists()
    client.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_presigned_url_that_asks_for_what_is_not_offered_is_refused(served: Served, version: str | None) -> None:
    client = signer(served, version)
    url = client.generate_presigned_url("get_object", Params={"Bucket": "uploads", "Key": "k", "VersionId": "1"})
    status, _, body = served.request("GET", target(url))
    assert (status, xml_code(body)) == (501, "NotImplemented")
    client.close()


def scope(query: bytes = b"", **headers: bytes) -> dict[str, Any]:
    return {"query_string": query, "headers": [(n.replace("_", "-").encode(), v) for n, v in headers.items()]}


@pytest.mark.parametrize(
    "request_scope",
    [
        scope(authorization=b"AWS4-HMAC-SHA256 Credential=AK/20260101/eu-west-1/s3/aws4_request, Signature=00"),
        scope(authorization=b"AWS AK:c2lnbmF0dXJl"),
        scope(x_amz_content_sha256=b"UNSIGNED-PAYLOAD"),
        scope(b"X-Amz-Credential=AK%2F20260101%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Signature=00"),
        scope(b"AWSAccessKeyId=AK&Signature=c2ln&Expires=1"),
    ],
)
def test_a_request_that_is_meant_for_s3_is_known(request_scope: dict[str, Any]) -> None:
    assert speaks_s3(request_scope)


@pytest.mark.parametrize(
    "request_scope",
    [
        scope(),
        scope(b"a=b&Signature=1"),
        scope(authorization=b"Bearer key"),
        scope(authorization=b"Basic eDp5"),
        scope(authorization=b"AWS4-HMAC-SHA256 Credential=AK/20260101/us-east-1/lambda/aws4_request, Signature=00"),
        scope(
            authorization=b"AWS4-HMAC-SHA256 Credential=AK/20260101/us-east-1/execute-api/aws4_request, Signature=00",
            x_amz_content_sha256=b"0" * 64,
        ),
        scope(b"X-Amz-Credential=AK%2F20260101%2Fus-east-1%2Fexecute-api%2Faws4_request"),
    ],
)
def test_other_requests_are_not_taken_for_s3s(request_scope: dict[str, Any]) -> None:
    assert not speaks_s3(request_scope)
