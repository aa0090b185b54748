"""`thawd.gateway.sigv4`: requests signed by botocore are accepted; changed, expired or foreign ones are not.

Source: IAM user guide, "Create a signed AWS API request".
"""

from __future__ import annotations

import calendar
import time
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.gateway.sigv4 import SignatureError, SignedRequest, check_claim, claimed_service, is_signed, sign, verify

KEYS = {"AKIALOCAL": "secret/+key", "other": "another"}
HOST = "abc.lambda-url.us-east-1.localhost:8350"


def signed(
    method: str = "POST",
    path: str = "/a/b",
    query: str = "",
    body: bytes = b"",
    *,
    key: str = "AKIALOCAL",
    secret: str | None = None,
    service: str = "lambda",
    presigned_s: int | None = None,
    headers: dict[str, str] | None = None,
) -> SignedRequest:
    """Return a request as botocore's signer and an HTTP client make it."""
    url = f"http://{HOST}{path}{'?' + query if query else ''}"
    request = AWSRequest(method=method, url=url, data=body, headers=headers or {})
    credentials = Credentials(key, KEYS[key] if secret is None else secret)
    if presigned_s is None:
        SigV4Auth(credentials, service, "us-east-1").add_auth(request)
    else:
        SigV4QueryAuth(credentials, service, "us-east-1", expires=presigned_s).add_auth(request)
    prepared = request.prepare()
    parts = urlsplit(prepared.url)
    sent = [(b"host", HOST.encode())]
    for name, value in prepared.headers.items():
        data = value if isinstance(value, bytes) else value.encode()
        sent.append((name.lower().encode(), data))
    return SignedRequest(method, parts.path, parts.query, sent, body)


def changed(request: SignedRequest, **fields: Any) -> SignedRequest:
    whole = {name: getattr(request, name) for name in ("method", "raw_path", "query", "headers", "body")}
    return SignedRequest(**{**whole, **fields})


def with_header(request: SignedRequest, name: bytes, value: bytes) -> SignedRequest:
    return changed(request, headers=[(key, value if key == name else old) for key, old in request.headers])


def code_of(
    request: SignedRequest, *, now_s: float | None = None, keys: dict[str, str] | None = None
) -> tuple[str, str]:
    with pytest.raises(SignatureError) as error:
        verify(request, KEYS if keys is None else keys, now_s=time.time() if now_s is None else now_s)
    return error.value.code, error.value.message


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/", ""),
        ("", ""),
        ("/a/b/", "x=1"),
        ("/a%20b/%C3%BC", "b=2&a=1&a=0"),
        ("/a//b/../c/./d", "x=%20&y=a%2Bb&z"),
        ("/a/b/c/../d", ""),
        ("/a/b/c/../../d", ""),
        ("/a//b/", ""),
        ("/2015-03-31/functions/f%3A1/invocations", "Qualifier=%24LATEST"),
        ("/~x-y_z.w", "name=%E2%82%AC&empty="),
    ],
)
@pytest.mark.parametrize("presigned_s", [None, 60])
def test_what_botocore_signs_is_let_in(method: str, path: str, query: str, presigned_s: int | None) -> None:
    # botocore presigns no bodies: it moves them into the query.
    body = b'{"a": 1}' if method == "POST" and presigned_s is None else b""
    request = signed(method, path, query, body, presigned_s=presigned_s)
    assert is_signed(request)
    assert verify(request, KEYS, now_s=time.time()) == "AKIALOCAL"


@given(st.text(max_size=12), st.lists(st.tuples(st.text(min_size=1, max_size=5), st.text(max_size=5)), max_size=4))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_path_and_query_that_botocore_signs_is_let_in(path: str, pairs: list[tuple[str, str]]) -> None:
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs)
    request = signed("GET", "/" + quote(path, safe="/"), query)
    assert verify(request, KEYS, now_s=time.time()) == "AKIALOCAL"


def test_headers_are_signed_with_their_white_space_folded() -> None:
    request = signed(headers={"X-Amz-Meta-A": "  a   b  ", "Content-Type": "text/plain"})
    assert verify(request, KEYS, now_s=time.time()) == "AKIALOCAL"


