"""One run through everything: an object is put, a function makes a row from it, another answers an HTTP request with
it."""

from __future__ import annotations

import json
import urllib.request

from .conftest import Project, eventually

CODE = """
import urllib.parse
import thawd

def put(event, context):
    record = event["Records"][0]["s3"]
    key = urllib.parse.unquote_plus(record["object"]["key"])
    text = thawd.bucket(record["bucket"]["name"]).read(key).decode()
    thawd.table("texts").put(key, {"text": text})

def get(event, context):
    row = thawd.table("texts").get(event["pathParameters"]["key"])
    return {"statusCode": 200 if row else 404, "body": row["text"] if row else ""}
"""
CONFIG = """
[functions.put]
handler = "app.put"

[functions.get]
handler = "app.get"

[buckets.uploads]
notify = [{ function = "put" }]

[tables.texts]

[routes]
"GET /texts/{key}" = "get"
"""


def test_an_object_that_is_put_becomes_a_row_that_a_function_answers_with(project: Project) -> None:
    project.code(CODE)
    project.config(CONFIG)
    with project.up() as running:
        running.s3().put_object(Bucket="uploads", Key="a.txt", Body=b"hello")
        assert eventually(lambda: project.rows("texts"), what="the row") == {"a.txt": {"text": "hello"}}
        with urllib.request.urlopen(f"{running.url}/texts/a.txt") as answer:
            assert (answer.status, answer.read()) == (200, b"hello")
        event = {"pathParameters": {"key": "a.txt"}}
        assert running.invoke("get", event) == ({"statusCode": 200, "body": "hello"}, None)
        assert {running.function(name)["start"] for name in ("put", "get")} == {"thaw"}, json.dumps(running.status())
