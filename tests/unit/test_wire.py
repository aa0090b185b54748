"""`thawd.wire`: frames arrive whole however the stream is split, and no sent bytes break the reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.wire import frames as wire

FRAMES = [
    (wire.INVOKE, {"id": "1", "left_ms": 3000}, b'{"a": 1}'),
    (wire.READY, {"pid": 7}, b""),
    (wire.RESULT, None, bytes(range(256))),
    (wire.CALL, {"ü": "日本"}, b"\0" * 9),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
frames = st.tuples(st.integers(0, 255), json_values, st.binary(max_size=200))


def taken(decoder: wire.Decoder) -> list[wire.Frame]:
    got = []
    while (frame := decoder.take()) is not None:
        got.append(frame)
    return got


@given(st.lists(frames, max_size=6), st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_frames_cut_anywhere_come_back_whole_and_in_order(
    sent: list[tuple[int, Any, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(wire.encode(*frame) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    decoder = wire.Decoder()
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.feed(stream[start:end])
        got += taken(decoder)
    assert [tuple(frame) for frame in got] == sent


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 10])
def test_a_stream_fed_in_pieces_of_any_size_gives_the_same_frames(size: int) -> None:
    stream = b"".join(wire.encode(*frame) for frame in FRAMES)
    decoder = wire.Decoder()
    got = []
    for at in range(0, len(stream), size):
        decoder.feed(stream[at : at + size])
        got += taken(decoder)
    assert [tuple(frame) for frame in got] == FRAMES


def test_a_frame_cut_in_two_at_every_byte_is_taken_only_when_whole() -> None:
    data = wire.encode(wire.RESULT, {"failed": False}, b"body")
    for cut in range(len(data)):
        decoder = wire.Decoder()
        decoder.feed(data[:cut])
        assert decoder.take() is None
        decoder.feed(data[cut:])
        assert decoder.take() == (wire.RESULT, {"failed": False}, b"body")
        assert decoder.take() is None


def test_an_empty_head_is_none() -> None:
    decoder = wire.Decoder()
    decoder.feed(wire.HEADER.pack(0, 1, wire.RESULT) + b"x")
    assert decoder.take() == (wire.RESULT, None, b"x")


@pytest.mark.parametrize(
    ("head_bytes", "body_bytes"), [(wire.MAX_HEAD_BYTES + 1, 0), (0, wire.MAX_BODY_BYTES + 1), (2**32 - 1, 2**32 - 1)]
)
def test_a_length_over_the_limit_is_refused_before_its_bytes_are_waited_for(head_bytes: int, body_bytes: int) -> None:
    decoder = wire.Decoder()
    decoder.feed(wire.HEADER.pack(head_bytes, body_bytes, wire.RESULT))
    with pytest.raises(wire.WireError, match="exceeds the limit"):
        decoder.take()


def test_lengths_at_the_limit_are_accepted() -> None:
    header = wire.HEADER.pack(wire.MAX_HEAD_BYTES, wire.MAX_BODY_BYTES, 255)
    assert wire.sizes(header) == (wire.MAX_HEAD_BYTES, wire.MAX_BODY_BYTES, 255)


@pytest.mark.parametrize("head", [b"{", b"\xff\xfe", b'{"a": }', b"\0", b"{}x", b"[" * 200_000])
def test_a_head_that_is_no_json_is_a_wire_error_and_nothing_else(head: bytes) -> None:
    decoder = wire.Decoder()
    decoder.feed(wire.HEADER.pack(len(head), 0, wire.RESULT) + head)
    with pytest.raises(wire.WireError):
        decoder.take()


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_bytes_give_frames_or_a_wire_error(data: bytes) -> None:
    decoder = wire.Decoder()
    decoder.feed(data)
    try:
        taken(decoder)
    except wire.WireError:
        pass


def test_the_head_is_json_text_on_the_wire() -> None:
    data = wire.encode(wire.CALL, {"op": "table.put"}, b"{}")
    head_bytes, body_bytes, kind = wire.sizes(data)
    assert (kind, body_bytes) == (wire.CALL, 2)
    assert json.loads(data[wire.HEADER.size : wire.HEADER.size + head_bytes]) == {"op": "table.put"}


def test_a_frame_without_a_body_is_its_head_alone_as_json_without_spaces() -> None:
    head = {"id": "1", "left_ms": [1, 2]}
    frame = wire.encode(wire.READY, head)
    assert frame == wire.encode(wire.READY, head, b"")
    assert frame.endswith(b'{"id":"1","left_ms":[1,2]}')
