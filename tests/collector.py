"""A collector of OpenTelemetry spans for tests."""

from __future__ import annotations

import http.server
import threading
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Received(NamedTuple):
    """A span, with its resource's ``service.name``; ids are hexadecimal digits, empty if missing."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    status: int


class Collector:
    """Takes spans by OTLP over HTTP on a free port.

    Attributes:
        answers: statuses of the next answers; further ones are 200.
        bodies: the bodies of requests that were answered with 200.
        paths: the paths of all requests.
    """

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = collector.answers.pop(0) if collector.answers else 200
                collector.paths.append(self.path)
                if status == 200 and self.headers["content-type"] == "application/x-protobuf":
                    collector.bodies.append(body)
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> list[Received]:
        """Return all spans that were received, in the order of their beginnings."""
        found = []
        for body in list(self.bodies):
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = _values(of_resource.resource.attributes)["service.name"]
                found += [_received(service, span) for scope in of_resource.scope_spans for span in scope.spans]
        return sorted(found, key=lambda span: span.began_ns)


def _received(service: str, span: Any) -> Received:
    return Received(
        service,
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        span.status.code,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
