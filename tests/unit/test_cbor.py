"""CBOR as AWS's protocol uses it: what RFC 8949 shows, and what botocore writes and reads."""

from __future__ import annotations

import math
from typing import Any

import pytest
from botocore.parsers import RpcV2CBORParser
from botocore.serialize import RpcV2CBORSerializer
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.gateway.metrics import cbor
from thawd.gateway.metrics.cbor import CborError, Timestamp

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("00", 0),
        ("1903e8", 1000),
        ("3863", -100),
        ("f93c00", 1.0),
        ("fa47c35000", 100000.0),
        ("fb3ff199999999999a", 1.1),
        ("f4", False),
        ("f6", None),
        ("4401020304", b"\x01\x02\x03\x04"),
        ("6449455446", "IETF"),
        ("c11a514b67b0", Timestamp(1363896240)),
        ("8301820203820405", [1, [2, 3], [4, 5]]),
        ("a26161016162820203", {"a": 1, "b": [2, 3]}),
        ("7f657374726561646d696e67ff", "streaming"),
        ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
        ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
        ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
    ],
)
def test_the_examples_of_the_standard_are_decoded(encoded: str, value: Any) -> None:
    assert cbor.decode(bytes.fromhex(encoded)) == value


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_what_is_encoded_is_decoded(value: Any) -> None:
    assert cbor.decode(cbor.encode(value)) == value


@given(st.binary(max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        cbor.decode(data)
    except CborError:
        return


def without_nulls(value: Any) -> Any:
    """The value without the nulls in maps, which botocore leaves out."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_botocore_reads_what_is_written(value: Any) -> None:
    import io

    class Stream(io.BufferedReader):
        def __init__(self, data: bytes) -> None:
            super().__init__(io.BytesIO(data))  # type: ignore[arg-type]

    assert RpcV2CBORParser().parse_data_item(Stream(cbor.encode(value))) == without_nulls(value)


def test_what_botocore_writes_is_read() -> None:
    from botocore.session import get_session

    model = get_session().get_service_model("cloudwatch").operation_model("PutMetricData")
    given = {
        "Namespace": "n",
        "MetricData": [{"MetricName": "m", "Timestamp": 1.5, "Values": [1.0, 2.5], "Dimensions": []}],
    }
    body = RpcV2CBORSerializer().serialize_to_request(given, model)["body"]
    assert cbor.decode(body) == given


@pytest.mark.parametrize(
    "encoded", ["", "1c", "61", "9f01", "ff", "a10102", "0000", "81" * 40, "fc", "9affffffff", "7f01ff", "a1ff01"]
)
def test_what_is_not_supported_is_refused(encoded: str) -> None:
    with pytest.raises(CborError):
        cbor.decode(bytes.fromhex(encoded))


def test_a_point_in_time_is_written_with_its_tag() -> None:
    assert cbor.encode(Timestamp(0.5)) == bytes.fromhex("c1fb3fe0000000000000")
    assert math.isinf(cbor.decode(cbor.encode(math.inf)))
