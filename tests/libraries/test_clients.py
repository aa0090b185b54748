"""Clients that are connected when they are frozen: fifty copies of each, eight at a time, none with another's
connection.

The server that a program connects to runs in the test. Each copy gives the same answers as a process that was never
frozen, over connections that no other process has used. What its threads send by themselves (traces, events, metrics)
arrives exactly once.
"""

from __future__ import annotations

import collections
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.postgresql import Postgresql
from tests.libraries.programs.repeated import BEFORE, NUMBERS
from tests.libraries.repetition import COLD, Said, compare_many
from tests.libraries.servers import Datagrams, GrpcServer, HttpServer, Redis, Request, made_certificate
from tests.ports import quiet_port

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "libraries.md"
HTTP = {"uses_requests": 1, "uses_botocore": 1, "uses_httpx": 2}  # with the number of connections that each keeps
PROGRAMS = (
    *HTTP,
    "uses_grpc",
    "uses_redis",
    "uses_psycopg",
    "uses_psycopg_pool",
    "uses_xray",
    "uses_statsd",
    "uses_sentry",
    "uses_otlp",
    "uses_prometheus",
)
EACH_S = 600
Messages = dict[str, list[tuple[int, int]]]


@pytest.fixture
def http() -> Iterator[HttpServer]:
    """An HTTP server."""
    with HttpServer() as server:
        yield server


@pytest.fixture
def datagrams() -> Iterator[Datagrams]:
    """A receiver of datagrams."""
    with Datagrams() as receiver:
        yield receiver


def check_connections(all_said: Iterable[Said], *, at_most: int = 1) -> None:
    """Check that no two processes used the same connection.

    Raises:
        AssertionError: a connection served two processes, or one process used more than `at_most`.
    """
    owners: dict[Any, str] = {}
    for said in all_said:
        used = set(said.connections)
        assert 1 <= len(used) <= at_most, f"{said.name} used {used}"
        for connection in used:
            owner = owners.setdefault(connection, said.name)
            assert owner == said.name, f"connection {connection} served {owner} and {said.name}"


def check_messages(messages: Messages, all_said: Iterable[Said]) -> None:
    """Check that each process's messages arrived exactly once: number and square of every input.

    Raises:
        AssertionError: a message is missing, arrived twice, or is wrong.
    """
    for said in all_said:
        asked = [*NUMBERS, *NUMBERS] + (list(BEFORE) if said.name == COLD else [])
        assert sorted(messages[said.name]) == sorted((number, number * number) for number in asked), said.name


@pytest.mark.timeout(EACH_S)
@pytest.mark.parametrize("program", HTTP)
def test_http_clients_answer_in_each_copy_over_connections_of_its_own(
    image: Path, http: HttpServer, program: str
) -> None:
    check_connections(compare_many(image, program, "--address", http.address), at_most=HTTP[program])


@pytest.mark.timeout(EACH_S)
@pytest.mark.parametrize("program", ["uses_requests", "uses_httpx"])
def test_https_clients_answer_in_each_copy_over_connections_of_its_own(
    image: Path, tmp_path_factory: pytest.TempPathFactory, program: str
) -> None:
    certificate = made_certificate(tmp_path_factory.mktemp("certificate"))
    with HttpServer(certificate) as server:
        said = compare_many(image, program, "--address", server.address, "--certificate", str(certificate.path))
        check_connections(said, at_most=HTTP[program])


@pytest.mark.timeout(EACH_S)
def test_a_grpc_channel_answers_in_each_copy(image: Path) -> None:
    with GrpcServer() as server:
        compare_many(image, "uses_grpc", "--address", server.address)


