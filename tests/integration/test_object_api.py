"""`thawd.gateway.s3.endpoint`: boto3 works with it, and a PUT causes one event."""

from __future__ import annotations

import base64
import concurrent.futures
import hashlib
import io
import os
import socket
import threading
import zlib
from collections import Counter
from datetime import timedelta
from email.utils import formatdate
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.integration.served import Served, code_of, xml_code
from thawd.gateway.s3 import endpoint
from thawd.resources import Bucket


def test_an_object_put_is_got_listed_and_removed_and_each_is_one_event(served: Served, s3: Any) -> None:
    body = os.urandom(3_000_000)
    etag = f'"{hashlib.md5(body).hexdigest()}"'
    assert s3.put_object(Bucket="uploads", Key="a/b/cat.png", Body=body)["ETag"] == etag
    assert served.events() == {"ObjectCreated:Put a/b/cat.png": 1}
    assert (served.folder / "uploads/a/b/cat.png").read_bytes() == body
    got = s3.get_object(Bucket="uploads", Key="a/b/cat.png")
    assert (got["Body"].read(), got["ETag"], got["ContentType"]) == (body, etag, "image/png")
    head = s3.head_object(Bucket="uploads", Key="a/b/cat.png")
    assert (head["ContentLength"], head["ETag"]) == (3_000_000, etag)
    (entry,) = s3.list_objects_v2(Bucket="uploads")["Contents"]
    assert (entry["Key"], entry["Size"], entry["ETag"]) == ("a/b/cat.png", 3_000_000, etag)
    assert abs((entry["LastModified"] - head["LastModified"]).total_seconds()) < 1
    assert s3.delete_object(Bucket="uploads", Key="a/b/cat.png")["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert served.events() == {"ObjectRemoved:Delete a/b/cat.png": 1}
    assert "Contents" not in s3.list_objects_v2(Bucket="uploads")
    assert s3.delete_object(Bucket="uploads", Key="a/b/cat.png")["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert served.events() == {}


def test_every_put_is_one_event_also_of_the_same_content_and_all_at_once(served: Served, s3: Any) -> None:
    for i in range(10):
        s3.put_object(Bucket="uploads", Key="same", Body=b"same")
        s3.put_object(Bucket="uploads", Key="other", Body=b"%d" % i)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: s3.put_object(Bucket="uploads", Key=f"n{i % 40}", Body=b"x"), range(120)))
        list(pool.map(lambda i: s3.put_object(Bucket="uploads", Key="one", Body=b"%d" % (i % 3)), range(80)))
    # When the watcher has seen a later file, it has handled the notifications for all earlier ones
    (served.folder / "uploads/later").write_bytes(b"1")
    seen = Counter()  # type: Counter[str]
    while "ObjectCreated:Put later" not in seen:
        seen += served.events()
    assert seen.pop("ObjectCreated:Put later") == 1
    assert seen.pop("ObjectCreated:Put same") == 10
    assert seen.pop("ObjectCreated:Put other") == 10
    assert seen.pop("ObjectCreated:Put one") == 80
    assert seen == {f"ObjectCreated:Put n{i}": 3 for i in range(40)}


@pytest.mark.parametrize(
    "key",
    ["a b+c.png", "ü/猫 😀.png", "50%25.txt", "new\nline", "a&b=c?d#e", "~tilde*'()!", "x" * 250, "a/b/c/d/e/f/g/h"],
)
def test_odd_keys_work(served: Served, s3: Any, key: str) -> None:
    s3.put_object(Bucket="uploads", Key=key, Body=key.encode())
    assert (served.folder / "uploads" / key).read_bytes() == key.encode()
    assert s3.get_object(Bucket="uploads", Key=key)["Body"].read() == key.encode()
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket="uploads")["Contents"]] == [key]
    assert sum(served.events().values()) == 1


def test_a_key_that_is_no_text_works(served: Served, s3: Any) -> None:
    status, _, _ = served.request("PUT", "/uploads/%FF%FE", b"1")
    assert status == 200
    assert (os.fsencode(served.folder) + b"/uploads/\xff\xfe") in [
        os.fsencode(path) for path in (served.folder / "uploads").iterdir()
    ]
    assert served.request("GET", "/uploads/%FF%FE")[2] == b"1"
    body = served.request("GET", "/uploads?list-type=2&encoding-type=url&prefix=%FF")[2]
    assert b"<Key>%FF%FE</Key>" in body
    ET.fromstring(served.request("GET", "/uploads?list-type=2")[2])
    assert served.request("DELETE", "/uploads/%FF%FE")[0] == 204


