"""Who may call an API: policies, kept answers of authorizers, tokens, usage plans, request validators.

Source: API Gateway developer guide, "Use API Gateway Lambda authorizers", "Control access to HTTP APIs with JWT
authorizers", "Usage plans and API keys for REST APIs" and "Request validation for REST APIs"; IAM user guide, "Policy
evaluation logic". The messages of request validators were recorded on AWS.
"""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from tests.unit.rest_calls import call, definition
from thawd.server.emulator.api_gateway import authorizer_cache
from thawd.server.emulator.api_gateway.authorizer_cache import AuthorizerCache
from thawd.server.emulator.api_gateway.authorizer_policies import PolicyError, Verdict, verdict
from thawd.server.emulator.api_gateway.json_web_tokens import (
    TokenError,
    TokenKeys,
    as_texts,
    checked,
    require_audience,
    require_scope,
    scopes_of,
)
from thawd.server.emulator.api_gateway.rest.gateway_responses import GatewayError
from thawd.server.emulator.api_gateway.rest.request_checks import require_api_key, schema_errors, validate
from thawd.server.emulator.api_gateway.usage_plans import Refusal, Usage

ARN = "arn:aws:execute-api:us-east-1:000000000000:abc/dev/GET/pets/7"


def statement(effect: str, resource: Any, action: Any = "execute-api:Invoke", **more: Any) -> dict[str, Any]:
    return {"Effect": effect, "Action": action, "Resource": resource, **more}


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([statement("Allow", "*")], Verdict.ALLOWED),
        (statement("Allow", ARN), Verdict.ALLOWED),
        ([statement("Allow", ["other", "arn:aws:execute-api:*:*:abc/dev/*/pets/?"])], Verdict.ALLOWED),
        ([statement("Allow", "*", ["execute-api:*"])], Verdict.ALLOWED),
        ([statement("Allow", "*", "*")], Verdict.ALLOWED),
        ([statement("Allow", "*", "s3:GetObject")], Verdict.NOT_ALLOWED),
        ([statement("Allow", ARN[:-1])], Verdict.NOT_ALLOWED),
        ([statement("Allow", "other"), statement("Allow", ARN)], Verdict.ALLOWED),
        ([statement("Allow", "other"), statement("Deny", ARN)], Verdict.DENIED),
        ([statement("Allow", "*"), statement("Deny", ARN)], Verdict.DENIED),
        ([statement("Deny", ARN), statement("Allow", "*")], Verdict.DENIED),
        ([statement("Allow", "*", Condition={"Bool": {"a": "true"}})], Verdict.NOT_ALLOWED),
        ([statement("Allow", "*"), statement("Deny", "*", Condition={"Bool": {"a": "true"}})], Verdict.DENIED),
    ],
)
def test_an_explicit_deny_wins_and_what_nothing_allows_is_not_allowed(statements: Any, expected: Verdict) -> None:
    assert verdict({"Statement": statements}, ARN) is expected


@pytest.mark.parametrize(
    "document",
    [
        None,
        "text",
        {},
        {"Statement": [{"Effect": "Maybe", "Action": "*", "Resource": "*"}]},
        {"Statement": [{"Effect": "Allow", "Action": "*"}]},
        {"Statement": [statement("Allow", [1])]},
        {"Statement": [statement("Allow", ["*", 1])]},
        {"Statement": [statement("Allow", "*", NotResource="x")]},
        {"Statement": [{"Effect": "Allow", "NotAction": "*", "Action": "*", "Resource": "*"}]},
    ],
)
def test_a_malformed_policy_is_an_error_and_allows_nothing(document: Any) -> None:
    with pytest.raises(PolicyError):
        verdict(document, ARN)


def test_an_answer_is_kept_for_its_identity_stage_and_time_and_for_nothing_else() -> None:
    now = [0.0]
    cache = AuthorizerCache(lambda: now[0])
    dev, prod = ("abc", "dev"), ("abc", "prod")
    cache.keep(dev, ("a", "anna"), "allowed", ttl_s=10, asked_s=0.0)
    cache.keep(dev, ("a", "never"), "allowed", ttl_s=0, asked_s=0.0)
    assert cache.find(dev, ("a", "anna")) == "allowed"
    for stage, key in ((prod, ("a", "anna")), (dev, ("a", "bert")), (dev, ("b", "anna")), (dev, ("a", "never"))):
        assert cache.find(stage, key) is None
    now[0] = 10.0
    assert cache.find(dev, ("a", "anna")) is None


