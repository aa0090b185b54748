"""Calls of REST APIs for tests."""

from __future__ import annotations

from typing import Any

from thawd.gateway.aws.api_messages import ApiRequest
from thawd.server.emulator.api_gateway.rest.calls import RestCall, RestStage, call_of
from thawd.server.emulator.api_gateway.rest.definitions import RestDefinition

NOW_S = 1_700_000_000.0


def definition(**fields: Any) -> RestDefinition:
    """A definition with nothing in it but `fields`."""
    empty: dict[str, Any] = {
        "resources": {},
        "authorizers": {},
        "gateway_responses": {},
        "models": {},
        "validators": {},
        "settings": {},
    }
    return RestDefinition(**{**empty, **fields})


def call(
    path: str = "/pets/7",
    *,
    resource: str = "/pets/{id}",
    parameters: dict[str, str] | None = None,
    method: str = "GET",
    query: str = "",
    headers: list[tuple[str, str]] | None = None,
    body: bytes = b"",
    integration: dict[str, Any] | None = None,
    method_fields: dict[str, Any] | None = None,
    variables: dict[str, str] | None = None,
    base_path: str | None = None,
    deployed: RestDefinition | None = None,
) -> RestCall:
    """A call of a method, by default of ``/pets/{id}`` in the stage ``dev`` of the API ``abc``."""
    request = ApiRequest(
        "abc",
        in_host=True,
        method=method,
        path=f"/dev{path}",
        sent_path=f"/dev{path}",
        query=query,
        headers=[("host", "abc.execute-api.localhost:8350"), *(headers or [])],
        body=body,
    )
    stage = RestStage("abc", "dev", "dep1", variables or {}, deployed or definition())
    made = call_of(request, stage, path=path, base_path=base_path, now_s=NOW_S)
    made.resource = {"id": "res1", "path": resource, "methods": {}}
    made.method = {**(method_fields or {}), "methodIntegration": integration or {}}
    made.path_parameters = {"id": "7"} if parameters is None else parameters
    made.context |= {"resourceId": "res1", "resourcePath": resource}
    return made
