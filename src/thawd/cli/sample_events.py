"""Makes sample events as AWS's services send them, for `thawd event`. Where thawd itself sends such events, its own
functions make them, so that a sample has the form of the events that the running server sends.

Source: AWS Lambda developer guide, the example event on each service's page.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from thawd.gateway.function_urls import events_and_responses as function_urls
from thawd.gateway.function_urls.table import Url
from thawd.gateway.routes import payload_format_1, payload_format_2
from thawd.gateway.routes.payload_formats import IntegrationRequest
from thawd.invocation import new_request_id
from thawd.resources import ACCOUNT_ID, REGION, FunctionUrl
from thawd.sources.buckets import s3_event
from thawd.sources.sqs import lambda_event as sqs_event
from thawd.sources.streams import lambda_event as stream_event

Values = Mapping[str, Any]
"""What ``--set`` gives for a kind's own names; a value is what JSON makes of the text, else the text."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of event.

    Attributes:
        title: what sends it.
        make: makes the event from values by name.
        defaults: the names that ``--set`` may use, with the values that they have without it.
    """

    title: str
    make: Callable[[Values], dict[str, Any]]
    defaults: Values

    def event(self, given: Values) -> dict[str, Any]:
        """Return the event with these values instead of the defaults."""
        return self.make({**self.defaults, **given})


def _text(value: Any) -> str:
    """A value as a message's body: texts as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _s3(name: str) -> Callable[[Values], dict[str, Any]]:
    def make(values: Values) -> dict[str, Any]:
        removed = name == s3_event.REMOVED
        size = 0 if removed else int(values["size"])
        found = s3_event.ObjectEvent(
            name=name,
            bucket=_text(values["bucket"]),
            key=_text(values["key"]).encode(),
            size=None if removed else size,
            etag=None if removed else hashlib.md5(bytes(size), usedforsecurity=False).hexdigest(),
            sequencer=time.time_ns() // 1000,
            at_s=time.time(),
            request_id=new_request_id(),
        )
        event: dict[str, Any] = json.loads(s3_event.encode(found, configuration_id="thawd-sample"))
        return event

    return make


def _sqs(values: Values) -> dict[str, Any]:
    body, queue = _text(values["body"]), _text(values["queue"])
    now_ms = str(int(time.time() * 1000))
    attributes = {
        "ApproximateReceiveCount": "1",
        "SentTimestamp": now_ms,
        "SenderId": ACCOUNT_ID,
        "ApproximateFirstReceiveTimestamp": now_ms,
    }
    if queue.endswith(".fifo"):
        attributes |= {
            "SequenceNumber": "18849496460467696128",
            "MessageGroupId": _text(values["group"]),
            "MessageDeduplicationId": hashlib.sha256(body.encode()).hexdigest(),
        }
    message = {
        "MessageId": str(uuid.uuid4()),
        "ReceiptHandle": base64.b64encode(uuid.uuid4().bytes * 4).decode(),
        "Body": body,
        "Attributes": attributes,
        "MD5OfBody": hashlib.md5(body.encode(), usedforsecurity=False).hexdigest(),
    }
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{queue}"
    return {"Records": [sqs_event.record(message, arn=arn, region=REGION)]}


def _sns(values: Values) -> dict[str, Any]:
    topic = f"arn:aws:sns:{REGION}:{ACCOUNT_ID}:{_text(values['topic'])}"
    return {
        "Records": [
            {
                "EventSource": "aws:sns",
                "EventVersion": "1.0",
                "EventSubscriptionArn": f"{topic}:{uuid.uuid4()}",
                "Sns": {
                    "Type": "Notification",
                    "MessageId": str(uuid.uuid4()),
                    "TopicArn": topic,
                    "Subject": values["subject"],
                    "Message": _text(values["message"]),
                    "Timestamp": _now("milliseconds"),
                    "SignatureVersion": "1",
                    "Signature": "EXAMPLE",
                    "SigningCertUrl": "EXAMPLE",
                    "UnsubscribeUrl": "EXAMPLE",
                    "MessageAttributes": {},
                },
            }
        ]
    }


def _request(values: Values) -> IntegrationRequest:
    method, path = _text(values["method"]).upper(), _text(values["path"])
    path, _, query = path.partition("?")
    if isinstance(values["query"], dict):
        query = urlencode(values["query"], doseq=True)
    elif values["query"]:
        query = _text(values["query"])
    body = b"" if values["body"] in (None, "") else _text(values["body"]).encode()
    headers = {"host": "127.0.0.1:8350", "user-agent": "thawd-event", "accept": "*/*"}
    if body:
        is_json = not isinstance(values["body"], str)
        headers["content-type"] = "application/json" if is_json else "text/plain"
        headers["content-length"] = str(len(body))
    if isinstance(values["headers"], dict):
        headers |= {name.lower(): _text(value) for name, value in values["headers"].items()}
    return IntegrationRequest(
        method=method,
        raw_path=path if path.startswith("/") else f"/{path}",
        query=query,
        headers=[(name.encode(), value.encode()) for name, value in headers.items()],
        body=body,
        source_ip="127.0.0.1",
        protocol="HTTP/1.1",
        route_key=f"{method} {path}",
        path_parameters=values["parameters"] if isinstance(values["parameters"], dict) else {},
    )


