"""Authorizers of APIs, and what is kept of their answers: two callers at once, changes, malformed answers.

Source: API Gateway developer guide, "Use API Gateway Lambda authorizers", "Control access to HTTP APIs with AWS Lambda
authorizers" and "Control access to REST APIs using Amazon Cognito user pools as an authorizer" (which token a method
without scopes takes).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.unit.rest_calls import call, definition
from thawd.gateway.aws.api_messages import ApiRequest
from thawd.server.emulator.api_gateway.api_services import ApiServices
from thawd.server.emulator.api_gateway.authorizer_cache import AuthorizerCache
from thawd.server.emulator.api_gateway.authorizer_policies import Verdict, verdict
from thawd.server.emulator.api_gateway.function_invocations import ApiFunctions, FunctionAnswer
from thawd.server.emulator.api_gateway.http import authorizers as http_authorizers
from thawd.server.emulator.api_gateway.http.calls import HttpCall
from thawd.server.emulator.api_gateway.http.definitions import HttpDefinition
from thawd.server.emulator.api_gateway.http.errors import HttpError
from thawd.server.emulator.api_gateway.json_web_tokens import TokenError, TokenKeys, checked
from thawd.server.emulator.api_gateway.rest import authorizers as rest_authorizers
from thawd.server.emulator.api_gateway.rest.gateway_responses import GatewayError
from thawd.server.emulator.api_gateway.usage_plans import Refusal, Usage

STAGE, KEY = ("abc", "dev"), ("a", "anna")
PREFIX = "arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/arn:aws:lambda:us-east-1:000000000000:function:"
ALLOW = {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
GOOD = {"principalId": "anna", "policyDocument": ALLOW, "isAuthorized": True}


class Functions:
    """Functions that answer what they are told to, and remember who was asked."""

    def __init__(self, answer: Callable[[str], Any]) -> None:
        self.asked: list[str] = []
        self._answer = answer

    def invoke(self, arn: str, event: bytes, **options: Any) -> FunctionAnswer:
        self.asked.append(arn.rpartition(":")[2])
        return FunctionAnswer(json.dumps(self._answer(self.asked[-1])).encode(), is_error=False)


def services_of(functions: Functions, **more: Any) -> ApiServices:
    return ApiServices(cast("ApiFunctions", functions), lambda name: None, dict, lambda line: None, **more)


def ask_rest(services: ApiServices, *, variables: dict[str, str] | None = None) -> None:
    authorizer = {"type": "TOKEN", "authorizerUri": PREFIX + "${stageVariables.who}/invocations"}
    made = call(
        headers=[("authorization", "anna")],
        method_fields={"authorizationType": "CUSTOM", "authorizerId": "x"},
        variables=variables or {"who": "first"},
        deployed=definition(authorizers={"x": authorizer}),
    )
    rest_authorizers.authorize(made, services)


def ask_http(services: ApiServices, *, variables: dict[str, str] | None = None) -> None:
    authorizer = {
        "authorizerUri": PREFIX + "${stageVariables.who}/invocations",
        "identitySource": ["$request.header.Authorization"],
        "authorizerResultTtlInSeconds": 300,
        "enableSimpleResponses": True,
    }
    request = ApiRequest("abc", True, "GET", "/a", "/a", headers=[("authorization", "anna"), ("host", "abc.localhost")])
    defined = HttpDefinition([], {}, {"x": authorizer}, None)
    made = HttpCall(request, "abc", "dev", variables or {"who": "first"}, defined, "/a", "/dev/a", "r", 0.0)
    made.route = {"routeKey": "GET /a", "authorizationType": "CUSTOM", "authorizerId": "x"}
    http_authorizers.authorize(made, services)


@pytest.mark.parametrize("ask", [ask_rest, ask_http])
def test_another_function_in_a_stage_variable_is_asked_although_the_first_ones_answer_is_kept(ask: Any) -> None:
    functions = Functions(lambda name: GOOD)
    services = services_of(functions)
    for who in ("first", "first", "second"):
        ask(services, variables={"who": who})
    assert functions.asked == ["first", "second"]


@pytest.mark.parametrize("ask", [ask_rest, ask_http])
def test_an_answer_that_is_malformed_is_not_kept(ask: Any) -> None:
    answers = [{"principalId": "anna", "policyDocument": {"Statement": [{}]}, "isAuthorized": "yes"}, GOOD]
    functions = Functions(lambda name: answers.pop(0))
    services = services_of(functions)
    with pytest.raises((GatewayError, HttpError)):
        ask(services)
    ask(services)
    ask(services)
    assert len(functions.asked) == 2


@pytest.mark.parametrize("ask", [ask_rest, ask_http])
def test_an_answer_from_before_a_flush_is_not_kept(ask: Any) -> None:
    def answer(name: str) -> Any:
        if len(functions.asked) == 1:
            services.cache.flush(STAGE)
        return GOOD

    functions = Functions(answer)
    services = services_of(functions)
    for _ in range(3):
        ask(services)
    assert len(functions.asked) == 2


def test_of_two_callers_the_answer_to_the_later_question_stays() -> None:
    now = [0.0]
    cache = AuthorizerCache(lambda: now[0])
    first = cache.now_s()
    now[0] = 1.0
    second = cache.now_s()
    cache.keep(STAGE, KEY, "denied", ttl_s=10, asked_s=second)
    cache.keep(STAGE, KEY, "allowed", ttl_s=10, asked_s=first)
    assert cache.find(STAGE, KEY) == "denied"


def test_a_pattern_with_many_stars_is_matched_in_bounded_steps() -> None:
    pattern = "*" + "a*" * 40 + "b"
    document = {"Statement": {"Effect": "Allow", "Action": "*", "Resource": pattern}}
    assert verdict(document, "a" * 5000) is Verdict.NOT_ALLOWED
    assert verdict(document, "a" * 5000 + "b") is Verdict.ALLOWED


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("*", "", True),
        ("", "", True),
        ("", "a", False),
        ("a**c", "ac", True),
        ("a?c", "ac", False),
        ("*?", "ab", True),
        ("?*?", "a", False),
        ("*ab*ab", "abab", True),
        ("*ab*ab", "aab", False),
        ("a.c", "abc", False),
        ("a*\n", "a*\n", True),
    ],
)
def test_stars_and_question_marks_match_as_in_iam(pattern: str, text: str, expected: bool) -> None:
    document = {"Statement": {"Effect": "Allow", "Action": "*", "Resource": pattern}}
    assert (verdict(document, text) is Verdict.ALLOWED) is expected


SIGNING = RSAKey.generate_key(2048, {"kid": "k"})
POOL = "https://cognito-idp.us-east-1.amazonaws.com/us-east-1_abc"


@pytest.mark.parametrize(
    ("claims", "scopes", "is_accepted"),
    [
        ({"token_use": "id"}, [], True),
        ({"token_use": "access", "scope": "a/read"}, [], False),
        ({"token_use": "access", "scope": "a/read"}, ["a/read"], True),
        ({"token_use": "access", "scope": "a/write"}, ["a/read"], False),
        ({"token_use": "id"}, ["a/read"], False),
    ],
)
def test_a_method_without_scopes_takes_identity_tokens_and_one_with_scopes_takes_access_tokens(
    claims: dict[str, Any], scopes: list[str], is_accepted: bool
) -> None:
    token = jwt.encode({"alg": "RS256", "kid": "k"}, {"iss": POOL, "exp": 1 << 40, **claims}, SIGNING)
    keys = TokenKeys(lambda region, pool: {"keys": [SIGNING.as_dict(private=False)]})
    arn = "arn:aws:cognito-idp:us-east-1:000000000000:userpool/us-east-1_abc"
    made = call(
        headers=[("authorization", token)],
        method_fields={"authorizationType": "COGNITO_USER_POOLS", "authorizerId": "x", "authorizationScopes": scopes},
        deployed=definition(authorizers={"x": {"providerARNs": [arn]}}),
    )
    services = services_of(Functions(lambda name: None), token_keys=keys)
    if is_accepted:
        rest_authorizers.authorize(made, services)
        return
    with pytest.raises(GatewayError) as error:
        rest_authorizers.authorize(made, services)
    assert error.value.status == 401


def test_a_token_whose_json_is_nested_too_deep_is_malformed() -> None:
    part = base64.urlsafe_b64encode(b"[" * 30_000).decode()
    with pytest.raises(TokenError, match="malformed"):
        checked(f"{part}.{part}.x", TokenKeys(lambda region, pool: None), issuers=[POOL], now_s=0.0)


def test_requests_from_before_a_limit_do_not_use_up_the_limit() -> None:
    now = [0.0]
    usage = Usage(lambda: now[0])
    for _ in range(1000):
        assert usage.take("p", "a", throttle={}, quota={}) is None
    limit = {"rateLimit": 10, "burstLimit": 5}
    now[0] = 1.0
    assert usage.take("p", "a", throttle=limit, quota={}) is None
    now[0] = 0.5  # the clock was set back
    assert [usage.take("p", "a", throttle=limit, quota={}) for _ in range(5)] == [*[None] * 4, Refusal.THROTTLED]