def test_values_of_two_identity_sources_are_not_confused_with_each_other() -> None:
    cache = AuthorizerCache(lambda: 0.0)
    cache.keep(("abc", "dev"), ("a", "x", "y,z"), "first", ttl_s=10, asked_s=0.0)
    assert cache.find(("abc", "dev"), ("a", "x,y", "z")) is None
    assert cache.find(("abc", "dev"), ("a", "y,z", "x")) is None


def test_flushing_a_stage_leaves_the_other_stages() -> None:
    cache = AuthorizerCache(lambda: 0.0)
    for stage in ("dev", "prod"):
        cache.keep(("abc", stage), ("a", "anna"), stage, ttl_s=10, asked_s=0.0)
    cache.flush(("abc", "dev"))
    assert (cache.find(("abc", "dev"), ("a", "anna")), cache.find(("abc", "prod"), ("a", "anna"))) == (None, "prod")


ISSUER, NOW_S = "https://issuer.example", 1_000_000.0
KEY, OTHER = (RSAKey.generate_key(2048, {"kid": "k"}) for _ in range(2))


class Issuer:
    """An issuer's documents; counts how often its keys are fetched."""

    def __init__(self) -> None:
        self.keys = [KEY.as_dict(private=False)]
        self.fetched = 0

    def __call__(self, url: str) -> Any:
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return {"jwks_uri": f"{ISSUER}/keys"}
        assert url == f"{ISSUER}/keys"
        self.fetched += 1
        return {"keys": self.keys}


def token(key: Any = KEY, algorithm: str = "RS256", **claims: Any) -> str:
    given = {"iss": ISSUER, "aud": "shop", "exp": NOW_S + 60, **claims}
    return jwt.encode({"alg": algorithm, "kid": "k"}, given, key, algorithms=[algorithm])


def claims_of(text: str) -> dict[str, Any]:
    return checked(text, TokenKeys(lambda *_: None, Issuer()), issuers=[ISSUER + "/"], now_s=NOW_S)


def test_a_token_of_the_issuer_is_accepted() -> None:
    assert claims_of(token(sub="anna"))["sub"] == "anna"


@pytest.mark.parametrize(
    "text",
    [
        token(OTHER),
        token(iss="https://other.example"),
        token(exp=NOW_S),
        token(exp="soon"),
        token(nbf=NOW_S + 1),
        token(iat=NOW_S + 1),
        token(OctKey.import_key("secret" * 8), "HS256"),
        token()[:-4] + "AAAA",
        token().rpartition(".")[0] + ".",
        "a.b",
        "",
        "nonsense",
    ],
)
def test_a_token_that_is_forged_expired_or_malformed_is_refused(text: str) -> None:
    with pytest.raises(TokenError):
        claims_of(text)


def test_an_unsigned_token_is_refused() -> None:
    head, body, _ = token().split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    for text in (f"{none}.{body}.", f"{head}.{body}."):
        with pytest.raises(TokenError):
            claims_of(text)


def test_keys_are_kept_and_fetched_again_for_an_unknown_key_but_not_for_each_token() -> None:
    now, issuer = [0.0], Issuer()
    keys = TokenKeys(lambda *_: None, issuer, lambda: now[0])
    for _ in range(3):
        keys.of(ISSUER, "k")
    assert issuer.fetched == 1
    keys.of(ISSUER, "new")
    assert issuer.fetched == 1  # too soon after the last time
    now[0] = 60.0
    keys.of(ISSUER, "new")
    keys.of(ISSUER, "newer")
    assert issuer.fetched == 2
    now[0] = 8000.0
    keys.of(ISSUER, "k")
    assert issuer.fetched == 3


@pytest.mark.parametrize(
    ("claims", "accepted"),
    [
        ({"aud": "shop"}, True),
        ({"aud": ["other", "shop"]}, True),
        ({"client_id": "shop"}, True),
        ({"aud": "other", "client_id": "shop"}, False),
        ({}, False),
    ],
)
def test_the_audience_is_aud_or_else_client_id(claims: dict[str, Any], accepted: bool) -> None:
    if accepted:
        require_audience(claims, ["shop"])
    else:
        with pytest.raises(TokenError):
            require_audience(claims, ["shop"])


def test_scopes_and_claims_are_as_events_have_them() -> None:
    assert (scopes_of({"scope": "a b"}), scopes_of({"scp": ["a", "b"]}), scopes_of({})) == (["a", "b"], ["a", "b"], [])
    assert as_texts({"exp": 5, "groups": ["a", "b"], "ok": True, "sub": "x"}) == {
        "exp": "5", "groups": "[a b]", "ok": "true", "sub": "x",
    }  # fmt: skip


