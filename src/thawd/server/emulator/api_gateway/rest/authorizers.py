"""Asks the authorizer of a REST API's method whether a request may call it.

Source: API Gateway developer guide, "Use API Gateway Lambda authorizers" with "Input to" and "Output from an API
Gateway Lambda authorizer"; "Control access to REST APIs using Amazon Cognito user pools as an authorizer"; "Control
access to a REST API with IAM permissions". The bodies of refusals were recorded on AWS.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from thawd.server.emulator.api_gateway import json_web_tokens
from thawd.server.emulator.api_gateway.api_services import ApiServices
from thawd.server.emulator.api_gateway.authorizer_policies import PolicyError, Verdict, verdict
from thawd.server.emulator.api_gateway.function_invocations import (
    InvocationFailed,
    InvocationTimeout,
    function_in,
    with_variables,
)
from thawd.server.emulator.api_gateway.rest.calls import RestCall
from thawd.server.emulator.api_gateway.rest.definitions import Fields
from thawd.server.emulator.api_gateway.rest.gateway_responses import GatewayError
from thawd.server.emulator.api_gateway.rest.parameter_mapping import value_of
from thawd.server.emulator.api_gateway.rest.proxy_events import request_authorizer_event

_TTL_S = 300
_ANSWER_S = 30.0
_BEARER = re.compile(r"^Bearer\s+", re.IGNORECASE)


def authorize(call: RestCall, services: ApiServices) -> None:
    """Check that a request may call its method. The authorizer's answer about the caller is added to ``$context``.

    Raises:
        GatewayError: the request may not call it, or the authorizer failed.
    """
    kind = call.method.get("authorizationType") or "NONE"
    if kind == "NONE":
        return
    if kind == "AWS_IAM":
        _require_signature(call)
        return
    authorizer = call.stage.definition.authorizers.get(call.method.get("authorizerId") or "")
    if authorizer is None:
        raise GatewayError(
            "AUTHORIZER_CONFIGURATION_ERROR", reason="the method names an authorizer that does not exist"
        )
    if kind == "COGNITO_USER_POOLS":
        _require_pool_token(call, authorizer, services)
        return
    _ask_function(call, authorizer, services)


def _require_signature(call: RestCall) -> None:
    """Check that the request is signed. As on AWS, the integration does not get the signature."""
    signer = call.request.signer
    if not signer:
        raise GatewayError("MISSING_AUTHENTICATION_TOKEN")
    if "error" in signer:
        raise GatewayError("INVALID_SIGNATURE", signer["error"])
    call.context["identity"] |= {
        "accessKey": signer["accessKey"],
        "accountId": signer["accountId"],
        "caller": signer["callerId"],
        "user": signer["userId"],
        "userArn": signer["userArn"],
    }
    for name in ("Authorization", "X-Amz-Security-Token"):
        call.headers.pop(name, None)


# User pools of Cognito


def _require_pool_token(call: RestCall, authorizer: Fields, services: ApiServices) -> None:
    source = (authorizer.get("identitySource") or "method.request.header.Authorization").strip()
    token = _BEARER.sub("", str(value_of(source, call) or "")).strip()
    if not token:
        raise GatewayError("UNAUTHORIZED")
    issuers = []
    for arn in authorizer.get("providerARNs") or []:
        _, _, _, region, _, pool = arn.split(":", 5)
        issuers.append(f"https://cognito-idp.{region}.amazonaws.com/{pool.removeprefix('userpool/')}")
    try:
        claims = json_web_tokens.checked(token, services.token_keys, issuers=issuers, now_s=time.time())
    except json_web_tokens.TokenError as error:
        message = "The incoming token has expired" if error.is_expired else None
        raise GatewayError("UNAUTHORIZED", message, reason=str(error)) from error
    wanted = call.method.get("authorizationScopes") or []
    if not wanted and claims.get("token_use") == "access":
        raise GatewayError("UNAUTHORIZED", reason="the token is an access token, and the method has no scopes")
    if wanted and not set(wanted) & set(json_web_tokens.scopes_of(claims)):
        raise GatewayError("UNAUTHORIZED", reason="the token has none of the method's scopes")
    call.context["authorizer"] = {"claims": json_web_tokens.as_texts(claims)}


# Functions


def _ask_function(call: RestCall, authorizer: Fields, services: ApiServices) -> None:
    identity = _token(call, authorizer) if authorizer.get("type") == "TOKEN" else _identity(call, authorizer)
    ttl = authorizer.get("authorizerResultTtlInSeconds")
    ttl_s = _TTL_S if ttl is None else int(ttl)
    function = function_in(with_variables(authorizer.get("authorizerUri") or "", call.stage.variables))
    if function is None:
        raise GatewayError("AUTHORIZER_CONFIGURATION_ERROR", reason="the authorizer's URI names no function")
    stage = (call.stage.api_id, call.stage.name)
    key = (call.stage.deployment_id, function, json.dumps(authorizer, sort_keys=True), *identity)
    kept = services.cache.find(stage, key) if identity else None
    asked_s, begun_s = services.cache.now_s(), time.monotonic()
    answer = _answer(call, authorizer, function, identity, services) if kept is None else kept
    latency_ms = int((time.monotonic() - begun_s) * 1000) if kept is None else 0
    try:
        said = verdict(answer["policyDocument"], call.method_arn())
    except PolicyError as error:
        raise GatewayError("AUTHORIZER_CONFIGURATION_ERROR", reason=str(error)) from error
    if kept is None and identity:
        services.cache.keep(stage, key, answer, ttl_s=ttl_s, asked_s=asked_s)
    if said is not Verdict.ALLOWED:
        explicit = " with an explicit deny" if said is Verdict.DENIED else ""
        raise GatewayError("ACCESS_DENIED", f"User is not authorized to access this resource{explicit}")
    call.context["authorizer"] = {
        **{name: _as_text(value) for name, value in (answer.get("context") or {}).items()},
        "principalId": answer["principalId"],
        "integrationLatency": latency_ms,
    }
    if "usageIdentifierKey" in answer:
        call.context["authorizer"]["usageIdentifierKey"] = answer["usageIdentifierKey"]


def _token(call: RestCall, authorizer: Fields) -> tuple[str, ...]:
    source = (authorizer.get("identitySource") or "method.request.header.Authorization").strip()
    token = value_of(source, call)
    pattern = authorizer.get("identityValidationExpression")
    if not token or (pattern and not re.fullmatch(pattern, token)):
        raise GatewayError("UNAUTHORIZED")
    return (str(token),)


def _identity(call: RestCall, authorizer: Fields) -> tuple[str, ...]:
    sources = [one.strip() for one in (authorizer.get("identitySource") or "").split(",") if one.strip()]
    values = [value_of(source, call) for source in sources]
    if not all(values):
        raise GatewayError("UNAUTHORIZED")
    return tuple(json.dumps(value) for value in values)


def _answer(
    call: RestCall, authorizer: Fields, function: str, identity: tuple[str, ...], services: ApiServices
) -> Fields:
    """Invoke the authorizer's function, check its answer, and return the answer."""
    if authorizer.get("type") == "TOKEN":
        event = {"type": "TOKEN", "methodArn": call.method_arn(), "authorizationToken": identity[0]}
    else:
        event = request_authorizer_event(call)
    try:
        made = services.functions.invoke(
            function, json.dumps(event).encode(), timeout_s=_ANSWER_S, trace=call.header("x-amzn-trace-id") or ""
        )
    except (InvocationFailed, InvocationTimeout) as error:
        raise GatewayError("AUTHORIZER_FAILURE", reason=str(error)) from error
    answer = json.loads(made.payload)
    if made.is_error:
        if isinstance(answer, dict) and answer.get("errorMessage") == "Unauthorized":
            raise GatewayError("UNAUTHORIZED")
        raise GatewayError("AUTHORIZER_FAILURE", reason=f"the authorizer {function} failed")
    return _checked(answer)


def _checked(answer: Any) -> Fields:
    problem = None
    if not isinstance(answer, dict):
        problem = "it is not an object"
    elif not isinstance(answer.get("principalId"), str):
        problem = "principalId is missing or no text"
    elif "policyDocument" not in answer:
        problem = "policyDocument is missing"
    elif not isinstance(answer.get("context") or {}, dict):
        problem = "context is not an object"
    elif any(isinstance(value, dict | list) for value in (answer.get("context") or {}).values()):
        problem = "context has an object or a list; only texts, numbers and booleans are allowed"
    if problem:
        raise GatewayError("AUTHORIZER_CONFIGURATION_ERROR", reason=f"the authorizer's answer is malformed: {problem}")
    made: Fields = answer
    return made


def _as_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, bool | int | float) else value
