"""`thawd.server.emulator.api_gateway.path_templates` and `http.definitions`: which method or route serves a request.

Source: API Gateway developer guide, "Set up a proxy integration with a proxy resource" and "Create routes for HTTP APIs
in API Gateway", with its examples; the treatment of slashes and percent encoding was recorded on AWS.
"""

from __future__ import annotations

from typing import Any

import pytest

from thawd.server.emulator.api_gateway.http.definitions import HttpDefinition, route_for
from thawd.server.emulator.api_gateway.path_templates import best, matched


@pytest.mark.parametrize(
    ("template", "path", "expected"),
    [
        ("/", "/", {}),
        ("/pets", "/pets", {}),
        ("/pets", "/pets/", {}),
        ("/pets", "/cats", None),
        ("/pets/{id}", "/pets/7", {"id": "7"}),
        ("/pets/{id}", "/pets", None),
        ("/pets/{id}", "/pets/7/toys", None),
        ("/{proxy+}", "/a/b", {"proxy": "a/b"}),
        ("/{proxy+}", "/a//b", {"proxy": "a//b"}),
        ("/{proxy+}", "/a/", {"proxy": "a"}),
        ("/{proxy+}", "/", None),
        ("/{proxy+}", "/test%2Balias@gmail.com", {"proxy": "test%2Balias@gmail.com"}),
        ("/a/{b}/{c+}", "/a/1/2/3", {"b": "1", "c": "2/3"}),
    ],
)
def test_a_path_of_a_rest_api_gives_the_parameters_as_they_were_sent(
    template: str, path: str, expected: dict[str, str] | None
) -> None:
    assert matched(template, path) == expected


def test_fixed_parts_come_before_parameters_and_these_before_greedy_ones() -> None:
    templates = ["/{proxy+}", "/pets/{proxy+}", "/{kind}/{id}", "/pets/{id}", "/pets/dog"]
    found = [template for template, _ in best(templates, "/pets/dog", template_of=str)]
    assert found == ["/pets/dog", "/pets/{id}", "/pets/{proxy+}", "/{kind}/{id}", "/{proxy+}"]


def routes(*keys: str) -> HttpDefinition:
    return HttpDefinition([{"routeKey": key} for key in keys], {}, {}, None)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/pets/dog/1", ("GET /pets/dog/1", {})),
        ("GET", "/pets/dog/2", ("GET /pets/dog/{id}", {"id": "2"})),
        ("GET", "/pets/cat/1", ("GET /pets/{proxy+}", {"proxy": "cat/1"})),
        ("POST", "/pets/dog/1", ("ANY /{proxy+}", {"proxy": "pets/dog/1"})),
        ("POST", "/test/5", ("ANY /{proxy+}", {"proxy": "test/5"})),
        ("GET", "/a%20b", ("ANY /{proxy+}", {"proxy": "a b"})),
        ("PUT", "/", ("$default", {})),
    ],
)
def test_the_most_specific_route_serves_a_request_to_an_http_api(
    method: str, path: str, expected: tuple[str, dict[str, str]]
) -> None:
    definition = routes(
        "GET /pets/dog/1", "GET /pets/dog/{id}", "GET /pets/{proxy+}", "ANY /{proxy+}", "$default"
    )  # the guide's example
    found = route_for(definition, method, path)
    assert found is not None
    assert (found[0]["routeKey"], found[1]) == expected


def test_the_route_of_the_method_comes_before_any_and_without_a_route_there_is_none() -> None:
    definition = routes("ANY /x", "GET /x")
    found: Any = route_for(definition, "GET", "/x")
    assert found[0]["routeKey"] == "GET /x"
    assert route_for(definition, "GET", "/y") is None
    assert route_for(definition, "GET", "/x/") is None
