"""`thawd.gateway.lambda_api.event_stream`, compared with botocore's decoder."""

from __future__ import annotations

import struct

import pytest
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.gateway.lambda_api.event_stream import event, invoke_complete, message, payload_chunks


def decoded(data: bytes) -> list[tuple[dict[str, str], bytes]]:
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return [(one.headers, one.payload) for one in buffer]


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=50), max_size=4), st.binary(max_size=200))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_what_is_encoded_is_decoded(headers: dict[str, str], payload: bytes) -> None:
    assert decoded(message(headers, payload) * 2) == [(headers, payload)] * 2


def test_an_event_says_what_it_is() -> None:
    assert decoded(event("PayloadChunk", b"x", content_type="application/octet-stream")) == [
        (
            {":message-type": "event", ":event-type": "PayloadChunk", ":content-type": "application/octet-stream"},
            b"x",
        )
    ]
    ((headers, payload),) = decoded(invoke_complete(b'{"ErrorCode":"E"}'))
    assert (headers[":event-type"], headers[":content-type"]) == ("InvokeComplete", "application/json")
    assert payload == b'{"ErrorCode":"E"}'


def test_large_data_are_several_events() -> None:
    data = bytes(range(256)) * 10_000
    events = [one for chunk in payload_chunks(data) for one in decoded(chunk)]
    assert len(events) == 3
    assert b"".join(payload for _, payload in events) == data
    assert {(headers[":event-type"], headers[":content-type"]) for headers, _ in events} == {
        ("PayloadChunk", "application/octet-stream")
    }
    assert list(payload_chunks(b"")) == []


def test_the_layout_is_the_documented_one() -> None:
    whole = message({"a": "bc"}, b"payload")
    total, headers_bytes = struct.unpack(">II", whole[:8])
    assert (total, headers_bytes) == (len(whole), 1 + 1 + 1 + 2 + 2)
    assert whole[12:19] == b"\1a\7\0\2bc"
    with pytest.raises(ChecksumMismatch):
        decoded(whole[:-1] + bytes([whole[-1] ^ 1]))