def test_files_are_uploaded_and_downloaded_as_boto3_does_it(served: Served, s3: Any, tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(os.urandom(20_000_000))
    one_put = boto3.s3.transfer.TransferConfig(multipart_threshold=5 * 1024**3)
    s3.upload_file(str(source), "uploads", "model.onnx", Config=one_put)
    # Downloaded in ranges, because it exceeds the threshold of 8 MiB
    s3.download_file("uploads", "model.onnx", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == source.read_bytes()
    s3.upload_fileobj(io.BytesIO(b"stream"), "uploads", "stream")
    assert s3.get_object(Bucket="uploads", Key="stream")["Body"].read() == b"stream"
    assert served.events() == {"ObjectCreated:Put model.onnx": 1, "ObjectCreated:Put stream": 1}


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksums_of_the_sdk_are_checked(served: Served, s3: Any, algorithm: str) -> None:
    s3.put_object(Bucket="uploads", Key="k", Body=b"content", ChecksumAlgorithm=algorithm)
    s3.put_object(Bucket="uploads", Key="k", Body=io.BytesIO(b"content"), ChecksumAlgorithm=algorithm)
    wrong = {"CRC32": b"abcd", "SHA1": b"x" * 20, "SHA256": b"x" * 32}[algorithm]
    with pytest.raises(ClientError) as caught:
        s3.put_object(
            Bucket="uploads",
            Key="wrong",
            Body=b"content",
            **{f"Checksum{algorithm}": base64.b64encode(wrong).decode()},
        )
    assert code_of(caught) == "BadDigest"
    assert not (served.folder / "uploads/wrong").exists()
    assert list((served.folder / "uploads/.thawd-staging").iterdir()) == []


def chunks(body: bytes, trailer: bytes) -> bytes:
    pieces = [b"%x;chunk-signature=%s\r\n%s\r\n" % (len(p), b"0" * 64, p) for p in (body[:5], body[5:])]
    return b"".join(pieces) + b"0\r\n" + trailer + b"\r\n"


def test_chunked_bodies_with_trailers_are_decoded_and_checked(served: Served, s3: Any) -> None:
    body = b"hello world"
    crc = base64.b64encode(zlib.crc32(body).to_bytes(4, "big"))
    headers = {
        "content-encoding": "aws-chunked",
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length": "11",
        "x-amz-trailer": "x-amz-checksum-crc32",
    }
    data = chunks(body, b"x-amz-checksum-crc32:" + crc + b"\r\n")
    assert served.request("PUT", "/uploads/c", data, headers)[0] == 200
    assert (served.folder / "uploads/c").read_bytes() == body
    status, _, document = served.request("PUT", "/uploads/d", data.replace(crc, b"AAAAAA=="), headers)
    assert (status, xml_code(document)) == (400, "BadDigest")
    status, _, document = served.request("PUT", "/uploads/d", data[:20], headers)
    assert (status, xml_code(document)) == (400, "IncompleteBody")
    # Without a content length: HTTP's chunked encoding
    assert served.request("PUT", "/uploads/e", iter([b"one", b"two"]), {})[0] == 200
    assert (served.folder / "uploads/e").read_bytes() == b"onetwo"
    status, _, document = served.request("PUT", "/uploads/f", body, {"content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="})
    assert (status, xml_code(document)) == (400, "BadDigest")
    assert sorted(p.name for p in (served.folder / "uploads").iterdir() if p.is_file()) == ["c", "e"]


def test_ranges_and_conditions_are_honoured(served: Served, s3: Any) -> None:
    put = s3.put_object(Bucket="uploads", Key="k", Body=b"0123456789")

    def ranged(value: str) -> tuple[int, str | None, bytes]:
        status, headers, body = served.request("GET", "/uploads/k", headers={"range": value})
        return status, headers.get("content-range"), body

    assert ranged("bytes=2-4") == (206, "bytes 2-4/10", b"234")
    assert ranged("bytes=7-") == (206, "bytes 7-9/10", b"789")
    assert ranged("bytes=-3") == (206, "bytes 7-9/10", b"789")
    assert ranged("bytes=-99") == (206, "bytes 0-9/10", b"0123456789")
    assert ranged("bytes=5-99") == (206, "bytes 5-9/10", b"56789")
    assert ranged("bytes=0-1,3-4")[::2] == (200, b"0123456789")
    assert ranged("bytes=4-2")[::2] == (200, b"0123456789")
    assert ranged("lines=1-2")[::2] == (200, b"0123456789")
    for beyond in ("bytes=10-", "bytes=-0"):
        status, content_range, body = ranged(beyond)
        assert (status, content_range, xml_code(body)) == (416, "bytes */10", "InvalidRange")
    assert s3.get_object(Bucket="uploads", Key="k", IfMatch=put["ETag"])["ContentLength"] == 10
    with pytest.raises(ClientError) as caught:
        s3.get_object(Bucket="uploads", Key="k", IfMatch='"other"')
    assert code_of(caught) == "PreconditionFailed"
    status, headers, body = served.request("GET", "/uploads/k", headers={"if-none-match": put["ETag"]})
    assert (status, headers["etag"], body) == (304, put["ETag"], b"")
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket="uploads", Key="k", Body=b"new", IfNoneMatch="*")
    assert code_of(caught) == "PreconditionFailed"
    s3.put_object(Bucket="uploads", Key="new", Body=b"new", IfNoneMatch="*")
    assert (served.folder / "uploads/k").read_bytes() == b"0123456789"


def test_conditions_on_times_are_honoured_unless_there_is_one_on_etags(served: Served, s3: Any) -> None:
    tag = s3.put_object(Bucket="uploads", Key="k", Body=b"0123456789")["ETag"]
    at = s3.head_object(Bucket="uploads", Key="k")["LastModified"]
    before, after = at - timedelta(seconds=1), at + timedelta(seconds=1)

    def outcome(**conditions: Any) -> str:
        codes = []
        for ask in (s3.get_object, s3.head_object):
            try:
                codes.append(str(ask(Bucket="uploads", Key="k", **conditions)["ContentLength"]))
            except ClientError as error:
                codes.append(error.response["Error"]["Code"].replace("PreconditionFailed", "412"))
        assert codes[0] == codes[1]
        return codes[0]

    assert [outcome(IfModifiedSince=time) for time in (before, at, after)] == ["10", "304", "304"]
    assert [outcome(IfUnmodifiedSince=time) for time in (before, at, after)] == ["412", "10", "10"]
    assert outcome(IfMatch=tag, IfUnmodifiedSince=before) == "10"
    assert outcome(IfNoneMatch='"other"', IfModifiedSince=after) == "10"
    for odd in ("yesterday", "Mon, 99 Foo 2026 99:99:99 GMT", "1" * 5000):
        assert served.request("GET", "/uploads/k", headers={"if-modified-since": odd})[0] == 200
    # The rest of an interrupted download is sent only if it is the rest of the same version.
    for version, status in (
        (tag, 206),
        ('"other"', 200),
        (formatdate(at.timestamp(), usegmt=True), 206),
        (formatdate(after.timestamp(), usegmt=True), 200),
    ):
        headers = {"range": "bytes=5-", "if-range": version}
        assert served.request("GET", "/uploads/k", headers=headers)[::2] == (
            status,
            b"0123456789"[5 * (status == 206) :],
        )


def test_numbers_in_headers_may_have_any_length(served: Served, s3: Any) -> None:
    s3.put_object(Bucket="uploads", Key="k", Body=b"0123456789")
    many = "9" * 5000
    for value, expected in ((f"bytes=8-{many}", (206, b"89")), (f"bytes=-{many}", (206, b"0123456789"))):
        assert served.request("GET", "/uploads/k", headers={"range": value})[::2] == expected
    status, _, body = served.request("GET", "/uploads/k", headers={"range": f"bytes={many}-"})
    assert (status, xml_code(body)) == (416, "InvalidRange")
    for length, code in ((many, "EntityTooLarge"), ("\xb2", "IncompleteBody")):
        headers = {"x-amz-decoded-content-length": length}
        status, _, body = served.request("PUT", "/uploads/new", b"abc", headers)
        assert (status, xml_code(body)) == (400, code)


def test_a_key_with_characters_that_xml_lacks_does_not_spoil_a_listing(served: Served, s3: Any) -> None:
    for key in ("a\uffff", "b\x01\x7f", "c"):
        s3.put_object(Bucket="uploads", Key=key, Body=b"")
    listing = ET.fromstring(served.request("GET", "/uploads?list-type=2")[2])
    assert [each.text for each in listing.iter("{http://s3.amazonaws.com/doc/2006-03-01/}Key")] == [
        "a\ufffd",
        "b\ufffd\x7f",
        "c",
    ]


def test_no_upload_begins_while_files_of_a_crashed_server_are_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_end, order = threading.Semaphore(0), threading.Event(), []
    tidy = endpoint.ObjectApi._tidy

    async def asked_to_tidy(self: endpoint.ObjectApi, bucket: Bucket) -> None:
        asked.release()
        await tidy(self, bucket)

    def clear(root: bytes, *, files: bool) -> None:
        assert may_end.wait(300)
        order.append(f"cleared {files}")

    class Staged(endpoint.Upload):
        def __init__(self, root: bytes) -> None:
            order.append("begun")
            super().__init__(root)

    monkeypatch.setattr(endpoint.ObjectApi, "_tidy", asked_to_tidy)
    monkeypatch.setattr(endpoint, "clear_staging", clear)
    monkeypatch.setattr(endpoint, "Upload", Staged)
    for name in ("uploads", "other-bucket"):
        (tmp_path / name).mkdir()
    with Served(tmp_path) as own, concurrent.futures.ThreadPoolExecutor(2) as threads:
        puts = [threads.submit(own.request, "PUT", f"/uploads/{key}", b"body") for key in "ab"]
        assert asked.acquire(timeout=300)
        assert asked.acquire(timeout=300)
        assert own.request("GET", "/other-bucket")[0] == 200  # both puts have gone as far as they can
        assert order == []
        may_end.set()
        assert [put.result()[0] for put in puts] == [200, 200]
    assert order == ["cleared True", "begun", "begun"]


@pytest.mark.parametrize("condition", [{}, {"IfNoneMatch": "*"}])
def test_folders_without_objects_are_in_no_objects_way(served: Served, s3: Any, condition: dict[str, str]) -> None:
    s3.put_object(Bucket="uploads", Key="a/b/c", Body=b"old")
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket="uploads", Key="a", Body=b"new", **condition)
    assert code_of(caught) == "OperationAborted"
    s3.delete_object(Bucket="uploads", Key="a/b/c")
    s3.put_object(Bucket="uploads", Key="a", Body=b"new", **condition)
    assert [each["Key"] for each in s3.list_objects_v2(Bucket="uploads")["Contents"]] == ["a"]
    s3.delete_object(Bucket="uploads", Key="a")
    s3.put_object(Bucket="uploads", Key="a/b", Body=b"newer", **condition)
    assert s3.get_object(Bucket="uploads", Key="a/b")["Body"].read() == b"newer"
    if condition:
        inside, outside = served.folder / "uploads/link", served.folder / "outside" / "empty"
        outside.mkdir(parents=True, exist_ok=True)
        inside.symlink_to(outside.parent)
        for key in ("a/b", "link"):
            with pytest.raises(ClientError) as caught:
                s3.put_object(Bucket="uploads", Key=key, Body=b"", **condition)
            assert code_of(caught) == "PreconditionFailed"
        assert outside.is_dir()
        inside.unlink()


