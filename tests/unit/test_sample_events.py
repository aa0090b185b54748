"""``thawd event``: sample events have the form of those that AWS and the running server send."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from thawd.cli.event import event
from thawd.cli.sample_events import KINDS
from thawd.recording.event_sources import source_of


def _made(*arguments: str) -> Any:
    done = CliRunner().invoke(event, list(arguments))
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_every_kind_is_recognised_as_what_it_is() -> None:
    sources = {kind: source_of(json.dumps(_made(kind)).encode(), asynchronous=False) for kind in KINDS}
    assert sources == {
        "apigw": "GET /",
        "apigw-rest": "GET /",
        "dynamodb": "stream of table table",
        "eventbridge": "event of example",
        "kinesis": "stream stream",
        "s3-delete": "bucket uploads",
        "s3-put": "bucket uploads",
        "schedule": "schedule nightly",
        "sns": "topic topic",
        "sqs": "queue jobs",
        "url": "GET /",
    }


def test_values_are_set_by_name_and_by_path() -> None:
    put = _made("s3-put", "--set", "bucket=b", "--set", "key=a b/ü.png", "--set", "size=7")["Records"][0]
    assert put["s3"]["bucket"] == {
        "name": "b",
        "arn": "arn:aws:s3:::b",
        "ownerIdentity": put["s3"]["bucket"]["ownerIdentity"],
    }
    assert (put["s3"]["object"]["key"], put["s3"]["object"]["size"]) == ("a+b/%C3%BC.png", 7)
    queue = _made("sqs", "--set", 'body={"n": 1}', "--set", "Records.0.attributes.ApproximateReceiveCount=3")
    assert json.loads(queue["Records"][0]["body"]) == {"n": 1}
    assert queue["Records"][0]["attributes"]["ApproximateReceiveCount"] == 3
    assert _made("sqs", "--set", "queue=a.fifo")["Records"][0]["attributes"]["MessageGroupId"] == "1"
    post = _made("apigw", "--set", "method=post", "--set", "path=/d?x=1", "--set", 'body={"n": 1}')
    assert (post["requestContext"]["http"]["method"], post["rawPath"], post["rawQueryString"]) == ("POST", "/d", "x=1")
    assert (json.loads(post["body"]), post["headers"]["content-type"]) == ({"n": 1}, "application/json")
    rest = _made("apigw-rest", "--set", "path=/d", "--set", 'query={"a": [1, 2]}')
    assert rest["multiValueQueryStringParameters"] == {"a": ["1", "2"]}
    item = _made("dynamodb", "--set", 'item={"id": "7", "n": 1.5}')["Records"][0]["dynamodb"]
    assert (item["Keys"], item["NewImage"]["n"]) == ({"id": {"S": "7"}}, {"N": "1.5"})