def test_a_body_may_stay_unsigned_when_the_request_says_so() -> None:
    request = signed(body=b"one", headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
    assert verify(changed(request, body=b"two"), KEYS, now_s=time.time()) == "AKIALOCAL"


@pytest.mark.parametrize("presigned_s", [None, 60])
@pytest.mark.parametrize(
    "fields",
    [
        {"method": "PUT"},
        {"raw_path": "/a/c"},
        {"raw_path": "/a%2Fb"},
        {"query": "x=2"},
        {"body": b"changed"},
    ],
)
def test_a_request_that_was_changed_is_refused(fields: dict[str, Any], presigned_s: int | None) -> None:
    request = signed(query="x=1", body=b"body" if presigned_s is None else b"", presigned_s=presigned_s)
    if "query" in fields:
        fields = {"query": request.query.replace("x=1", "x=2")}
    assert code_of(changed(request, **fields))[0] == "InvalidSignatureException"


def test_another_host_or_another_hash_of_the_body_is_refused() -> None:
    request = signed(body=b"body", headers={"X-Amz-Content-SHA256": "0" * 64})
    assert code_of(request)[0] == "InvalidSignatureException"
    assert code_of(with_header(signed(), b"host", b"evil.example"))[0] == "InvalidSignatureException"


def test_a_wrong_secret_and_an_unknown_key_are_told_apart() -> None:
    code, message = code_of(signed(secret="wrong"))
    assert code == "InvalidSignatureException"
    assert message.startswith("The request signature we calculated does not match the signature you provided.")
    assert code_of(signed(), keys={})[0] == "UnrecognizedClientException"
    assert "secret" not in message


def test_a_signature_is_good_for_five_minutes_each_way() -> None:
    request = signed()
    date = (request.header(b"x-amz-date") or b"").decode()
    signed_s = calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))
    for off_s in (-300, 0, 300):
        assert verify(request, KEYS, now_s=signed_s + off_s) == "AKIALOCAL"
    now, limit = (time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(signed_s + after_s)) for after_s in (301, 1))
    message = f"Signature expired: {date} is now earlier than {limit} ({now} - 5 min.)"
    assert code_of(request, now_s=signed_s + 301) == ("InvalidSignatureException", message)
    assert code_of(request, now_s=signed_s - 301)[1].startswith(f"Signature not yet current: {date} is still later")


def test_a_presigned_request_is_good_as_long_as_it_says() -> None:
    request = signed(presigned_s=1000)
    now_s = time.time()
    assert verify(request, KEYS, now_s=now_s + 990) == "AKIALOCAL"
    assert code_of(request, now_s=now_s + 1002)[1].startswith("Signature expired: ")
    longer = changed(request, query=request.query.replace("Expires=1000", "Expires=604801"))
    assert code_of(longer)[0] == "IncompleteSignatureException"


