"""Operations on many objects and on buckets: ListObjects, DeleteObjects, ListBuckets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.served import Served, code_of, xml_code


def test_buckets_are_listed(served: Served, s3: Any) -> None:
    listed = s3.list_buckets()
    assert [bucket["Name"] for bucket in listed["Buckets"]] == ["other-bucket", "uploads"]
    assert all(bucket["CreationDate"].year > 2000 for bucket in listed["Buckets"])
    assert listed["Owner"]["ID"]
    assert [bucket["Name"] for bucket in s3.list_buckets(Prefix="up")["Buckets"]] == ["uploads"]
    for method, status in (("POST", 405), ("DELETE", 405), ("GET", 200)):
        assert served.request(method, "/")[0] == status


def test_version_1_of_the_listing_pages_through_prefixes_and_delimiters(served: Served, s3: Any) -> None:
    keys = sorted([f"{a}/{b}" for a in ("img", "img.old", "a b+c") for b in range(5)] + ["top", "ü/1"], key=str.encode)
    for key in keys:
        s3.put_object(Bucket="uploads", Key=key, Body=b"x")
    folders = ["a b+c/", "img.old/", "img/", "ü/"]

    def pages(size: int, **parameters: Any) -> tuple[list[str], list[str]]:
        found: list[str] = []
        prefixes: list[str] = []
        for page in s3.get_paginator("list_objects").paginate(
            Bucket="uploads", PaginationConfig={"PageSize": size}, **parameters
        ):
            assert page["IsTruncated"] is ("NextMarker" in page)
            found += [entry["Key"] for entry in page.get("Contents", [])]
            prefixes += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        return found, prefixes

    for size in (1, 2, 3, 1000):
        assert pages(size) == (keys, [])
        assert pages(size, Prefix="img/") == ([key for key in keys if key.startswith("img/")], [])
        assert pages(size, Delimiter="/") == (["top"], folders)
        assert pages(size, Prefix="ü", Delimiter="/") == ([], ["ü/"])
        assert pages(size, Marker="img/3") == ([key for key in keys if key > "img/3"], [])
        assert pages(size, Marker="img/3", Delimiter="/") == (["top"], ["ü/"])
        assert pages(size, Marker="a b+c/", Delimiter="/") == (["top"], folders[1:])
        assert pages(size, Marker="zzz", Prefix="img/") == ([], [])
    page = s3.list_objects(Bucket="uploads", Marker="a b+c/4", MaxKeys=1)
    assert (page["Marker"], page["Contents"][0]["Key"]) == ("a b+c/4", "img.old/0")
    assert s3.list_objects_v2(Bucket="uploads", StartAfter="a b+c/4")["StartAfter"] == "a b+c/4"


def test_many_objects_are_removed_at_once_and_each_is_one_event(served: Served, s3: Any) -> None:
    folder = served.folder / "uploads"
    names = [f"n {i} & ü" for i in range(1000)]
    for name in names:
        (folder / name).write_bytes(b"x")
    seen: Counter[str] = Counter()
    while sum(seen.values()) < 1000:
        seen += served.events()
    answer = s3.delete_objects(Bucket="uploads", Delete={"Objects": [{"Key": name} for name in names]})
    assert [entry["Key"] for entry in answer["Deleted"]] == names
    assert "Errors" not in answer
    removed = served.events()
    assert len(removed) == sum(removed.values()) == 1000
    assert all(name.startswith("ObjectRemoved:Delete ") for name in removed)
    assert not [path for path in folder.iterdir() if path.is_file()]


def test_what_cannot_be_removed_is_told_of_key_by_key(served: Served, s3: Any) -> None:
    for key in ("a", "b", "kept"):
        s3.put_object(Bucket="uploads", Key=key, Body=b"x")
    served.events()
    asked = [
        {"Key": "a"},
        {"Key": "a"},
        {"Key": "missing"},
        {"Key": "../thawd.db"},
        {"Key": ".hidden"},
        {"Key": "kept", "VersionId": "1"},
        {"Key": "kept", "ETag": "x"},
        {"Key": "b", "VersionId": "null"},
    ]
    answer = s3.delete_objects(Bucket="uploads", Delete={"Objects": asked, "Quiet": True})
    assert "Deleted" not in answer
    assert [(error["Key"], error["Code"]) for error in answer["Errors"]] == [
        ("../thawd.db", "InvalidArgument"),
        (".hidden", "InvalidArgument"),
        ("kept", "NotImplemented"),
        ("kept", "NotImplemented"),
    ]
    assert served.events() == {"ObjectRemoved:Delete a": 1, "ObjectRemoved:Delete b": 1}
    assert (served.folder / "thawd.db").exists()
    with pytest.raises(ClientError) as caught:
        s3.delete_objects(Bucket="uploads", Delete={"Objects": [{"Key": str(i)} for i in range(1001)]})
    assert code_of(caught) == "MalformedXML"
    document = b"<Delete><Object><Key>kept</Key></Object></Delete>"
    for digest in ({"content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="}, {"x-amz-checksum-crc32": "AAAAAA=="}):
        status, _, body = served.request("POST", "/uploads?delete", document, digest)
        assert (status, xml_code(body)) == (400, "BadDigest")
    assert (served.folder / "uploads/kept").exists()


def test_a_bucket_that_is_not_there_is_told_of_in_s3s_words(served: Served, s3: Any) -> None:
    for call in (
        lambda: s3.list_objects(Bucket="nowhere"),
        lambda: s3.delete_objects(Bucket="nowhere", Delete={"Objects": [{"Key": "k"}]}),
        lambda: s3.create_multipart_upload(Bucket="nowhere", Key="k"),
        lambda: s3.get_object(Bucket="nowhere", Key="k"),
    ):
        with pytest.raises(ClientError, match="uploads") as caught:
            call()
        assert code_of(caught) == "NoSuchBucket"
