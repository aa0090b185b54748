"""Multipart uploads, which boto3 and the AWS CLI use by default: each causes one event and leaves no files behind."""

from __future__ import annotations

import concurrent.futures
import hashlib
import http.client
import io
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from tests import shell_programs
from tests.integration.served import Served, code_of, xml_code
from thawd.gateway.s3 import multipart

MIB = 1024 * 1024


def staged(served: Served) -> list[str]:
    return sorted(path.name for path in (served.folder / "uploads/.thawd-staging").iterdir())


class Sent:
    """A multipart upload, made request by request."""

    def __init__(self, s3: Any, key: str = "k") -> None:
        self.s3 = s3
        self.of = {"Bucket": "uploads", "Key": key}
        self.of["UploadId"] = s3.create_multipart_upload(**self.of)["UploadId"]

    def part(self, number: int, body: bytes) -> dict[str, Any]:
        return {"PartNumber": number, "ETag": self.s3.upload_part(**self.of, PartNumber=number, Body=body)["ETag"]}

    def complete(self, *parts: dict[str, Any], **more: Any) -> Any:
        return self.s3.complete_multipart_upload(**self.of, MultipartUpload={"Parts": list(parts)}, **more)

    def abort(self) -> None:
        self.s3.abort_multipart_upload(**self.of)


