"""Checks a request to a REST API before its integration is called: API key, required parameters, body.

Source: API Gateway developer guide, "Usage plans and API keys for REST APIs in API Gateway" and "Request validation for
REST APIs in API Gateway". The messages were recorded on AWS.
"""

from __future__ import annotations

import json
from typing import Any

from thawd.server.emulator.api_gateway.rest.calls import RestCall
from thawd.server.emulator.api_gateway.rest.definitions import Fields
from thawd.server.emulator.api_gateway.rest.gateway_responses import GatewayError
from thawd.server.emulator.api_gateway.rest.parameter_mapping import value_of
from thawd.server.emulator.api_gateway.usage_plans import Refusal, Usage

_PLACES = ("header", "path", "querystring")


def require_api_key(call: RestCall, backend: Any, usage: Usage) -> None:
    """If the method requires an API key, check that the request has one whose usage plans allow it.

    Args:
        call: the call. The key is added to its ``$context``.
        backend: moto's backend, which has the keys and the usage plans.
        usage: counts requests.

    Raises:
        GatewayError: the key is missing, unknown, disabled or in no usage plan of the stage, or its limit is reached.
    """
    if not call.method.get("apiKeyRequired"):
        return
    if call.stage.definition.settings.get("apiKeySource") == "AUTHORIZER":
        value = (call.context.get("authorizer") or {}).get("usageIdentifierKey")
    else:
        value = call.header("x-api-key")
    key = next((one for one in list(backend.keys.values()) if value and one.value == value and one.enabled), None)
    plan = _plan_of(call, backend, key.id) if key is not None else None
    if key is None or plan is None:
        raise GatewayError("INVALID_API_KEY")
    call.context["identity"] |= {"apiKey": key.value, "apiKeyId": key.id}
    refusal = usage.take(plan.id, key.id, throttle=plan.throttle or {}, quota=plan.quota or {})
    if refusal is not None:
        raise GatewayError("THROTTLED" if refusal is Refusal.THROTTLED else "QUOTA_EXCEEDED")


def _plan_of(call: RestCall, backend: Any, key_id: str) -> Any:
    for plan in list(backend.usage_plans.values()):
        is_of_stage = any(
            one.get("apiId") == call.stage.api_id and one.get("stage") == call.stage.name for one in plan.api_stages
        )
        if is_of_stage and key_id in backend.usage_plan_keys.get(plan.id, {}):
            return plan
    return None


def validate(call: RestCall) -> None:
    """Check parameters and body, as the method's request validator says.

    Raises:
        GatewayError: a required parameter is missing, or the body does not fit the model.
    """
    validator = call.stage.definition.validators.get(call.method.get("requestValidatorId") or "")
    if validator is None:
        return
    if _is_true(validator.get("validateRequestParameters")):
        _require_parameters(call)
    if _is_true(validator.get("validateRequestBody")):
        _require_body(call)


def _is_true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"


def _require_parameters(call: RestCall) -> None:
    wanted = [name for name, is_needed in (call.method.get("requestParameters") or {}).items() if _is_true(is_needed)]
    places = [(name.split(".")[2], name) for name in wanted if name.count(".") > 2]
    missing = [
        name.split(".", 3)[3]
        for place, name in sorted(places, key=lambda pair: _PLACES.index(pair[0]) if pair[0] in _PLACES else 9)
        if value_of(name, call) in (None, "")
    ]
    if missing:
        raise GatewayError("BAD_REQUEST_PARAMETERS", f"Missing required request parameters: [{', '.join(missing)}]")


def _require_body(call: RestCall) -> None:
    models = call.method.get("requestModels") or {}
    name = models.get(call.content_type) or models.get("$default")
    schema = call.stage.definition.models.get(name or "")
    if schema is None:
        return
    try:
        document = json.loads(call.body_text or "{}")
    except ValueError as error:
        raise GatewayError("BAD_REQUEST_BODY", reason=f"[{error}]") from error
    problems = schema_errors(json.loads(schema), document, call.stage.definition.models)
    if problems:
        raise GatewayError("BAD_REQUEST_BODY", reason="[" + ", ".join(problems) + "]")


def schema_errors(schema: Fields, document: Any, models: dict[str, str]) -> list[str]:
    """Validate a document against a model's schema, and return the errors.

    The schema may refer to other models of the API by URL.

    Args:
        schema: JSON Schema, draft 4.
        document: the body.
        models: the schemas by name, as JSON text.
    """
    import jsonschema

    validator = jsonschema.Draft4Validator(_resolved(schema, models, ()))
    return [error.message for error in validator.iter_errors(document)]


def _resolved(schema: Any, models: dict[str, str], parents: tuple[str, ...]) -> Any:
    """Return the schema with each reference to another model replaced by that model's schema.

    A reference to an unknown model, or to a model that contains the reference, is replaced by a schema that accepts
    everything.
    """
    if isinstance(schema, list):
        return [_resolved(one, models, parents) for one in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).rpartition("/models/")[2]
    if "/models/" in str(schema.get("$ref", "")):
        if name in parents or name not in models:
            return {}
        return _resolved(json.loads(models[name]), models, (*parents, name))
    return {key: _resolved(value, models, parents) for key, value in schema.items()}
