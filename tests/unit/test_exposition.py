"""`thawd.telemetry.exposition`: histograms are exact, and are the same in each format that a client may ask for."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from thawd.invocation import StartKind
from thawd.telemetry.distribution import PER_DOUBLING, SCHEMA, ZERO, ZERO_S, Distribution
from thawd.telemetry.exposition import (
    LEAST_POWER,
    MOST_POWER,
    OPENMETRICS,
    PROTOBUF,
    TEXT,
    exposition,
    negotiated,
    trace_id_of,
)
from thawd.telemetry.metrics import Metrics

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
TRACE_ID = "5759e988bd862e3fe1be46a994272793"


def invoked(*durations_ms: float) -> Metrics:
    metrics = Metrics()
    for value in durations_ms:
        metrics.function("f").record_invocation(StartKind.WARM, value, TRACE)
    return metrics


@given(st.lists(st.floats(1e-3, 1e7) | st.integers(-10, 13).map(lambda p: 1000 * 2.0**p), max_size=100))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_counts_of_powers_of_two_are_exact_and_buckets_contain_their_durations(values: list[float]) -> None:
    distribution = Distribution()
    for value in values:
        distribution.record(value)
        bucket = Distribution()
        bucket.record(value)
        [index] = bucket.buckets
        upper = 2 ** (index / PER_DOUBLING) if index != ZERO else ZERO_S
        lower = 2 ** ((index - 1) / PER_DOUBLING) if index != ZERO else 0
        assert lower * (1 - 1e-9) <= value / 1000 <= upper * (1 + 1e-9)
    for exponent, count in distribution.cumulative(LEAST_POWER, MOST_POWER, 1):
        assert count == sum(value <= 1000 * 2.0**exponent for value in values)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, TEXT),
        (b"", TEXT),
        (b"*/*", TEXT),
        (b"text/html", TEXT),
        (b"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPENMETRICS),
        (
            b"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
            b"application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            PROTOBUF,
        ),
        (b"application/vnd.google.protobuf;encoding=text", TEXT),
        (b"application/openmetrics-text;q=0.1, text/plain;q=0.9", TEXT),
        (b"application/openmetrics-text;q=much, text/plain", TEXT),
        (b"application/openmetrics-text;q=0", TEXT),
        (b";;,=;\xff", TEXT),
    ],
)
def test_a_client_gets_the_format_that_it_prefers(accept: bytes | None, expected: str) -> None:
    assert negotiated(accept) == expected


def test_trace_ids_are_those_of_the_w3c() -> None:
    assert trace_id_of(TRACE) == TRACE_ID
    assert trace_id_of(f"Lineage=a;Root=1-{'A' * 8}-{'0' * 24}") == "a" * 8 + "0" * 24
    for header in ("", "Root=1-5759e988-bd862e", "Root=2-5759e988-bd862e3fe1be46a994272793", "Self=1-1-1"):
        assert trace_id_of(header) is None


def test_openmetrics_has_buckets_with_exemplars() -> None:
    text = asyncio.run(exposition(invoked(0.25, 3.0, 3.5, 40_000.0, 5_000_000.0), OPENMETRICS)).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = [s for s in families["thawd_invocations_seconds"].samples if s.labels["kind"] == "warm"]
    counts = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert counts["0.0009765625"] == 1
    assert (counts["0.001953125"], counts["0.00390625"], counts["32.0"], counts["64.0"]) == (1, 3, 3, 4)
    assert (counts["1024.0"], counts["+Inf"]) == (4, 5)
    exemplars = {s.labels["le"]: s.exemplar for s in samples if s.exemplar is not None}
    assert {le: exemplar.value for le, exemplar in exemplars.items()} == {
        "0.0009765625": 0.00025,
        "0.00390625": 0.0035,
        "64.0": 40.0,
    }
    assert all(exemplar.labels == {"trace_id": TRACE_ID} for exemplar in exemplars.values())
    others = [s for s in families["thawd_invocations_seconds"].samples if s.labels["kind"] == "cold"]
    assert [(s.labels.get("le"), s.value) for s in others] == [("+Inf", 0), (None, 0), (None, 0)]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Decode one message: pairs of field number and integer, float or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        field, wire = divmod(varint(), 8)
        if wire == 0:
            yield field, varint()
        elif wire == 1:
            yield field, struct.unpack_from("<d", message, at)[0]
            at += 8
        else:
            assert wire == 2
            size = varint()
            yield field, message[at : at + size]
            at += size


def unzigzag(value: int) -> int:
    return -(value + 1 >> 1) if value & 1 else value >> 1


def families_of(document: bytes) -> dict[str, list[bytes]]:
    """Return the metrics of each family. The document is a row of messages, as if each was field 1 of another."""
    found = {}
    at = 0
    while at < len(document):
        size = shift = 0
        while True:
            byte = document[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        content = list(fields(document[at : at + size]))
        at += size
        name = next(value for field, value in content if field == 1).decode()
        assert name not in found
        found[name] = [value for field, value in content if field == 4]
    return found


def test_protobuf_has_a_native_histogram_with_the_same_durations() -> None:
    values_ms = [0.0, 0.25, 3.0, 3.0, 3.01, 3.5, 40_000.0]
    found = families_of(asyncio.run(exposition(invoked(*values_ms), PROTOBUF)))
    [series] = [
        dict(fields(metric))[7] for metric in found["thawd_invocations_seconds"] if b"warm" in metric and b"f" in metric
    ]
    content = list(fields(series))
    only = dict(content)
    assert (only[1], only[2]) == (7, pytest.approx(sum(values_ms) / 1000))
    assert (unzigzag(only[5]), only[6], only[7]) == (SCHEMA, ZERO_S, 1)
    spans = [dict(fields(value)) for field, value in content if field == 12]
    deltas = [unzigzag(value) for field, value in content if field == 13]
    at, count, decoded = 0, 0, {}
    for span in spans:
        at += unzigzag(span.get(1, 0))
        for _ in range(span[2]):
            count += deltas.pop(0)
            decoded[at] = count
            at += 1
    assert deltas == []
    expected: dict[int, int] = {}
    for value in values_ms[1:]:
        index = math.ceil(math.log2(value / 1000) * PER_DOUBLING - 1e-9)
        expected[index] = expected.get(index, 0) + 1
    assert decoded == expected
    buckets = [list(fields(value)) for field, value in content if field == 3]
    assert [dict(bucket)[1] for bucket in buckets][-1] == 7
    exemplars = [dict(fields(value)) for bucket in buckets for field, value in bucket if field == 3]
    assert any(TRACE_ID.encode() in exemplar[1] and exemplar[2] == 40.0 for exemplar in exemplars)
    assert len(found["thawd_errors_total"]) == 1
    assert found["thawd_build_info"]


def test_the_metrics_of_many_functions_are_one_family_in_each_format() -> None:
    metrics = Metrics()
    for number in range(60):
        metrics.function(f"f{number}").record_start(StartKind.THAW, 1.0)
    assert len(families_of(asyncio.run(exposition(metrics, PROTOBUF)))["thawd_errors_total"]) == 60
    text = asyncio.run(exposition(metrics, OPENMETRICS)).decode()
    names = [family.name for family in text_string_to_metric_families(text)]
    assert len(set(names)) == len(names)


def test_a_gauge_has_the_label_state_only_if_it_has_states() -> None:
    metrics = invoked(1)
    metrics.set_gauge("waiting", function="f", value=2)
    metrics.set_gauge("environments", function="f", state="idle", value=3)
    lines = asyncio.run(exposition(metrics)).decode().splitlines()
    assert 'thawd_waiting{function="f"} 2.0' in lines
    assert 'thawd_environments{function="f",state="idle"} 3.0' in lines
