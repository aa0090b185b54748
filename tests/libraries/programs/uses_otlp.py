"""OpenTelemetry: batches of spans and metrics, sent over HTTP by threads that run at the freeze."""

from __future__ import annotations

from typing import Any

import repeated
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

DEADLINE_MS = 60_000


class Otlp:
    """A tracer that exports its spans in batches."""

    def __init__(self, options: repeated.Options) -> None:
        self._provider = TracerProvider()
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{options.address}/v1/traces")))
        self._tracer = self._provider.get_tracer("thawd")

    def answer(self, number: int) -> Any:
        with self._tracer.start_as_current_span(f"answer {number}") as span:
            span.set_attribute("name", repeated.name())
            span.set_attribute("square", number * number)
        assert self._provider.force_flush(DEADLINE_MS)
        return number * number

    def finish(self) -> None:
        """End the exporter's thread."""
        self._provider.shutdown()


if __name__ == "__main__":
    repeated.main(Otlp)
