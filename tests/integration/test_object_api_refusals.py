"""`thawd.gateway.s3.endpoint`: what it refuses, that refused requests leave nothing behind, and that none gets
through."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from botocore.exceptions import ClientError

from tests.integration.served import Served, code_of, xml_code


def test_buckets_are_there_or_told_of(served: Served, s3: Any) -> None:
    assert s3.head_bucket(Bucket="uploads")["ResponseMetadata"]["HTTPStatusCode"] == 200
    with pytest.raises(ClientError) as caught:
        s3.list_objects_v2(Bucket="nowhere")
    assert code_of(caught) == "NoSuchBucket"
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket="nowhere", Key="k", Body=b"")
    assert code_of(caught) == "NoSuchBucket"
    with pytest.raises(ClientError) as caught:
        s3.create_bucket(Bucket="uploads")
    assert code_of(caught) == "BucketAlreadyOwnedByYou"
    for path in ("/uploads", "/uploads/", "/uploads/a/b", "/other-bucket/x"):
        assert served.api.owns(path)
    for path in ("/", "", "/upload", "/uploads2/x", "/2015-03-31/functions"):
        assert not served.api.owns(path)


def test_objects_that_are_not_there_are_told_of(served: Served, s3: Any) -> None:
    (served.folder / "uploads/folder").mkdir(exist_ok=True)
    for key in ("missing", "folder", "folder/missing", "missing/below"):
        with pytest.raises(ClientError) as caught:
            s3.get_object(Bucket="uploads", Key=key)
        assert code_of(caught) == "NoSuchKey"
        with pytest.raises(ClientError) as caught:
            s3.head_object(Bucket="uploads", Key=key)
        assert code_of(caught) == "404"
    assert served.request("DELETE", "/uploads/folder")[0] == 204
    assert (served.folder / "uploads/folder").is_dir()


@pytest.mark.parametrize(
    "path",
    [
        "/uploads/../thawd.db",
        "/uploads/..%2Fthawd.db",
        "/uploads/a/../../thawd.db",
        "/uploads/./x",
        "/uploads//etc/passwd",
        "/uploads/%2Fetc/passwd",
        "/uploads/a//b",
        "/uploads/a/",
        "/uploads/.thawd-staging/x",
        "/uploads/.hidden",
        "/uploads/a/.hidden/b",
        "/uploads/nul%00byte",
        "/uploads/" + "x" * 1025,
        "/uploads/" + "x" * 256,
    ],
)
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_keys_that_lead_elsewhere_are_refused(served: Served, s3: Any, path: str, method: str) -> None:
    status, _, body = served.request(method, path, b"x" if method == "PUT" else None)
    if len(path) == len("/uploads/") + 256 and method != "PUT":
        assert status in (204, 400, 404)
    else:
        assert (status, xml_code(body)) in ((400, "InvalidArgument"), (400, "KeyTooLongError"))
    assert served.events() == {}


def test_links_that_lead_elsewhere_are_not_followed(served: Served, s3: Any, tmp_path: Path) -> None:
    root = served.folder / "uploads"
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "out-file").symlink_to(tmp_path / "secret")
    (root / "out-folder").symlink_to(tmp_path)
    try:
        for key in ("out-file", "out-folder/secret"):
            with pytest.raises(ClientError) as caught:
                s3.get_object(Bucket="uploads", Key=key)
            assert code_of(caught) == "NoSuchKey"
            s3.delete_object(Bucket="uploads", Key=key)
        for key in ("out-folder/secret", "out-folder/new/deep"):
            with pytest.raises(ClientError) as caught:
                s3.put_object(Bucket="uploads", Key=key, Body=b"overwritten")
            assert code_of(caught) == "InvalidArgument"
        assert (tmp_path / "secret").read_bytes() == b"secret"
        assert [p.name for p in tmp_path.iterdir()] == ["secret"]
        # A PUT replaces a link instead of writing through it
        s3.put_object(Bucket="uploads", Key="out-file", Body=b"mine")
        assert (tmp_path / "secret").read_bytes() == b"secret"
        assert (root / "out-file").read_bytes() == b"mine"
    finally:
        (root / "out-folder").unlink()


def test_a_key_that_another_excludes_is_told_of(served: Served, s3: Any) -> None:
    s3.put_object(Bucket="uploads", Key="file", Body=b"1")
    s3.put_object(Bucket="uploads", Key="dir/file", Body=b"1")
    for key in ("file/below", "dir"):
        with pytest.raises(ClientError) as caught:
            s3.put_object(Bucket="uploads", Key=key, Body=b"2")
        assert code_of(caught) == "OperationAborted"
    assert list((served.folder / "uploads/.thawd-staging").iterdir()) == []


def test_what_is_not_offered_is_refused_by_name(served: Served, s3: Any) -> None:
    s3.put_object(Bucket="uploads", Key="k", Body=b"1")
    calls = [
        lambda: s3.list_multipart_uploads(Bucket="uploads"),
        lambda: s3.copy_object(Bucket="uploads", Key="k2", CopySource="uploads/k"),
        lambda: s3.put_object_tagging(Bucket="uploads", Key="k", Tagging={"TagSet": []}),
        lambda: s3.get_object_acl(Bucket="uploads", Key="k"),
        lambda: s3.get_object(Bucket="uploads", Key="k", VersionId="1"),
        lambda: s3.get_bucket_location(Bucket="uploads"),
        lambda: s3.delete_object(Bucket="uploads", Key="k", IfMatch='"x"'),
        lambda: s3.put_object(Bucket="uploads", Key="k", Body=b"2", IfMatch='"x"'),
    ]
    for call in calls:
        with pytest.raises(ClientError) as caught:
            call()
        assert code_of(caught) == "NotImplemented"
    status, _, body = served.request("PUT", "/uploads/big", b"", {"x-amz-decoded-content-length": str(6 * 1024**3)})
    assert (status, xml_code(body)) == (400, "EntityTooLarge")
    for parameter in ("max-keys=-1", "max-keys=x", "continuation-token=%21", "encoding-type=xml"):
        status, _, body = served.request("GET", f"/uploads?list-type=2&{parameter}")
        assert (status, xml_code(body)) == (400, "InvalidArgument")
    assert s3.get_object(Bucket="uploads", Key="k")["Body"].read() == b"1"


NOT_KEPT = {
    "Metadata": {"camera": "left"},
    "Tagging": "a=b",
    "ACL": "public-read",
    "GrantRead": "id=1",
    "ServerSideEncryption": "AES256",
    "StorageClass": "GLACIER",
    "WebsiteRedirectLocation": "/x",
    "ObjectLockLegalHoldStatus": "ON",
    "ContentEncoding": "gzip",
    "ContentDisposition": "attachment",
    "ContentLanguage": "de",
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_properties_that_would_be_lost_are_refused(served: Served, s3: Any, name: str) -> None:
    for call in (s3.put_object, s3.create_multipart_upload):
        with pytest.raises(ClientError, match="is not supported") as caught:
            call(Bucket="uploads", Key="k", **{name: NOT_KEPT[name]})
        assert code_of(caught) == "NotImplemented"
    # A customer's encryption key, which the SDK sends only over TLS, and metadata in the URL, as in presigned URLs
    header = {"x-amz-server-side-encryption-customer-algorithm": "AES256"}
    assert served.request("PUT", "/uploads/k", b"1", header)[0] == 501
    assert served.request("PUT", "/uploads/k?x-amz-meta-camera=left", b"1")[0] == 501
    assert not (served.folder / "uploads/k").exists()
    assert served.events() == {}


def test_properties_that_are_the_default_pass(served: Served, s3: Any) -> None:
    s3.put_object(Bucket="uploads", Key="k", Body=b"1", StorageClass="STANDARD", ACL="private", ContentType="a/b")
    served.request("PUT", "/uploads/k", b"1", {"content-encoding": "identity", "cache-control": "no-cache"})
    assert served.events() == {"ObjectCreated:Put k": 2}


def test_an_upload_that_breaks_off_leaves_nothing_behind(served: Served, s3: Any) -> None:
    staging = served.folder / "uploads/.thawd-staging"
    s3.put_object(Bucket="uploads", Key="first", Body=b"1")
    served.events()
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(
            b"PUT /uploads/half HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 4_000_000
        )
        while not list(staging.iterdir()):
            pass
    while list(staging.iterdir()):
        pass
    assert not (served.folder / "uploads/half").exists()
    s3.put_object(Bucket="uploads", Key="last", Body=b"1")
    assert served.events() == {"ObjectCreated:Put last": 1}


def test_what_a_crash_left_in_staging_is_cleared_but_not_what_is_in_use(tmp_path: Path) -> None:
    staging = tmp_path / "uploads/.thawd-staging"
    staging.mkdir(parents=True)
    (staging / "left").write_bytes(b"half")
    holder = subprocess.Popen(
        ["flock", staging / "in-use", "-c", "echo held; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with Served(tmp_path) as served:
        served.request("PUT", "/uploads/k", b"1")
        assert [p.name for p in staging.iterdir()] == ["in-use"]
    holder.communicate()


def test_a_bucket_whose_folder_is_gone_says_so_and_is_not_made_anew(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        (tmp_path / "uploads").rename(tmp_path / "away")
        for method in ("PUT", "HEAD"):
            status, _, body = served.request(method, "/uploads/k" if method == "PUT" else "/uploads", b"1")
            assert status == 404
            assert method == "HEAD" or xml_code(body) == "NoSuchBucket"
        assert not (tmp_path / "uploads").exists()


def test_a_full_disk_is_told_and_leaves_nothing_behind() -> None:
    folder = Path(tempfile.mkdtemp(prefix="thawd-disk-"))
    (folder / "uploads").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder / "uploads"], capture_output=True
    )
    if mounted.returncode:
        shutil.rmtree(folder)
        pytest.skip("mounting a small disk takes root")
    try:
        with Served(folder) as served:
            for _ in range(3):
                status, headers, body = served.request("PUT", "/uploads/big", b"x" * 8_000_000)
                assert (status, xml_code(body), headers["retry-after"]) == (503, "SlowDown", "1")
                assert b"is full" in body
                assert served.request("PUT", "/uploads/small", b"x" * 1_000_000)[0] == 200
            assert sorted(p.name for p in (folder / "uploads").iterdir()) == [".thawd-staging", "small"]
            assert list((folder / "uploads/.thawd-staging").iterdir()) == []
            assert served.events() == {"ObjectCreated:Put small": 3}
    finally:
        subprocess.run(["umount", "--lazy", folder / "uploads"], check=True)
        shutil.rmtree(folder)


def test_a_connection_goes_on_after_a_refused_upload(served: Served, s3: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    for _ in range(3):
        connection.request("PUT", "/uploads/.hidden", body=b"x" * 5_000_000)
        response = connection.getresponse()
        assert (response.status, xml_code(response.read())) == (400, "InvalidArgument")
        assert not response.will_close
    connection.request("GET", "/uploads/missing")
    assert connection.getresponse().status == 404
    connection.close()
    # A client that waits for permission to send its body gets the error immediately, without that permission
    with socket.create_connection(("127.0.0.1", served.port)) as waiting:
        waiting.sendall(
            b"PUT /uploads/.hidden HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
        )
        answer = b""
        while data := waiting.recv(1000):
            answer += data
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in answer


def test_a_key_is_quoted_in_errors(served: Served, s3: Any) -> None:
    status, _, body = served.request("GET", "/uploads/" + quote("<b>&\x01"))
    assert (status, xml_code(body)) == (404, "NoSuchKey")
