"""Asks the authorizer of an HTTP API's route whether a request may call it.

Source: API Gateway developer guide, "Control access to HTTP APIs with AWS Lambda authorizers", "Control access to HTTP
APIs with JWT authorizers" and "Control access to HTTP APIs with IAM authorization"; RFC 6750, 3, for the header
``WWW-Authenticate``.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
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
from thawd.server.emulator.api_gateway.http.calls import HttpCall, authorizer_event, value_of
from thawd.server.emulator.api_gateway.http.definitions import Fields
from thawd.server.emulator.api_gateway.http.errors import HttpError

_ANSWER_S = 10.0
_BEARER = re.compile(r"^Bearer\s+", re.IGNORECASE)


def authorize(call: HttpCall, services: ApiServices) -> None:
    """Check that a request may call its route. The authorizer's answer about the caller is added to the call.

    Raises:
        HttpError: the caller may not call the route, or the authorizer failed.
    """
    kind = call.route.get("authorizationType") or "NONE"
    if kind == "NONE":
        return
    if kind == "AWS_IAM":
        _require_signature(call)
        return
    authorizer = call.definition.authorizers.get(call.route.get("authorizerId") or "")
    if authorizer is None:
        raise HttpError(500, reason="the route names an authorizer that does not exist")
    if kind == "JWT":
        _require_token(call, authorizer, services)
    else:
        _ask_function(call, authorizer, services)


def _require_signature(call: HttpCall) -> None:
    """Check that the request is signed. The integration does not get the signature."""
    signer = call.request.signer
    if not signer or "error" in signer:
        raise HttpError(403)
    call.authorizer = {"iam": signer}
    kept = [pair for pair in call.request.headers if pair[0] not in ("authorization", "x-amz-security-token")]
    call.request = replace(call.request, headers=kept)


def _require_token(call: HttpCall, authorizer: Fields, services: ApiServices) -> None:
    sources = _sources(authorizer) or ["$request.header.Authorization"]
    token = _BEARER.sub("", value_of(sources[0].removeprefix("$"), call) or "").strip()
    if not token:
        raise HttpError(401, headers=[("www-authenticate", "Bearer")])
    settings = authorizer.get("jwtConfiguration") or {}
    wanted = call.route.get("authorizationScopes") or []
    try:
        issuers = [settings.get("issuer") or ""]
        claims = json_web_tokens.checked(token, services.token_keys, issuers=issuers, now_s=time.time())
        json_web_tokens.require_audience(claims, settings.get("audience") or [])
        scopes = json_web_tokens.scopes_of(claims)
        json_web_tokens.require_scope(scopes, wanted)
    except json_web_tokens.TokenError as error:
        said = f'Bearer scope="{" ".join(wanted)}" error="{error.code}" error_description="{error}"'
        status = 403 if error.code == "insufficient_scope" else 401
        raise HttpError(status, headers=[("www-authenticate", said.replace("\n", " "))]) from error
    call.authorizer = {"jwt": {"claims": json_web_tokens.as_texts(claims), "scopes": scopes if wanted else None}}


def _sources(authorizer: Fields) -> list[str]:
    given = authorizer.get("identitySource") or []
    return [one.strip() for one in (given.split(",") if isinstance(given, str) else given) if one.strip()]


def _ask_function(call: HttpCall, authorizer: Fields, services: ApiServices) -> None:
    identity = [value_of(source.removeprefix("$"), call) for source in _sources(authorizer)]
    if not all(identity):
        raise HttpError(401)
    values = [value or "" for value in identity]
    function = function_in(with_variables(authorizer.get("authorizerUri") or "", call.variables))
    if function is None:
        raise HttpError(500, reason="the authorizer's URI names no function")
    stage, key = (call.api_id, call.stage), (function, json.dumps(authorizer, sort_keys=True), *values)
    kept = services.cache.find(stage, key) if values else None
    asked_s = services.cache.now_s()
    answer = _answer(call, authorizer, function, values, services) if kept is None else kept
    is_allowed = _allows(answer, authorizer, call)
    if kept is None and values:
        ttl_s = float(authorizer.get("authorizerResultTtlInSeconds") or 0)
        services.cache.keep(stage, key, answer, ttl_s=ttl_s, asked_s=asked_s)
    if not is_allowed:
        raise HttpError(403)
    call.authorizer = {"lambda": answer.get("context")}
    version = authorizer.get("authorizerPayloadFormatVersion") or "2.0"
    if version == "1.0" and "principalId" in answer:
        call.authorizer = {"lambda": {**(answer.get("context") or {}), "principalId": answer["principalId"]}}


def _answer(call: HttpCall, authorizer: Fields, function: str, identity: list[str], services: ApiServices) -> Fields:
    event = authorizer_event(call, authorizer.get("authorizerPayloadFormatVersion") or "2.0", identity)
    trace = call.request.header("x-amzn-trace-id") or ""
    try:
        made = services.functions.invoke(function, json.dumps(event).encode(), timeout_s=_ANSWER_S, trace=trace)
    except (InvocationFailed, InvocationTimeout) as error:
        raise HttpError(500, reason=str(error)) from error
    if made.is_error:
        raise HttpError(500, reason=f"the authorizer {function} failed")
    answer: Any = json.loads(made.payload)
    if not isinstance(answer, dict) or not isinstance(answer.get("context") or {}, dict):
        raise HttpError(500, reason="the authorizer's answer is not an object, or its context is none")
    return answer


def _allows(answer: Fields, authorizer: Fields, call: HttpCall) -> bool:
    if authorizer.get("enableSimpleResponses"):
        allowed = answer.get("isAuthorized")
        if not isinstance(allowed, bool):
            raise HttpError(500, reason="the authorizer's answer has no boolean isAuthorized")
        return allowed
    try:
        return verdict(answer.get("policyDocument"), call.arn()) is Verdict.ALLOWED
    except PolicyError as error:
        raise HttpError(500, reason=f"the authorizer's answer is malformed: {error}") from error