def test_objects_put_at_once_where_one_path_would_be_file_and_folder_are_stored_or_refused(
    served: Served, s3: Any
) -> None:
    keys = ["x", "x/y", "x/y/z", "x/w"] * 4

    def put(key: str) -> str:
        try:
            s3.put_object(Bucket="uploads", Key=key, Body=b"")
        except ClientError as error:
            return str(error.response["Error"]["Code"])
        return "stored"

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            outcomes = list(threads.map(put, keys))
            assert set(outcomes) <= {"stored", "OperationAborted"}
            stored = {key for key, outcome in zip(keys, outcomes, strict=True) if outcome == "stored"}
            assert {each["Key"] for each in s3.list_objects_v2(Bucket="uploads")["Contents"]} == stored
            for key in stored:
                s3.delete_object(Bucket="uploads", Key=key)


def test_an_empty_object_is_an_object(served: Served, s3: Any) -> None:
    s3.put_object(Bucket="uploads", Key="empty", Body=b"")
    assert s3.get_object(Bucket="uploads", Key="empty")["Body"].read() == b""
    assert s3.head_object(Bucket="uploads", Key="empty")["ContentLength"] == 0


def test_listings_page_through_prefixes_and_delimiters_like_s3(served: Served, s3: Any) -> None:
    keys = [f"{a}/{b}" for a in ("img", "img.old", "txt") for b in range(6)] + ["img", "top", "zz/deep/er"]
    for key in keys:
        if key != "img":
            s3.put_object(Bucket="uploads", Key=key, Body=b"x")
    keys.remove("img")
    keys.sort(key=str.encode)

    def pages(**parameters: Any) -> tuple[list[str], list[str], int]:
        found: list[str] = []
        prefixes: list[str] = []
        number = 0
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket="uploads", **parameters):
            number += 1
            entries = [entry["Key"] for entry in page.get("Contents", [])]
            common = [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
            assert page["KeyCount"] == len(entries) + len(common)
            assert page["IsTruncated"] is ("NextContinuationToken" in page)
            found += entries
            prefixes += common
        return found, prefixes, number

    for size in (2, 5, 20, 1000):
        small = {"PaginationConfig": {"PageSize": size}}
        assert pages(**small)[:2] == (keys, [])
        assert pages(Prefix="img/", **small)[:2] == ([k for k in keys if k.startswith("img/")], [])
        assert pages(Delimiter="/", **small)[:2] == (["top"], ["img.old/", "img/", "txt/", "zz/"])
        assert pages(Delimiter="/", Prefix="zz/", **small)[:2] == ([], ["zz/deep/"])
        assert pages(StartAfter="txt/3", **small)[:2] == ([k for k in keys if k > "txt/3"], [])
    assert pages(PaginationConfig={"PageSize": 5})[2] == 4
    assert s3.list_objects_v2(Bucket="uploads", MaxKeys=0)["KeyCount"] == 0
    assert s3.list_objects_v2(Bucket="uploads", Prefix="nothing")["KeyCount"] == 0


def test_a_delimited_listing_leaps_over_more_objects_than_a_page(served: Served) -> None:
    folder = served.folder / "other-bucket"
    for name in ("a", "c"):
        (folder / name).mkdir()
        for i in range(1100):
            (folder / name / f"{i}").touch()
    (folder / "b").touch()
    client = served.client()
    found = 0
    while found < 2201:
        listed = [page["KeyCount"] for page in client.get_paginator("list_objects_v2").paginate(Bucket="other-bucket")]
        found = sum(listed)
    page = client.list_objects_v2(Bucket="other-bucket", Delimiter="/")
    assert [entry["Prefix"] for entry in page["CommonPrefixes"]] == ["a/", "c/"]
    assert [entry["Key"] for entry in page["Contents"]] == ["b"]
    assert not page["IsTruncated"]
    client.close()


def test_an_upload_may_wait_for_leave_to_continue(served: Served, s3: Any) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(
            b"PUT /uploads/k HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
            b"expect: 100-continue\r\nconnection: close\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"ok")
        assert b"200 OK" in connection.recv(1000)
    assert (served.folder / "uploads/k").read_bytes() == b"ok"


def test_a_get_gives_one_version_even_when_the_object_is_overwritten_meanwhile(served: Served, s3: Any) -> None:
    old, new = b"a" * 30_000_000, b"b" * 30_000_000
    s3.put_object(Bucket="uploads", Key="k", Body=old)
    got = s3.get_object(Bucket="uploads", Key="k")
    stream = got["Body"]
    start = stream.read(1000)
    s3.put_object(Bucket="uploads", Key="k", Body=new)
    assert hashlib.md5(start + stream.read()).hexdigest() == got["ETag"].strip('"')