def test_a_usage_plan_limits_rate_and_number_of_requests_of_each_key() -> None:
    now = [0.0]
    usage = Usage(lambda: now[0])
    limits: dict[str, Any] = {"throttle": {"rateLimit": 1.0, "burstLimit": 2}, "quota": {"limit": 4, "period": "DAY"}}
    assert [usage.take("p", "a", **limits) for _ in range(3)] == [None, None, Refusal.THROTTLED]
    assert usage.take("p", "b", **limits) is None
    now[0] = 5.0
    assert [usage.take("p", "a", **limits) for _ in range(2)] == [None, None]
    now[0] = 10.0
    assert usage.take("p", "a", **limits) is Refusal.QUOTA_EXCEEDED
    now[0] = 86_400.0
    assert usage.take("p", "a", **limits) is None


@pytest.mark.parametrize(
    ("period", "last_s", "next_s"),
    [
        ("DAY", 86_399.0, 86_400.0),
        ("WEEK", 4 * 86_400 - 1.0, 4 * 86_400.0),  # the first Monday of the epoch was its fifth day
        ("MONTH", 31 * 86_400 - 1.0, 31 * 86_400.0),
    ],
)
def test_a_quota_begins_anew_with_its_period(period: str, last_s: float, next_s: float) -> None:
    now = [0.0]
    usage = Usage(lambda: now[0])
    quota = {"limit": 1, "period": period}
    assert usage.take("p", "a", throttle={}, quota=quota) is None
    now[0] = last_s
    assert usage.take("p", "a", throttle={}, quota=quota) is Refusal.QUOTA_EXCEEDED
    now[0] = next_s
    assert usage.take("p", "a", throttle={}, quota=quota) is None


def backend(*, stage: str = "dev", is_enabled: bool = True, in_plan: bool = True) -> Any:
    plan = SimpleNamespace(id="p", api_stages=[{"apiId": "abc", "stage": stage}], throttle={}, quota={})
    key = SimpleNamespace(id="k", value="secret", enabled=is_enabled)
    return SimpleNamespace(
        keys={"k": key}, usage_plans={"p": plan}, usage_plan_keys={"p": {"k": key}} if in_plan else {}
    )


@pytest.mark.parametrize(
    ("sent", "options", "is_accepted"),
    [
        ("secret", {}, True),
        ("other", {}, False),
        (None, {}, False),
        ("", {}, False),
        ("secret", {"stage": "prod"}, False),
        ("secret", {"is_enabled": False}, False),
        ("secret", {"in_plan": False}, False),
    ],
)
def test_an_api_key_must_be_enabled_and_in_a_usage_plan_of_the_stage(
    sent: str | None, options: dict[str, Any], is_accepted: bool
) -> None:
    headers = [] if sent is None else [("x-api-key", sent)]
    made = call(headers=headers, method_fields={"apiKeyRequired": True})
    if is_accepted:
        require_api_key(made, backend(**options), Usage())
        assert made.context["identity"]["apiKeyId"] == "k"
    else:
        with pytest.raises(GatewayError) as refused:
            require_api_key(made, backend(**options), Usage())
        assert refused.value.kind == "INVALID_API_KEY"


def test_the_authorizer_may_name_the_api_key_and_then_the_header_does_not_count() -> None:
    deployed = definition(settings={"apiKeySource": "AUTHORIZER"})
    made = call(deployed=deployed, method_fields={"apiKeyRequired": True}, headers=[("x-api-key", "secret")])
    with pytest.raises(GatewayError):
        require_api_key(made, backend(), Usage())
    made.context["authorizer"] = {"usageIdentifierKey": "secret"}
    require_api_key(made, backend(), Usage())


SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "number"}}}


def validated(body: bytes = b'{"a": 1}', **options: Any) -> None:
    deployed = definition(
        validators={"v": {"validateRequestBody": True, "validateRequestParameters": True}},
        models={"m": json.dumps(SCHEMA)},
    )
    fields = {
        "requestValidatorId": "v",
        "requestModels": {"application/json": "m"},
        "requestParameters": {
            "method.request.querystring.qs1": True,
            "method.request.header.x-header-param": True,
            "method.request.path.issuer": True,
            "method.request.header.optional": False,
        },
    }
    validate(call(method="POST", body=body, deployed=deployed, method_fields=fields, **options))


COMPLETE: dict[str, Any] = {
    "query": "qs1=1",
    "headers": [("x-header-param", "1")],
    "parameters": {"issuer": "1"},
}