@pytest.mark.timeout(EACH_S)
def test_redis_answers_in_each_copy_over_a_connection_of_its_own(
    image: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Redis(tmp_path_factory.mktemp("redis")) as server:
        check_connections(compare_many(image, "uses_redis", "--address", server.address))


@pytest.mark.timeout(EACH_S)
@pytest.mark.parametrize("program", ["uses_psycopg", "uses_psycopg_pool"])
@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_postgresql_answers_in_each_copy_over_connections_of_its_own(image: Path, program: str, way: str) -> None:
    port = quiet_port()
    with Postgresql(port=port) as server:
        address = server.url() if way == "unix" else server.url(host="127.0.0.1")
        check_connections(compare_many(image, program, "--address", address), at_most=2)


@pytest.mark.timeout(EACH_S)
def test_segments_of_the_xray_recorder_arrive_from_each_copy(image: Path, datagrams: Datagrams) -> None:
    # Given a recorder that has sent from its socket before the freeze
    all_said = compare_many(image, "uses_xray", "--address", datagrams.address)
    # Then each copy's segments have arrived, as for a cold process, and all their ids are different
    segments = [json.loads(datagram.split(b"\n", 1)[1]) for datagram in datagrams.all()]
    messages: Messages = collections.defaultdict(list)
    for segment in segments:
        (subsegment,) = segment["subsegments"]
        number = int(segment["name"].split()[1])
        messages[segment["annotations"]["name"]].append((number, subsegment["annotations"]["square"]))
    check_messages(messages, all_said)
    for key in ("id", "trace_id"):
        assert len({segment[key] for segment in segments}) == len(segments)


@pytest.mark.timeout(EACH_S)
def test_metrics_of_statsd_arrive_from_each_copy(image: Path, datagrams: Datagrams) -> None:
    all_said = compare_many(image, "uses_statsd", "--address", datagrams.address)
    # Then the values of both clients have arrived: of the one that sends immediately and of the one that buffers
    lines = [
        line for datagram in datagrams.all() for line in datagram.decode().splitlines() if line.startswith("square")
    ]
    for kind in ("direct", "buffered"):
        messages: Messages = collections.defaultdict(list)
        for line in lines:
            value, _type, tags = line.split(":", 1)[1].split("|", 2)
            tag = dict(part.split(":", 1) for part in tags.split("|")[0].removeprefix("#").split(","))
            if tag["kind"] == kind:
                messages[tag["name"]].append((round(float(value) ** 0.5), int(float(value))))
        check_messages(messages, all_said)


@pytest.mark.timeout(EACH_S)
@pytest.mark.parametrize(
    ("program", "messages_of"), [("uses_sentry", lambda: sentry_messages), ("uses_otlp", lambda: otlp_messages)]
)
def test_events_and_spans_arrive_from_each_copy_over_connections_of_its_own(
    image: Path, http: HttpServer, program: str, messages_of: Callable[[], Callable[[Request], Iterator[Any]]]
) -> None:
    all_said = compare_many(image, program, "--address", http.address)
    messages: Messages = collections.defaultdict(list)
    owners: dict[int, str] = {}
    for request in http.requests:
        for name, number, square in messages_of()(request):
            messages[name].append((number, square))
            # The original process has a different name from all copies.
            assert owners.setdefault(request.connection, name) == name, f"a connection served {name} and another"
    check_messages(messages, all_said)


@pytest.mark.timeout(EACH_S)
def test_the_server_of_prometheus_answers_in_each_copy(image: Path) -> None:
    compare_many(image, "uses_prometheus")


def sentry_messages(request: Request) -> Iterator[tuple[str, int, int]]:
    """Return name, number and square of the events in an envelope. Source: develop.sentry.dev, Envelopes."""
    for line in plain(request).split(b"\n"):
        item = json.loads(line) if line else {}
        if "logentry" in item or "message" in item:
            text = item.get("message") or item["logentry"]["message"]
            words = text.split()  # for example "the square of 3 is 9"
            yield item["tags"]["name"], int(words[3]), int(words[5])


def otlp_messages(request: Request) -> Iterator[tuple[str, int, int]]:
    """Return name, number and square of the spans in an export."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    export = ExportTraceServiceRequest.FromString(plain(request))
    for resource in export.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = {attribute.key: attribute.value for attribute in span.attributes}
                number = int(span.name.split()[1])
                yield attributes["name"].string_value, number, attributes["square"].int_value


def plain(request: Request) -> bytes:
    """Return a request's body, decompressed if necessary."""
    encoding = request.headers.get("content-encoding", "identity")
    unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress, "identity": bytes}[encoding]
    return unpack(request.body)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_is_in_the_page_about_libraries(program: str) -> None:
    assert f"| `{program}` |" in PAGE.read_text()
