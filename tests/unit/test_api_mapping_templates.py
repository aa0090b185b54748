"""`thawd.server.emulator.api_gateway.rest.mapping_templates` and `parameter_mapping`: what a REST API's mappings make.

Source: API Gateway developer guide, "Variables for data transformations for API Gateway" and "Parameter mapping
examples for REST APIs". How maps, lists and missing values are printed was recorded on AWS (published as snapshots of
the tests of LocalStack, `test_apigateway_common`).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.rest_calls import call
from thawd.server.emulator.api_gateway.rest.gateway_responses import GatewayError
from thawd.server.emulator.api_gateway.rest.mapping_templates import TemplateError, rendered
from thawd.server.emulator.api_gateway.rest.parameter_mapping import integration_parameters, response_headers, value_of

CONTEXT = {"requestId": "r-1", "identity": {"sourceIp": "10.0.0.1"}, "authorizer": {"principalId": "anna"}}


def text(template: str, body: str = "") -> str:
    parameters = {"path": {"id": "7"}, "querystring": {"q": "a b", "id": "q"}, "header": {"X-Name": "n"}}
    return rendered(template, body=body, parameters=parameters, context=CONTEXT, stage_variables={"color": "red"}).text


@pytest.mark.parametrize(
    ("template", "body", "expected"),
    [
        ('#set($r = $input.path("$"))$r', {"foo": "bar"}, "{foo=bar}"),
        ('#set($r = $input.path("$"))$r', [{"foo": "bar"}], '[{"foo":"bar"}]'),
        ('#set($r = $input.path("$"))$r.nested', {"nested": {"foo": "bar"}}, "{foo=bar}"),
        ('#set($r = $input.path("$"))$r.nested', {"nested": [{"foo": "bar"}]}, '[{"foo":"bar"}]'),
        ('#set($r = $input.path("$"))$r[0]', [{"foo": "bar"}], "{foo=bar}"),
        ('#set($r = $input.path("$"))$r[0]', [[{"foo": "bar"}]], '[{"foo":"bar"}]'),
        ('#set($r = $input.path("$"))$r', {"foo": [{"nested": "bar"}]}, '{foo=[{"nested":"bar"}]}'),
        ('#set($r = $input.path("$"))$r', {"bigger": "dict", "to": "test"}, "{bigger=dict, to=test}"),
        ('#set($r = $input.path("$"))$r.toString()', {"list": [{"foo": "bar"}]}, '{list=[{"foo":"bar"}]}'),
    ],
)
def test_maps_and_lists_are_printed_as_on_aws(template: str, body: Any, expected: str) -> None:
    assert text(template, json.dumps(body)) == expected


PROBE = (
    '#set($r = $input.path("$.x")){"body": $r, "nested": $r.nested, '
    '"isNull": #if( $r == $null )"true"#else"false"#end, "isEmptyString": #if( $r == "" )"true"#else"false"#end}'
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", '{"body": , "nested": , "isNull": "true", "isEmptyString": "true"}'),
        ('{"x": []}', '{"body": [], "nested": , "isNull": "false", "isEmptyString": "false"}'),
        ('{"x": null}', '{"body": , "nested": , "isNull": "true", "isEmptyString": "true"}'),
    ],
)
def test_what_a_path_does_not_find_is_null_and_empty_text(body: str, expected: str) -> None:
    assert text(PROBE, body) == expected


@pytest.mark.parametrize(
    ("template", "body", "expected"),
    [
        ("$input.body", "", "{}"),
        ("$input.body", "some raw data", "some raw data"),
        ("$input.json('$')", '{"a": [1, "é"]}', '{"a":[1,"é"]}'),
        ("$input.json('$.a')", '{"a": [1]}', "[1]"),
        ("$input.json('$.a[*].b')", '{"a": [{"b": 1}]}', "[1]"),
        ("$input.json('$.none')", "{}", '""'),
        ("$input.path('$.a')|$input.json('$.a')", "no json", '|""'),
        ("$input.path('$.a[?(@.b==1)]')", '{"a": [{"b": 1}, {"b": 2}]}', '[{"b":1}]'),
        ("$input.path('$.a.size()')", '{"a": [1]}', None),
        ("$input.path('$.a').size()", '{"a": [1, 2]}', "2"),
        ("$input.params('id')", "", "7"),
        ("$input.params('x-name')", "", "n"),
        ("$input.params('none')", "", ""),
        ("$input.params().header.get('X-Name')", "", "n"),
        ("$input.params().querystring.q", "", "a b"),
        ("$context.identity.sourceIp $context.authorizer.principalId", "", "10.0.0.1 anna"),
        ("$stageVariables.color", "", "red"),
        ('$util.escapeJavaScript("it\'s")', "", "it\\'s"),
        ("$util.escapeJavaScript($input.body)", 'a "b"\né', 'a \\"b\\"\\n\\u00E9'),
        ("$util.urlEncode($input.body)", '{"some": "value"}', "%7B%22some%22%3A+%22value%22%7D"),
        ("$util.urlDecode('a+b%2F')", "", "a b/"),
        ("$util.base64Encode('hello')", "", "aGVsbG8="),
        ("$util.base64Decode('aGVsbG8=')", "", "hello"),
        ("$util.parseJson($input.body).a.b", '{"a": {"b": 5}}', "5"),
        ("#foreach($i in $input.path('$.a'))$i.b#if($foreach.hasNext),#end#end", '{"a": [{"b": 1}, {"b": 2}]}', "1,2"),
        ("#set($m = $input.path('$'))#foreach($k in $m.keySet())$k=$m.get($k);#end", '{"a": 1, "b": 2}', "a=1;b=2;"),
        ("#foreach($e in $input.path('$').entrySet())$e.key:$e.value #end", '{"a": 1}', "a:1 "),
        ("#if($input.path('$.on'))yes#{else}no#end", '{"on": true}', "yes"),
    ],
)
def test_variables_of_templates(template: str, body: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(TemplateError):
            text(template, body)
    else:
        assert text(template, body) == expected


def test_what_a_template_overrides_is_returned_beside_its_text() -> None:
    made = rendered(
        '#set($context.responseOverride.status = 404)#set($context.requestOverride.header.x = "1")done',
        body="", parameters={"path": {}, "querystring": {}, "header": {}}, context=CONTEXT, stage_variables={},
    )  # fmt: skip
    assert (made.text, made.responseOverride["status"], made.requestOverride["header"]) == ("done", 404, {"x": "1"})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'fixed'", "fixed"),
        ("method.request.path.id", "7"),
        ("method.request.querystring.a", "2"),
        ("method.request.multivaluequerystring.a", ["1", "2"]),
        ("method.request.multivaluequerystring.b", "3"),
        ("method.request.header.x-many", "y"),
        ("method.request.multivalueheader.X-Many", "x,y"),
        ("method.request.body", '{"n": {"s": "t"}, "l": [1]}'),
        ("method.request.body.n.s", "t"),
        ("method.request.body.l[0]", 1),
        ("method.request.body.none", None),
        ("stageVariables.color", "red"),
        ("context.identity.sourceIp", "127.0.0.1"),
        ("context.authorizer.custom-claim", "c"),
        ("method.request.header.none", None),
        ("unknown", None),
    ],
)
def test_the_value_of_a_mapping_expression(expression: str, expected: Any) -> None:
    made = call(
        query="a=1&a=2&b=3",
        headers=[("x-many", "x"), ("x-many", "y")],
        body=b'{"n": {"s": "t"}, "l": [1]}',
        variables={"color": "red"},
    )
    made.context["authorizer"] = {"custom-claim": "c"}
    assert value_of(expression, made) == expected


def test_a_mapping_from_a_body_that_is_not_json_is_refused_and_raw_text_is_ignored() -> None:
    with pytest.raises(GatewayError) as refused:
        value_of("method.request.body.a", call(body=b"{not json"))
    assert (refused.value.status, refused.value.message) == (400, "Invalid JSON in request body")
    assert value_of("method.request.body.a", call(body=b"raw data")) is None


@pytest.mark.parametrize(
    ("kind", "header", "is_refused"),
    [
        ("HTTP", "Content-Length", True),
        ("HTTP", "Transfer-Encoding", True),
        ("HTTP", "Authorization", False),
        ("AWS", "Authorization", True),
        ("AWS_PROXY", "Connection", True),
        ("AWS", "X-Amz-Target", False),
    ],
)
def test_some_headers_may_not_be_mapped(kind: str, header: str, is_refused: bool) -> None:
    made = call(integration={"type": kind, "requestParameters": {f"integration.request.header.{header}": "'x'"}})
    if is_refused:
        with pytest.raises(GatewayError):
            integration_parameters(made)
    else:
        assert integration_parameters(made)["header"] == {header: "x"}


def test_headers_of_the_response_come_from_the_integrations_answer() -> None:
    parameters = {
        "method.response.header.X-One": "integration.response.header.a",
        "method.response.header.X-All": "integration.response.multivalueheader.a",
        "method.response.header.X-Body": "integration.response.body.n.s",
        "method.response.header.X-None": "integration.response.header.none",
        "method.response.header.X-Fixed": "'*'",
    }
    found = response_headers(parameters, call(), {"a": ["1", "2"]}, '{"n": {"s": [1]}}')
    assert found == {"X-One": "2", "X-All": "1,2", "X-Body": "[1]", "X-Fixed": "*"}
