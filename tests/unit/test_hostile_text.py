"""Every pattern and parser for text from outside takes time in proportion to the length of the text.

A pattern with quadratic run time would need minutes for these texts. The child process that runs them has 20 seconds
of processor time for all. No test measures a time.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from thawd.control import names
from thawd.errors import ThawdError
from thawd.gateway import cors
from thawd.gateway.aws import proxy
from thawd.gateway.function_urls import table
from thawd.gateway.lambda_api import input_constraints, inputs, invoke_request
from thawd.gateway.logs import requests
from thawd.gateway.routes.endpoint import RouteTable
from thawd.gateway.s3 import read as object_read
from thawd.gateway.s3.request import speaks_s3
from thawd.gateway.s3.xml import S3Error
from thawd.gateway.sigv4 import SignatureError, SignedRequest, verify
from thawd.grammar import lineage, log_filters
from thawd.resources import Route

_CPU_S = 20
_LARGE = 100_000
# A text of many copies of each, alone and after the beginning of a valid text.
_UNITS = (
    " ",
    "a",
    "0",
    "-",
    ".",
    "/",
    ":",
    ",",
    "=",
    '"',
    "\\",
    "a-",
    "-a",
    "a.",
    "a=",
    "a=b,",
    "Credential=",
    "..",
    "%2",
)
_BEGINNINGS = (
    "",
    "arn:aws",
    "arn:aws:lambda:",
    "AWS4-HMAC-SHA256 Credential=",
    "$.",
    "bytes=",
    "X-Amz-Credential=",
    "/",
)
_REFUSALS = (ThawdError, S3Error, SignatureError, ValueError)


def _scope(text: str, where: str) -> dict[str, Any]:
    headers = [(where.encode(), text.encode("latin-1"))] if where != "query" else []
    query = text.encode("latin-1") if where == "query" else b""
    return {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": query, "headers": headers}


def _verify_header(text: str) -> None:
    verify(
        SignedRequest("GET", "/", "", [(b"authorization", text.encode("latin-1"))], b""), {"a": "s"}, now_s=time.time()
    )


def _verify_query(text: str) -> None:
    query = f"X-Amz-Algorithm=AWS4-HMAC-SHA256&{text}"
    verify(SignedRequest("GET", "/", query, [], b""), {"a": "s"}, now_s=time.time())


def _verify_many_headers(text: str) -> None:
    """The key id is a known one, `test`. There are thousands of headers, all signed, and as many dots in the path."""
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    count = len(text) // 8
    named = ";".join(["host", *(f"h{i}" for i in range(count))])
    headers = [(b"h%d" % i, text[:1].encode("latin-1")) for i in range(count)]
    authorization = (
        f"AWS4-HMAC-SHA256 Credential=a/{date[:8]}/us-east-1/lambda/aws4_request, SignedHeaders={named}, Signature=0"
    )
    headers += [(b"authorization", authorization.encode()), (b"x-amz-date", date.encode())]
    path = "/a" * count + "/.." * count
    verify(SignedRequest("GET", path, text, [*headers], b""), {"a": "s"}, now_s=time.time())


def _read_members(text: str) -> None:
    for operation in inputs.operations():
        for shape in operation.members.values():
            list(input_constraints._problems(shape, text, "x") if shape["type"] == "string" else ())


READERS: dict[str, Callable[[str], object]] = {
    "signature in a header": _verify_header,
    "signature in the query": _verify_query,
    "signed headers": _verify_many_headers,
    "service of a header": lambda text: proxy.service_of(_scope(text, "authorization")),
    "service of the query": lambda text: proxy.service_of(_scope(text, "query")),
    "S3 by header": lambda text: speaks_s3(_scope(text, "authorization")),
    "S3 by query": lambda text: speaks_s3(_scope(text, "query")),
    "host of a function URL": table.id_in,
    "path of a function URL": lambda text: table.id_in("/_urls/" + text),
    "origin": cors.is_this_machine,
    "function's name, invoked": lambda text: invoke_request.resolve(b"query", text),
    "function's name, managed": names.parse_function,
    "layer's name": names.parse_layer,
    "members of an API's input": _read_members,
    "operation's path": lambda text: inputs.find("GET", "/2015-03-31/functions/" + text, ""),
    "filter pattern": log_filters.parse,
    "filter pattern as long as it may be": lambda text: log_filters.parse(text[: log_filters.MAX_PATTERN_CHARACTERS]),
    "filter pattern for JSON": lambda text: log_filters.parse("{" + text[:1000] + "}"),
    "token of the Logs API": requests._TOKEN.fullmatch,
    "group of the Logs API": requests._GROUP_ARN.fullmatch,
    "range": lambda text: object_read._range(text, 10),
    "trace header": lambda text: lineage.advanced("Lineage=" + text, "a"),
    "route": lambda text: RouteTable([Route(key="GET /{a}/{b+}", function="f")]).find("GET", "/" + text),
}


def _texts() -> Iterator[str]:
    for beginning in _BEGINNINGS:
        for unit in _UNITS:
            yield beginning + unit * (_LARGE // len(unit)) + "!"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    for name, read in READERS.items():
        print(name, flush=True)
        for text in _texts() if read is not _verify_many_headers else [" " * 64_000, "a=1&" * 16_000]:
            with contextlib.suppress(*_REFUSALS):
                read(text)
    print("done", flush=True)


def test_hostile_text_is_read_in_time_that_grows_with_its_length() -> None:
    code = "from tests.unit.test_hostile_text import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "done", f"at: {done.stdout.splitlines()[-1:]}, {done.stderr[-2000:]}"
