"""Changes the requests and responses of an HTTP API's integrations, as its parameter mappings say. No side effects.

Source: API Gateway developer guide, "Transform API requests and responses for HTTP APIs in API Gateway".
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from thawd.gateway.aws.api_messages import Headers
from thawd.server.emulator.api_gateway.http.calls import HttpCall, filled
from thawd.server.emulator.api_gateway.integration_requests import EndpointAnswer, OutgoingRequest


def change_request(request: OutgoingRequest, mappings: Mapping[str, str], call: HttpCall) -> None:
    """Apply the mappings of an integration's request, such as ``append:header.x`` and ``overwrite:path``."""
    for key, expression in mappings.items():
        action, _, target = key.partition(":")
        place, _, name = target.partition(".")
        value = filled(expression, call)
        if place == "header":
            request.headers = _changed(request.headers, action, name, value)
        elif place == "querystring":
            pairs = [(one, value) for one, values in request.query.items() for value in values]
            request.query = {}
            for one, text in _changed(pairs, action, name, value, is_exact=True):
                request.query.setdefault(one, []).append(text)
        elif place == "path":
            parts = urlsplit(request.url)
            request.url = urlunsplit(parts._replace(path=value if value.startswith("/") else f"/{value}"))


def changed_response(
    answer: EndpointAnswer, mappings: Mapping[str, Mapping[str, str]], call: HttpCall
) -> tuple[int, Headers]:
    """Status and headers of an integration's answer, changed as the mappings for its status say."""
    status, headers = answer.status, list(answer.headers)
    received = answer.by_name()
    for key, expression in (mappings.get(str(answer.status)) or {}).items():
        action, _, target = key.partition(":")
        place, _, name = target.partition(".")
        value = _of_response(expression, received, call)
        if place == "header":
            headers = _changed(headers, action, name, value)
        elif place == "statuscode" and value.isdigit():
            status = int(value)
    return status, headers


def _of_response(expression: str, headers: Mapping[str, list[str]], call: HttpCall) -> str:
    prefix = "$response.header."
    if expression.startswith(prefix):
        return ",".join(headers.get(expression.removeprefix(prefix).lower()) or [])
    return filled(expression, call)


def _changed(pairs: Headers, action: str, name: str, value: str, *, is_exact: bool = False) -> Headers:
    def is_named(one: str) -> bool:
        return one == name if is_exact else one.lower() == name.lower()

    if action == "append":
        return [*pairs, (name, value)]
    others = [pair for pair in pairs if not is_named(pair[0])]
    return others if action == "remove" else [*others, (name, value)]
