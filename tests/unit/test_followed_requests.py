"""Requests of traced handlers to services of AWS: which are noted, by what names, and with what result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thawd.gateway.followed_requests import FollowedRequests
from thawd.gateway.http import Receive, Scope, Send
from thawd.recording.spans import Span

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADER = f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent=00f067aa0ba902b7;Sampled=1"


class Noted:
    """Takes the place of `Calls`."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def knows(self, trace_id: str) -> bool:
        return trace_id == TRACE

    def request(self, span: Span) -> None:
        self.spans.append(span)


def scope_of(*, method: str = "POST", path: str = "/", trace: str = HEADER, **headers: str) -> Scope:
    named = {"x-amzn-trace-id": trace, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return {
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
    }


def served(scope: Scope, *, status: int = 200, error: BaseException | None = None) -> list[Span]:
    """Serve a request; return what was noted."""
    noted, sent = Noted(), list[Any]()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if error is not None:
            raise error
        await send({"type": "http.response.start", "status": status})
        await send({"type": "http.response.body", "body": b"x"})

    async def keep(message: Any) -> None:
        sent.append(message)

    followed = FollowedRequests()
    assert followed.follow(serve) is serve, "nothing is in the way while nothing is traced"
    followed.calls = noted  # type: ignore[assignment]
    work = followed.follow(serve)(scope, None, keep)  # type: ignore[arg-type]
    if error is None:
        asyncio.run(work)  # type: ignore[arg-type]
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    else:
        with pytest.raises(type(error)):
            asyncio.run(work)  # type: ignore[arg-type]
    return noted.spans


def signed(service: str) -> str:
    return f"AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=0"


def test_a_request_is_named_by_service_operation_and_bucket_and_by_nothing_secret() -> None:
    cases = {
        "dynamodb GetItem": scope_of(authorization=signed("dynamodb"), x_amz_target="DynamoDB_20120810.GetItem"),
        "monitoring PutMetricData": scope_of(
            authorization=signed("monitoring"), path="/service/GraniteServiceVersion20100801/operation/PutMetricData"
        ),
        "s3 PUT uploads": scope_of(authorization=signed("s3"), method="PUT", path="/uploads/secret/key"),
        "s3 GET uploads": scope_of(method="GET", path="/uploads"),
        "s3 GET": scope_of(method="GET", path="/"),
        "sns POST": scope_of(authorization=signed("sns"), x_amz_target="<script>.x y"),
    }
    for name, scope in cases.items():
        [span] = served(scope)
        assert (span.name, span.trace_id, span.parent_id, span.failed) == (name, TRACE, "00f067aa0ba902b7", False)
        assert span.attributes == {"http.response.status_code": 200} and span.began_at <= span.ended_at


def test_a_refused_request_and_one_without_an_answer_have_failed() -> None:
    [refused] = served(scope_of(), status=404)
    [lost] = served(scope_of(), error=RuntimeError("the client is gone"))

    assert refused.failed and refused.attributes == {"http.response.status_code": 404}
    assert lost.failed and not lost.attributes


@pytest.mark.parametrize("trace", ["", "x", HEADER.replace("Sampled=1", "Sampled=0"), HEADER.replace("4bf9", "5bf9")])
def test_a_request_that_no_traced_handler_has_sent_is_not_noted(trace: str) -> None:
    assert served(scope_of(trace=trace)) == []
