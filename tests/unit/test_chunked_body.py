"""`thawd.gateway.s3.chunked_body` and `checksums`: any framing is removed, and no wrong byte passes."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.gateway.s3.checksums import Integrity
from thawd.gateway.s3.chunked_body import AwsChunked
from thawd.gateway.s3.xml import S3Error

BODY = b"The quick brown fox\r\n0\r\njumps" * 50


def framed(body: bytes, *, size: int = 64, signed: bool = False, trailer: bytes = b"", end: bytes = b"\r\n") -> bytes:
    signature = b";chunk-signature=" + b"a" * 64 if signed else b""
    out = b""
    for at in range(0, len(body), size):
        piece = body[at : at + size]
        out += b"%x%s\r\n%s\r\n" % (len(piece), signature, piece)
    return out + b"0%s\r\n" % signature + trailer + end


def b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


@given(st.lists(st.integers(1, 200), min_size=1), st.booleans(), st.binary(max_size=300))
def test_a_body_survives_any_cutting_of_its_frames(cuts: list[int], signed: bool, body: bytes) -> None:
    data = framed(body, size=37, signed=signed, trailer=b"x-amz-checksum-crc32: abc=\r\nX-Other:1\r\n")
    decoder = AwsChunked()
    out = b""
    at = 0
    turn = 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        out += decoder.feed(data[at : at + step])
        at += step
        turn += 1
    decoder.end()
    assert out == body
    assert decoder.trailers == {"x-amz-checksum-crc32": "abc=", "x-other": "1"}


@pytest.mark.parametrize("end", [b"\r\n", b""])
def test_the_empty_line_at_the_end_may_be_missing(end: bytes) -> None:
    decoder = AwsChunked()
    assert decoder.feed(framed(BODY, trailer=b"x-amz-checksum-crc32:abc=\r\n", end=end)) == BODY
    decoder.end()
    assert decoder.trailers == {"x-amz-checksum-crc32": "abc="}


def test_empty_lines_after_the_end_are_not_kept() -> None:
    decoder = AwsChunked()
    assert decoder.feed(framed(BODY)) == BODY
    assert decoder.feed(b"\r\n" * 100) == b""
    decoder.end()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "IncompleteBody"),
        (b"5\r\nhel", "IncompleteBody"),
        (b"5\r\nhello\r\n", "IncompleteBody"),
        (b"5\r\nhello there\r\n", "InvalidRequest"),
        (b"xyz\r\n", "InvalidRequest"),
        (b"-5\r\n", "InvalidRequest"),
        (b"\r\n", "InvalidRequest"),
        (b"0\r\nno colon\r\n", "InvalidRequest"),
        (b"f" * 20 + b"\r\n", "InvalidRequest"),
        (b"1" * 10_000, "InvalidRequest"),
        (b"0\r\n\r\nmore", "InvalidRequest"),
        (b"0\r\n" + b"x-a: 12345678\r\n" * 2_000, "InvalidRequest"),
    ],
)
def test_broken_frames_are_refused(data: bytes, code: str) -> None:
    decoder = AwsChunked()
    with pytest.raises(S3Error) as caught:
        decoder.feed(data)
        decoder.end()
    assert (caught.value.status, caught.value.code) == (400, code)


def test_right_checksums_pass_in_headers_and_trailers() -> None:
    headers = {
        "content-md5": b64(hashlib.md5(BODY).digest()),
        "x-amz-checksum-sha256": b64(hashlib.sha256(BODY).digest()),
        "x-amz-checksum-sha1": b64(hashlib.sha1(BODY).digest()),
        "x-amz-content-sha256": hashlib.sha256(BODY).hexdigest(),
        "x-amz-trailer": "x-amz-checksum-crc32",
        "x-amz-decoded-content-length": str(len(BODY)),
        "x-amz-sdk-checksum-algorithm": "CRC32",
        "x-amz-checksum-crc64nvme": "not known here",
    }
    integrity = Integrity(headers)
    for at in range(0, len(BODY), 100):
        integrity.update(BODY[at : at + 100])
    trailers = {"x-amz-checksum-crc32": b64(zlib.crc32(BODY).to_bytes(4, "big"))}
    assert integrity.verify(trailers) == hashlib.md5(BODY).hexdigest()


@pytest.mark.parametrize(
    ("headers", "trailers", "code"),
    [
        ({"content-md5": b64(hashlib.md5(b"other").digest())}, {}, "BadDigest"),
        ({"content-md5": "!!!"}, {}, "InvalidDigest"),
        ({"content-md5": b64(b"short")}, {}, "InvalidDigest"),
        ({"x-amz-checksum-crc32": b64(b"abcd")}, {}, "BadDigest"),
        ({"x-amz-checksum-sha1": b64(b"x" * 20)}, {}, "BadDigest"),
        ({"x-amz-checksum-sha256": b64(b"x" * 32)}, {}, "BadDigest"),
        ({"x-amz-trailer": "x-amz-checksum-crc32"}, {"x-amz-checksum-crc32": b64(b"abcd")}, "BadDigest"),
        ({"x-amz-content-sha256": "0" * 64}, {}, "XAmzContentSHA256Mismatch"),
        ({"x-amz-decoded-content-length": "3"}, {}, "IncompleteBody"),
    ],
)
def test_wrong_checksums_are_refused(headers: dict[str, str], trailers: dict[str, str], code: str) -> None:
    integrity = Integrity(headers)
    integrity.update(BODY)
    with pytest.raises(S3Error) as caught:
        integrity.verify(trailers)
    assert (caught.value.status, caught.value.code) == (400, code)