def _http(values: Values) -> dict[str, Any]:
    return payload_format_2.event(_request(values), now_s=time.time())


def _rest(values: Values) -> dict[str, Any]:
    return payload_format_1.event(_request(values), now_s=time.time())


def _url(values: Values) -> dict[str, Any]:
    url = Url("0123456789abcdefghijklmnopqrstuv", "sample", "$LATEST", FunctionUrl(auth_type="NONE"))
    request = replace(_request(values), route_key="$default")
    return function_urls.event(request, url, None, now_s=time.time(), request_id=new_request_id())


def _schedule(values: Values) -> dict[str, Any]:
    rule = f"arn:aws:events:{REGION}:{ACCOUNT_ID}:rule/{_text(values['rule'])}"
    return _bus_event("aws.events", "Scheduled Event", {}, resources=[rule])


def _eventbridge(values: Values) -> dict[str, Any]:
    return _bus_event(_text(values["source"]), _text(values["detail-type"]), values["detail"], resources=[])


def _bus_event(source: str, detail_type: str, detail: Any, *, resources: list[str]) -> dict[str, Any]:
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": detail_type,
        "source": source,
        "account": ACCOUNT_ID,
        "time": _now("seconds"),
        "region": REGION,
        "resources": resources,
        "detail": detail,
    }


def _kinesis(values: Values) -> dict[str, Any]:
    raw: Any = {
        "PartitionKey": _text(values["key"]),
        "SequenceNumber": "49590338271490256608559692538361571095921575989136588898",
        "Data": _text(values["data"]).encode(),
        "ApproximateArrivalTimestamp": datetime.now(UTC),
    }
    made = stream_event.kinesis_record(
        raw,
        shard="shardId-000000000000",
        arn=f"arn:aws:kinesis:{REGION}:{ACCOUNT_ID}:stream/{_text(values['stream'])}",
        region=REGION,
        role=f"arn:aws:iam::{ACCOUNT_ID}:role/thawd",
    )
    return {"Records": [made]}


def _dynamodb(values: Values) -> dict[str, Any]:
    table = f"arn:aws:dynamodb:{REGION}:{ACCOUNT_ID}:table/{_text(values['table'])}"
    item = {name: _attribute(value) for name, value in values["item"].items()}
    keys = dict(list(item.items())[:1])
    change: dict[str, Any] = {
        "ApproximateCreationDateTime": datetime.now(UTC),
        "Keys": keys,
        "NewImage": item,
        "SequenceNumber": "4421584500000000017450439091",
        "SizeBytes": len(json.dumps(item)),
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }
    raw: Any = {"eventID": uuid.uuid4().hex, "eventName": "INSERT", "awsRegion": REGION, "dynamodb": change}
    return {"Records": [stream_event.dynamodb_record(raw, arn=f"{table}/stream/2026-01-01T00:00:00.000")]}


def _attribute(value: Any) -> dict[str, Any]:
    """A JSON value in DynamoDB's form."""
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float):
        return {"N": str(value)}
    if isinstance(value, list):
        return {"L": [_attribute(each) for each in value]}
    if isinstance(value, dict):
        return {"M": {name: _attribute(each) for name, each in value.items()}}
    return {"NULL": True} if value is None else {"S": str(value)}


def _now(precision: str) -> str:
    return datetime.now(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


_OBJECT = {"bucket": "uploads", "key": "example.png", "size": 1024}
_HTTP: Values = {"method": "GET", "path": "/", "query": "", "headers": {}, "body": None, "parameters": {}}

KINDS: Mapping[str, Kind] = {
    "apigw": Kind("HTTP API or route (payload format 2.0)", _http, _HTTP),
    "apigw-rest": Kind("route with payload format 1.0", _rest, _HTTP),
    "dynamodb": Kind("DynamoDB stream", _dynamodb, {"table": "table", "item": {"id": "1", "count": 1}}),
    "eventbridge": Kind(
        "EventBridge event bus", _eventbridge, {"source": "example", "detail-type": "Example", "detail": {}}
    ),
    "kinesis": Kind("Kinesis stream", _kinesis, {"stream": "stream", "key": "1", "data": "hello"}),
    "s3-delete": Kind("object removed from a bucket", _s3(s3_event.REMOVED), {"bucket": "uploads", "key": "a.png"}),
    "s3-put": Kind("object put into a bucket", _s3(s3_event.CREATED), _OBJECT),
    "schedule": Kind("schedule (EventBridge rule)", _schedule, {"rule": "nightly"}),
    "sns": Kind("SNS topic", _sns, {"topic": "topic", "subject": None, "message": "hello"}),
    "sqs": Kind("SQS queue", _sqs, {"queue": "jobs", "body": "hello", "group": "1"}),
    "url": Kind("function URL", _url, _HTTP),
}
"""The kinds of events, by the name that `thawd event` takes."""