def test_large_files_go_up_and_come_down_with_the_defaults_of_boto3(served: Served, s3: Any, tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(os.urandom(20 * MIB + 7))
    s3.upload_file(str(source), "uploads", "models/a.onnx")
    s3.upload_fileobj(io.BytesIO(source.read_bytes()), "uploads", "models/b.onnx")
    assert served.events() == {"ObjectCreated:Put models/a.onnx": 1, "ObjectCreated:Put models/b.onnx": 1}
    for name in ("a", "b"):
        s3.download_file("uploads", f"models/{name}.onnx", str(tmp_path / name))
        assert (tmp_path / name).read_bytes() == source.read_bytes()
    head = s3.head_object(Bucket="uploads", Key="models/a.onnx")
    assert head["ETag"] == f'"{hashlib.md5(source.read_bytes()).hexdigest()}"'
    assert staged(served) == []


def test_large_files_go_up_and_come_down_with_the_aws_command(served: Served, s3: Any, tmp_path: Path) -> None:
    aws = shell_programs.command("aws")
    if not (shell_programs.TOOLS / "aws").exists():
        pytest.skip("there is no aws command")
    source = tmp_path / "model.onnx"
    source.write_bytes(os.urandom(20 * MIB + 7))
    environ = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{served.port}",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
    }

    def run(*arguments: str) -> str:
        done = subprocess.run([aws, "s3", *arguments], env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("cp", str(source), "s3://uploads/big/model.onnx")
    assert served.events() == {"ObjectCreated:Put big/model.onnx": 1}
    run("cp", "s3://uploads/big/model.onnx", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == source.read_bytes()
    assert "model.onnx" in run("ls", "s3://uploads/big/")
    assert "uploads" in run("ls")
    run("rm", "--recursive", "s3://uploads/big/")
    assert served.events() == {"ObjectRemoved:Delete big/model.onnx": 1}
    assert staged(served) == []


def test_parts_come_in_any_order_and_size_and_again(served: Served, s3: Any) -> None:
    sent = Sent(s3, "odd/ü &<>")
    third = sent.part(10_000, b"end")
    sent.part(1, b"replaced")
    first = sent.part(1, b"start ")
    second = sent.part(7, b"middle ")
    unused = sent.part(8, b"unused")
    assert unused["ETag"] == f'"{hashlib.md5(b"unused").hexdigest()}"'
    listed = s3.list_parts(**sent.of)
    assert [(part["PartNumber"], part["Size"]) for part in listed["Parts"]] == [(1, 6), (7, 7), (8, 6), (10_000, 3)]
    assert listed["Parts"][0]["ETag"] == first["ETag"]
    pages = s3.get_paginator("list_parts").paginate(**sent.of, PaginationConfig={"PageSize": 3})
    assert [[part["PartNumber"] for part in page["Parts"]] for page in pages] == [[1, 7, 8], [10_000]]
    assert served.events() == {}
    done = sent.complete(first, second, third)
    digests = b"".join(hashlib.md5(each).digest() for each in (b"start ", b"middle ", b"end"))
    assert done["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-3"'
    assert done["Key"] == "odd/ü &<>"
    assert (served.folder / "uploads/odd/ü &<>").read_bytes() == b"start middle end"
    assert sum(served.events().values()) == 1
    assert staged(served) == []


def test_every_completed_upload_is_one_event_also_of_the_same_content(served: Served, s3: Any) -> None:
    for _ in range(5):
        sent = Sent(s3)
        sent.complete(sent.part(1, b"same"))
    (served.folder / "uploads/later").write_bytes(b"1")
    seen = served.events()
    while "ObjectCreated:Put later" not in seen:
        seen += served.events()
    assert seen == {"ObjectCreated:Put k": 5, "ObjectCreated:Put later": 1}


def test_of_several_who_complete_one_upload_one_does(served: Served, s3: Any) -> None:
    sent = Sent(s3)
    part = sent.part(1, b"x" * MIB)

    def complete(_: int) -> str:
        try:
            sent.complete(part)
        except ClientError as error:
            return str(error.response["Error"]["Code"])
        return "done"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outcomes = sorted(pool.map(complete, range(8)))
    assert outcomes == ["NoSuchUpload"] * 7 + ["done"]
    assert served.events() == {"ObjectCreated:Put k": 1}


def test_what_is_wrong_with_an_upload_is_told_in_s3s_words(served: Served, s3: Any) -> None:
    sent = Sent(s3)
    one, two = sent.part(1, b"one"), sent.part(2, b"two")
    other = {"PartNumber": 2, "ETag": f'"{"0" * 32}"'}
    wrong = {**sent.of, "UploadId": "0" * 32}
    elsewhere = {**sent.of, "Key": "elsewhere"}
    cases = [
        ("InvalidPartOrder", lambda: sent.complete(two, one)),
        ("InvalidPartOrder", lambda: sent.complete(one, one)),
        ("InvalidPart", lambda: sent.complete(one, other)),
        ("InvalidPart", lambda: sent.complete(one, {"PartNumber": 3, "ETag": two["ETag"]})),
        ("InvalidPart", lambda: sent.complete(one, {"PartNumber": 3, "ETag": "../../key"})),
        ("InvalidArgument", lambda: sent.complete({"PartNumber": 10_001, "ETag": one["ETag"]})),
        ("InvalidArgument", lambda: s3.upload_part(**sent.of, PartNumber=0, Body=b"")),
        ("InvalidArgument", lambda: s3.upload_part(**sent.of, PartNumber=10_001, Body=b"")),
        ("BadDigest", lambda: s3.upload_part(**sent.of, PartNumber=3, Body=b"x", ChecksumCRC32="AAAAAA==")),
        ("NotImplemented", lambda: s3.upload_part_copy(**sent.of, PartNumber=3, CopySource="uploads/k")),
        ("InvalidRequest", lambda: sent.complete(one, two, MpuObjectSize=7)),
        ("NotImplemented", lambda: sent.complete(one, IfMatch='"x"')),
    ]
    for of in (wrong, elsewhere, {**sent.of, "UploadId": "../" * 8}, {**sent.of, "UploadId": "ü"}):
        cases += [
            ("NoSuchUpload", lambda of=of: s3.upload_part(**of, PartNumber=1, Body=b"x")),
            ("NoSuchUpload", lambda of=of: s3.list_parts(**of)),
            ("NoSuchUpload", lambda of=of: s3.abort_multipart_upload(**of)),
            ("NoSuchUpload", lambda of=of: s3.complete_multipart_upload(**of, MultipartUpload={"Parts": [one]})),
        ]
    for code, call in cases:
        with pytest.raises(ClientError) as caught:
            call()
        assert code_of(caught) == code
    s3.put_object(Bucket="uploads", Key="k", Body=b"older")
    with pytest.raises(ClientError) as caught:
        sent.complete(one, IfNoneMatch="*")
    assert code_of(caught) == "PreconditionFailed"
    served.events()
    sent.complete(one, two, MpuObjectSize=6)
    assert (served.folder / "uploads/k").read_bytes() == b"onetwo"
    assert served.events() == {"ObjectCreated:Put k": 1}
    assert staged(served) == []


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"<CompleteMultipartUpload>",
        b"<CompleteMultipartUpload/>",
        b"<Other/>",
        b"\xff\xfe<",
        b'<!DOCTYPE a [<!ENTITY b "c">]><CompleteMultipartUpload>&b;</CompleteMultipartUpload>',
        b"<CompleteMultipartUpload>" + b" " * 9_000_000 + b"</CompleteMultipartUpload>",
    ],
    ids=["empty", "cut", "no-part", "other", "no-text", "entity", "huge"],
)
def test_a_document_that_is_none_is_refused(served: Served, s3: Any, document: bytes) -> None:
    sent = Sent(s3)
    status, _, body = served.request("POST", f"/uploads/k?uploadId={sent.of['UploadId']}", document)
    assert (status, xml_code(body)) == (400, "MalformedXML")
    sent.abort()


def test_an_aborted_upload_leaves_nothing_behind_and_takes_nothing_more(served: Served, s3: Any) -> None:
    sent = Sent(s3)
    part = sent.part(1, b"one")
    assert staged(served) == [f"upload-{sent.of['UploadId']}"]
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(
            f"PUT /uploads/k?partNumber=2&uploadId={sent.of['UploadId']} HTTP/1.1\r\nhost: x\r\n".encode()
            + b"content-length: 4000000\r\n\r\n"
            + b"x" * 2_000_000
        )
        while len(staged(served)) < 2:
            pass
        sent.abort()
        connection.sendall(b"x" * 2_000_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 404")
    for call in (lambda: sent.part(2, b"two"), lambda: sent.complete(part), sent.abort):
        with pytest.raises(ClientError) as caught:
            call()
        assert code_of(caught) == "NoSuchUpload"
    assert staged(served) == []
    assert served.events() == {}


def test_a_client_that_is_killed_leaves_no_half_part_behind(served: Served, s3: Any) -> None:
    sent = Sent(s3)
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(
            f"PUT /uploads/k?partNumber=2&uploadId={sent.of['UploadId']} HTTP/1.1\r\nhost: x\r\n".encode()
            + b"content-length: 9000000\r\n\r\n"
            + b"x" * 4_000_000
        )
        while len(staged(served)) < 2:
            pass
    while len(staged(served)) > 1:
        pass
    assert "Parts" not in s3.list_parts(**sent.of)
    sent.abort()
    assert staged(served) == []


def test_an_upload_outlives_a_restart_but_not_a_day_without_parts(tmp_path: Path) -> None:
    staging = tmp_path / "uploads/.thawd-staging"
    with Served(tmp_path) as served:
        s3 = served.client()
        going, abandoned = Sent(s3), Sent(s3)
        one = going.part(1, b"one")
        abandoned.part(1, b"one")
        s3.close()
    a_day_ago = time.time() - 24 * 3600 - 60
    os.utime(staging / f"upload-{abandoned.of['UploadId']}", (a_day_ago, a_day_ago))
    # What a server leaves that is killed while it removes an upload
    (staging / "gone-1").mkdir()
    (staging / "gone-1/00001-part").write_bytes(b"x")
    with Served(tmp_path) as served:
        s3 = served.client()
        going.s3 = s3
        two = going.part(2, b"two")
        assert [path.name for path in staging.iterdir()] == [f"upload-{going.of['UploadId']}"]
        going.complete(one, two)
        assert (tmp_path / "uploads/k").read_bytes() == b"onetwo"
        s3.close()
    assert list(staging.iterdir()) == []


def test_a_completion_that_takes_long_keeps_the_connection_alive(
    served: Served, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart, "PATIENCE_S", 0.002)
    sent = Sent(s3)
    parts = [sent.part(number, bytes(30 * MIB)) for number in (1, 2)]
    assert sent.complete(*parts)["ETag"].endswith('-2"')
    again = Sent(s3)
    parts = [again.part(1, bytes(30 * MIB)), again.part(2, b"x")]
    listed = "".join(
        f"<Part><PartNumber>{part['PartNumber']}</PartNumber><ETag>{part['ETag']}</ETag></Part>" for part in parts
    )
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.request(
        "POST",
        f"/uploads/k?uploadId={again.of['UploadId']}",
        f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>",
        {"if-none-match": "*"},
    )
    response = connection.getresponse()
    # The status has been sent already, so the error is in the document, as with S3
    body = response.read()
    assert (response.status, xml_code(body)) == (200, "PreconditionFailed")
    assert body.startswith(b'<?xml version="1.0" encoding="UTF-8"?>\n')
    ET.fromstring(body)
    connection.close()
    again.abort()


def test_a_completion_holds_up_nobody_else(served: Served, s3: Any) -> None:
    sent = Sent(s3)
    part = sent.part(1, bytes(200 * MIB))
    other = served.client()
    answered = 0
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        begun = threading.Event()

        def complete() -> None:
            begun.set()
            sent.complete(part)

        done = pool.submit(complete)
        assert begun.wait(300)
        while not done.done():
            other.head_bucket(Bucket="uploads")
            answered += 1
        done.result()
    other.close()
    assert answered > 3  # if the completion blocked the server, this would be 1 or 2


def test_a_full_disk_fails_the_upload_and_leaves_nothing_behind() -> None:
    folder = Path(tempfile.mkdtemp(prefix="thawd-disk-"))
    (folder / "uploads").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder / "uploads"]
    if subprocess.run(mount, capture_output=True).returncode:
        shutil.rmtree(folder)
        pytest.skip("mounting a small disk takes root")
    try:
        with Served(folder) as served:
            s3 = served.client()
            one_by_one = TransferConfig(use_threads=False)
            # The first size is too large for the parts; the second only for the parts together with the assembled
            # object
            for size in (40 * MIB, 17 * MIB):
                with pytest.raises(Exception, match="is full"):
                    s3.upload_fileobj(io.BytesIO(bytes(size)), "uploads", "big", Config=one_by_one)
                assert staged(served) == []
            s3.upload_fileobj(io.BytesIO(bytes(10 * MIB)), "uploads", "fits", Config=one_by_one)
            assert served.events() == {"ObjectCreated:Put fits": 1}
            assert sorted(path.name for path in (folder / "uploads").iterdir()) == [".thawd-staging", "fits"]
            s3.close()
    finally:
        subprocess.run(["umount", "--lazy", folder / "uploads"], check=True)
        shutil.rmtree(folder)
