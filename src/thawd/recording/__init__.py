"""Records invocations: what the dispatcher reports becomes rows of ``records.db``, without secrets.

- `recorder`: collects what the dispatcher reports, and writes it in batches, off the path of requests.
- `redaction`: replaces secret values in events, answers and error messages.
- `event_sources`: finds out from an event where it came from.
- `record_making`: makes the rows of a record.
- `records`: reads records, for pages and for the API.
- `tracer`: decides which invocations are traced.
- `spans`: makes the spans of an invocation.
- `span_sender`: sends spans to a collector, off the path of requests.
- `calls`: collects what the handlers of traced invocations called, for their records.
- `open_traces`: remembers the traced invocations to whose spans a function may add its own.
- `segments`: decodes documents of X-Ray and makes spans of them.
- `segment_joining`: finds out to which invocation a segment of X-Ray belongs.
- `segment_receiver`: receives the segments that X-Ray's SDKs in functions send.
- `otlp`: encodes spans as OpenTelemetry's protocol wants them.
- `minute_counts`: counts each function's invocations by minute, start kind and latency.
"""