def test_missing_required_parameters_are_named_as_on_aws() -> None:
    with pytest.raises(GatewayError) as refused:
        validated(parameters={})
    assert refused.value.message == "Missing required request parameters: [x-header-param, issuer, qs1]"
    validated(**COMPLETE)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"a": "text"}', b"[]", b"not json"])
def test_a_body_that_does_not_fit_its_model_is_refused(body: bytes) -> None:
    with pytest.raises(GatewayError) as refused:
        validated(body, **COMPLETE)
    assert (refused.value.status, refused.value.message) == (400, "Invalid request body")


def test_a_body_of_a_type_without_a_model_is_not_checked() -> None:
    headers = [*COMPLETE["headers"], ("content-type", "text/plain")]
    validated(b"anything", **{**COMPLETE, "headers": headers})


def test_schemas_refer_to_other_models_of_the_api() -> None:
    link = {"$ref": "https://apigateway.amazonaws.com/restapis/abc/models/item"}
    models = {"item": json.dumps(SCHEMA)}
    schema = {"type": "array", "items": link}
    assert schema_errors(schema, [{"a": 1}], models) == []
    assert len(schema_errors(schema, [{"a": 1}, {}], models)) == 1


def test_a_rate_without_a_burst_is_its_own_burst_and_earns_requests_by_time() -> None:
    now = [100.0]
    usage = Usage(lambda: now[0])
    throttle = {"rateLimit": 2.0}
    assert [usage.take("p", "a", throttle=throttle, quota={}) for _ in range(3)] == [None, None, Refusal.THROTTLED]
    now[0] = 100.5
    assert [usage.take("p", "a", throttle=throttle, quota={}) for _ in range(2)] == [None, Refusal.THROTTLED]


def test_the_offset_of_a_quota_counts_as_used() -> None:
    usage = Usage(lambda: 0.0)
    quota = {"limit": 2, "offset": 1, "period": "MONTH"}
    answers = [usage.take("p", "a", throttle={}, quota=quota) for _ in range(2)]
    assert answers == [None, Refusal.QUOTA_EXCEEDED]


def test_months_of_two_years_are_different_periods() -> None:
    now = [0.0]  # January 1970
    usage = Usage(lambda: now[0])
    quota = {"limit": 1, "period": "MONTH"}
    assert usage.take("p", "a", throttle={}, quota=quota) is None
    now[0] = 365 * 86_400.0
    assert usage.take("p", "a", throttle={}, quota=quota) is None


POOL = "https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_abc"


def test_the_keys_of_an_emulated_user_pool_are_not_fetched() -> None:
    asked = []

    def pool_keys(region: str, pool: str) -> Any:
        asked.append((region, pool))
        return {"keys": [KEY.as_dict(private=False)]}

    def fetch(url: str) -> Any:
        raise AssertionError(url)

    found = checked(token(iss=POOL), TokenKeys(pool_keys, fetch), issuers=[POOL], now_s=NOW_S)
    assert (found["iss"], asked) == (POOL, [("eu-west-1", "eu-west-1_abc")])


def test_an_issuer_whose_keys_cannot_be_fetched_accepts_no_token() -> None:
    def fetch(url: str) -> Any:
        raise OSError("no route")

    with pytest.raises(TokenError, match="cannot be fetched: no route"):
        checked(token(), TokenKeys(lambda *_: None, fetch), issuers=[ISSUER], now_s=NOW_S)


@pytest.mark.parametrize(("claims", "is_expired"), [({"exp": NOW_S}, True), ({"nbf": NOW_S + 1}, False)])
def test_an_expired_token_is_told_from_one_that_is_wrong(claims: dict[str, Any], is_expired: bool) -> None:
    with pytest.raises(TokenError) as refused:
        claims_of(token(**claims))
    assert (refused.value.is_expired, refused.value.code) == (is_expired, "invalid_token")


def test_a_route_that_wants_scopes_needs_one_of_them() -> None:
    require_scope(["a"], [])
    require_scope(["a", "b"], ["b", "c"])
    with pytest.raises(TokenError) as refused:
        require_scope(["a"], ["b"])
    assert refused.value.code == "insufficient_scope"


def test_the_oldest_answers_of_authorizers_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer_cache, "_MOST", 2)
    cache, stage = AuthorizerCache(lambda: 0.0), ("abc", "dev")
    for name in ("first", "second", "third"):
        cache.keep(stage, ("a", name), name, ttl_s=1, asked_s=0.0)
    assert [cache.find(stage, ("a", name)) for name in ("first", "second", "third")] == [None, "second", "third"]
