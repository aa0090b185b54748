"""`thawd.gateway.aws.api_messages`: addresses of APIs, and requests and responses as they are passed on.

Source: API Gateway developer guide, "Invoke REST APIs in API Gateway", for the host names.
"""

from __future__ import annotations

import pytest

from thawd.gateway.aws.api_messages import (
    ApiAddress,
    ApiRequest,
    ApiResponse,
    api_of,
    decoded_request,
    decoded_response,
    encoded,
    is_aws_host,
)


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [
        ("abc.execute-api.localhost:8350", "/dev/x", ApiAddress("abc", "/dev/x", in_host=True)),
        ("ABC.execute-api.us-east-1.amazonaws.com", "/", ApiAddress("abc", "/", in_host=True)),
        ("127.0.0.1:8350", "/_aws/execute-api/abc/dev/x%2Fy", ApiAddress("abc", "/dev/x%2Fy", in_host=False)),
        ("127.0.0.1:8350", "/_aws/execute-api/abc", ApiAddress("abc", "/", in_host=False)),
        ("localhost", "/_aws/execute-api/shop.example/a", ApiAddress("shop.example", "/a", in_host=False)),
        ("localhost", "/restapis/abc/dev/_user_request_/x", ApiAddress("abc", "/dev/x", in_host=False)),
        ("localhost", "/restapis/abc/dev/_user_request_", ApiAddress("abc", "/dev/", in_host=False)),
        ("localhost", "/restapis/abc/stages/dev", None),
        ("localhost", "/_aws/execute-api/", None),
        ("execute-api.localhost", "/dev", None),
        ("a.b.execute-api.localhost", "/dev", None),
    ],
)
def test_an_api_is_found_in_the_host_name_or_the_path(host: str, path: str, expected: ApiAddress | None) -> None:
    assert api_of(host, path) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("abc.execute-api.us-east-1.amazonaws.com:80", True),
        ("abc.execute-api.us-east-1.amazonaws.com.evil.example", False),
        ("abc.execute-api.evil.example", False),
        ("evil.example", False),
    ],
)
def test_only_names_that_no_other_site_can_own_are_accepted_as_aws_hosts(host: str, expected: bool) -> None:
    assert is_aws_host(host) is expected


def test_a_request_and_a_response_arrive_as_they_were_passed_on() -> None:
    request = ApiRequest(
        "abc", in_host=True, method="POST", path="/a%2Fb", sent_path="/a%2Fb", query="x=1&x=2",
        headers=[("x", "1"), ("x", "\xe9")], body=b'{"a": 1}\n\x00\n',
    )  # fmt: skip
    assert decoded_request(encoded(request)) == request
    response = ApiResponse(201, [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")], b"\n\xff")
    assert decoded_response(encoded(response)) == response