def presigned_at(request: SignedRequest) -> int:
    values = dict(pair.split("=", 1) for pair in request.query.split("&"))
    return calendar.timegm(time.strptime(values["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))


@pytest.mark.parametrize("valid_s", [1, 604_800])
def test_a_presigned_request_may_be_good_for_a_second_or_a_week_and_is_to_the_last_second(valid_s: int) -> None:
    request = signed("GET", presigned_s=valid_s)
    signed_s = presigned_at(request)
    assert verify(request, KEYS, now_s=signed_s + valid_s) == "AKIALOCAL"
    assert code_of(request, now_s=signed_s + valid_s + 1)[0] == "InvalidSignatureException"


@pytest.mark.parametrize(
    "expires", ["0", "-5", "1.5", "604801", "%D9%A3", "9" * 5000, "0" * 5000 + "1", "0000000019999999999"]
)
def test_a_presigned_request_that_is_good_for_no_time_or_too_long_is_refused(expires: str) -> None:
    request = signed("GET", presigned_s=60)
    other = changed(request, query=request.query.replace("X-Amz-Expires=60", f"X-Amz-Expires={expires}"))
    code, message = code_of(other)
    assert (code, message) == ("IncompleteSignatureException", "X-Amz-Expires must be from 1 to 604800 seconds.")


@pytest.mark.parametrize("name", ["Signature", "SignedHeaders", "Credential"])
def test_a_presigned_request_with_letters_beyond_latin_1_is_refused_as_any_other(name: str) -> None:
    request = signed("GET", presigned_s=60)
    query = "&".join(
        f"{pair}%3B%E2%82%AC" if pair.startswith(f"X-Amz-{name}=") else pair for pair in request.query.split("&")
    )
    assert code_of(changed(request, query=query))[0] == "InvalidSignatureException"


@pytest.mark.parametrize("left_out", ["Credential", "Signature", "SignedHeaders"])
def test_what_a_signature_lacks_is_named(left_out: str) -> None:
    fields = [part for part in GOOD.split(", ") if not part.startswith(f"{left_out}=")]
    headers = [(b"host", b"x"), (b"authorization", f"AWS4-HMAC-SHA256 {','.join(fields)}".encode())]
    message = f"Authorization header requires '{left_out}' parameter."
    assert code_of(SignedRequest("GET", "/", "", headers, b"")) == ("IncompleteSignatureException", message)
    request = signed("GET", presigned_s=60)
    query = "&".join(pair for pair in request.query.split("&") if not pair.startswith(f"X-Amz-{left_out}="))
    message = f"AWS query-string parameters must include 'X-Amz-{left_out}'."
    assert code_of(changed(request, query=query)) == ("IncompleteSignatureException", message)


def test_a_signature_without_a_date_is_told_so() -> None:
    headers = [(b"host", b"x"), (b"authorization", b"AWS4-HMAC-SHA256 " + GOOD.encode())]
    message = "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
    assert code_of(SignedRequest("GET", "/", "", headers, b"")) == ("IncompleteSignatureException", message)


def test_an_access_key_id_may_have_slashes() -> None:
    keys = {"team/a/key": "secret"}
    request = signed(key="team/a/key", secret="secret")
    assert verify(request, keys, now_s=time.time()) == "team/a/key"


def test_a_header_that_comes_twice_is_signed_with_both_values() -> None:
    request = signed(headers={"X-Amz-Meta-A": "one,two"})
    twice = [(key, value) for key, value in request.headers if key != b"x-amz-meta-a"]
    twice += [(b"x-amz-meta-a", b"one"), (b"x-amz-meta-a", b"two")]
    assert verify(changed(request, headers=twice), KEYS, now_s=time.time()) == "AKIALOCAL"


def test_a_sender_may_encode_less_than_it_signed() -> None:
    request = signed(query="x=a%2Fb")
    assert verify(changed(request, query="x=a/b"), KEYS, now_s=time.time()) == "AKIALOCAL"


def test_a_signature_for_another_service_is_refused() -> None:
    message = "Credential should be scoped to correct service: 'lambda'."
    assert code_of(signed(service="s3")) == ("InvalidSignatureException", message)
    assert verify(signed(service="logs"), KEYS, now_s=time.time(), service="logs") == "AKIALOCAL"


def test_an_unsigned_request_is_told_what_is_missing() -> None:
    plain = SignedRequest("GET", "/", "", [(b"host", b"x")], b"")
    assert not is_signed(plain)
    assert code_of(plain) == ("MissingAuthenticationTokenException", "Missing Authentication Token")


GOOD = "Credential=AKIALOCAL/20260101/us-east-1/lambda/aws4_request, SignedHeaders=host;x-amz-date, Signature=00"


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("AWS4-HMAC-SHA256", "IncompleteSignatureException"),
        ("AWS4-HMAC-SHA256 nonsense", "IncompleteSignatureException"),
        ("AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=host, Signature=00", "IncompleteSignatureException"),
        ("AWS4-HMAC-SHA256 " + GOOD.replace("Signature=00", "Signature="), "IncompleteSignatureException"),
        ("AWS4-HMAC-SHA256 " + GOOD.replace("SignedHeaders=host;x-amz-date, ", ""), "IncompleteSignatureException"),
        ("AWS4-HMAC-SHA512 " + GOOD, "IncompleteSignatureException"),
        ("AWS4-HMAC-SHA256 " + GOOD.replace("aws4_request", "end"), "InvalidSignatureException"),
        ("AWS4-HMAC-SHA256 " + GOOD.replace("host;", ""), "InvalidSignatureException"),
        ("AWS4-HMAC-SHA256 " + GOOD.replace("20260101", "20260102"), "InvalidSignatureException"),
        ("AWS4-HMAC-SHA256 " + GOOD, "InvalidSignatureException"),
        ("AWS4-HMAC-SHA256 " + GOOD.replace("Signature=00", "Signature=\xe9\xff"), "InvalidSignatureException"),
        ("Bearer abc", "MissingAuthenticationTokenException"),
    ],
)
def test_a_malformed_signature_is_refused_as_such(authorization: str, code: str) -> None:
    headers = [
        (b"host", b"x"),
        (b"x-amz-date", b"20260101T000000Z"),
        (b"authorization", authorization.encode("latin-1")),
    ]
    now_s = calendar.timegm((2026, 1, 1, 0, 0, 0))
    assert code_of(SignedRequest("GET", "/", "", headers, b""), now_s=now_s)[0] == code


@pytest.mark.parametrize("date", [b"yesterday", b"2026-01-01T00:00:00Z", b"20261301T000000Z"])
def test_a_date_that_is_none_is_refused(date: bytes) -> None:
    headers = [(b"host", b"x"), (b"x-amz-date", date), (b"authorization", b"AWS4-HMAC-SHA256 " + GOOD.encode())]
    headers[2] = (b"authorization", headers[2][1].replace(b"20260101", date[:8]))
    assert code_of(SignedRequest("GET", "/", "", headers, b""))[0] == "IncompleteSignatureException"


@pytest.mark.parametrize(
    "query",
    ["X-Amz-Algorithm=AWS4-HMAC-SHA256", "zX-Amz-Algorithm=1", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=-1"],
)
def test_a_half_presigned_request_is_refused(query: str) -> None:
    assert code_of(SignedRequest("GET", "/", query, [(b"host", b"x")], b""))[0] == "IncompleteSignatureException"


@given(st.binary(max_size=60), st.binary(max_size=60))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_rubbish_is_refused_and_breaks_nothing(rest: bytes, query: bytes) -> None:
    headers = [(b"host", b"x"), (b"authorization", b"AWS4-HMAC-SHA256 " + rest), (b"x-amz-date", rest[:16])]
    for text in ("", "X-Amz-Algorithm=AWS4-HMAC-SHA256&" + query.decode("latin-1")):
        with pytest.raises(SignatureError):
            verify(SignedRequest("GET", "/", text, headers, b""), KEYS, now_s=0.0)


def test_what_we_sign_is_what_botocore_signs() -> None:
    theirs = signed("POST", "/a%20b/c", "q=1&p=%24x", b"body")
    now_s = calendar.timegm(time.strptime((theirs.header(b"x-amz-date") or b"").decode(), "%Y%m%dT%H%M%SZ"))
    plain = changed(theirs, headers=[(b"host", HOST.encode())])
    headers = sign(plain, "AKIALOCAL", KEYS["AKIALOCAL"], now_s=now_s, scope=("us-east-1", "lambda"))
    assert headers["Authorization"].encode() == theirs.header(b"authorization")
    assert headers["X-Amz-Date"].encode() == theirs.header(b"x-amz-date")
    assert len(headers) == 2


def test_a_claim_is_checked_without_the_body() -> None:
    request = changed(signed(body=b"body"), body=b"")
    check_claim(request, KEYS, now_s=time.time())
    with pytest.raises(SignatureError):
        check_claim(request, {}, now_s=time.time())
    with pytest.raises(SignatureError):
        check_claim(request, KEYS, now_s=time.time() + 1000)


def test_an_amz_header_beside_the_signature_must_be_signed() -> None:
    signed_one = signed(headers={"X-Amz-Invocation-Type": "Event"})
    assert verify(signed_one, KEYS, now_s=time.time()) == "AKIALOCAL"
    for request in (signed(), signed(presigned_s=60)):
        added = changed(request, headers=[*request.headers, (b"x-amz-invocation-type", b"Event")])
        code, message = code_of(added)
        assert code == "InvalidSignatureException"
        assert message.startswith("There were headers present in the request which were not signed")
        # This is known before the body is read.
        with pytest.raises(SignatureError):
            check_claim(added, KEYS, now_s=time.time())


def test_a_header_is_signed_once() -> None:
    request = signed()
    authorization = request.header(b"authorization") or b""
    doubled = with_header(request, b"authorization", authorization.replace(b"=host;", b"=host;host;"))
    assert code_of(doubled) == ("InvalidSignatureException", "'SignedHeaders' names a header twice.")


@pytest.mark.parametrize(
    ("authorization", "query", "service"),
    [
        ("AWS4-HMAC-SHA256 Credential=a/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host", "", "s3"),
        ("AWS4-HMAC-SHA256 SignedHeaders=host,Credential=a/b/20260101/eu-west-1/sqs/aws4_request", "", "sqs"),
        ("AWS4-HMAC-SHA256 Credential=a=b/20260101/eu-west-1/s3/aws4_request", "", "s3"),
        ("AWS4-HMAC-SHA256 Credential=a/20260101/eu-west-1/s3/other", "", None),
        ("AWS4-HMAC-SHA256 Credential=a/20260101/eu-west-1//aws4_request", "", None),
        ("Bearer Credential=a/20260101/eu-west-1/s3/aws4_request", "", None),
        ("", "X-Amz-Credential=a%2F20260101%2Feu-west-1%2Fdynamodb%2Faws4_request&x=1", "dynamodb"),
        ("", "X-Amz-Credential=a=b/20260101/eu-west-1/sns/aws4_request", "sns"),
        ("", "zX-Amz-Credential=a%2F20260101%2Feu-west-1%2Fs3%2Faws4_request", None),
        ("", "x=1", None),
    ],
)
def test_the_service_that_a_signature_is_for_is_told(authorization: str, query: str, service: str | None) -> None:
    assert claimed_service(authorization, query) == service
