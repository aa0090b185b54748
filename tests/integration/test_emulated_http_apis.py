"""`thawd up --aws`: HTTP APIs that were made with API Gateway's own API answer and reach functions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.clients import client_of
from tests.integration.apis import CODE, FUNCTIONS, Answer, arn_of, request, uri_of
from tests.integration.conftest import Project, Running
from tests.integration.receiving import receiving


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("http"))
    project.code(CODE)
    project.config("".join(f'[functions.{name}]\nhandler = "app.{name}"\n' for name in FUNCTIONS))
    with project.up("--aws") as served:
        yield served


class HttpApi:
    """An HTTP API that a test makes, with a stage that is deployed automatically."""

    def __init__(self, running: Running, *, stage: str | None = "$default", **settings: Any) -> None:
        self.url = running.url
        self.client = client_of(running.url, "apigatewayv2")
        made = self.client.create_api(Name="test", ProtocolType="HTTP", **settings)
        self.id, self.endpoint = made["ApiId"], made["ApiEndpoint"]
        if stage:
            self.client.create_stage(ApiId=self.id, StageName=stage, AutoDeploy=True)

    def route(self, key: str, function: str = "echo", *, version: str = "2.0", **settings: Any) -> str:
        """Make a route with an integration of a function; returns the integration's id."""
        made = self.client.create_integration(
            ApiId=self.id, IntegrationType="AWS_PROXY", IntegrationUri=arn_of(function), PayloadFormatVersion=version
        )["IntegrationId"]
        self.client.create_route(ApiId=self.id, RouteKey=key, Target=f"integrations/{made}", **settings)
        return str(made)

    def get(self, path: str, **options: Any) -> Answer:
        """Request a path."""
        return request(self.url, path, host=f"{self.id}.execute-api.localhost", **options)


def test_a_route_passes_payload_format_2_0_to_the_function(running: Running) -> None:
    api = HttpApi(running)
    api.client.update_stage(ApiId=api.id, StageName="$default", StageVariables={"color": "red"})
    api.route("POST /items/{id}")
    answer = api.get("/items/a%20b?x=1&x=2", method="POST", body=b"{}", Content_Type="application/json", Cookie="a=1")
    event = answer.json
    assert "apigw-requestid" in answer.headers
    assert (event["version"], event["routeKey"], event["rawPath"]) == ("2.0", "POST /items/{id}", "/items/a b")
    assert (event["pathParameters"], event["queryStringParameters"]) == ({"id": "a b"}, {"x": "1,2"})
    assert (event["cookies"], event["body"], event["stageVariables"]) == (["a=1"], "{}", {"color": "red"})
    context = event["requestContext"]
    assert (context["apiId"], context["stage"], context["domainPrefix"]) == (api.id, "$default", api.id)
    assert context["requestId"] == answer.headers["apigw-requestid"]


def test_quick_create_makes_an_api_that_sends_everything_to_a_function(running: Running) -> None:
    api = HttpApi(running, stage=None, Target=arn_of("echo"))
    event = api.get("/any/path", method="PUT").json
    assert (event["routeKey"], event["rawPath"]) == ("$default", "/any/path")
    assert api.endpoint == f"{running.url}/_aws/execute-api/{api.id}"
    assert request(running.url, f"/_aws/execute-api/{api.id}/by/path").json["rawPath"] == "/by/path"


def test_the_most_specific_route_serves_a_request_and_payload_format_1_0_is_the_rest_apis(running: Running) -> None:
    api = HttpApi(running, stage="dev")
    for key in ("$default", "ANY /pets/{proxy+}", "GET /pets/{id}", "GET /pets/dog"):
        api.route(key, version="1.0" if key == "GET /pets/dog" else "2.0")
    assert api.get("/dev/pets/cat").json["routeKey"] == "GET /pets/{id}"
    assert api.get("/dev/pets/cat", method="PUT").json["routeKey"] == "ANY /pets/{proxy+}"
    other = api.get("/dev/other").json
    assert (other["routeKey"], other["rawPath"]) == ("$default", "/dev/other")
    dog = api.get("/dev/pets/dog?x=1&x=2").json
    assert (dog["version"], dog["resource"], dog["multiValueQueryStringParameters"]) == (
        "1.0",
        "/pets/dog",
        {"x": ["1", "2"]},
    )
    assert (dog["requestContext"]["stage"], dog["requestContext"]["apiId"]) == ("dev", api.id)


def test_a_stage_without_automatic_deployment_serves_its_deployment(running: Running) -> None:
    api = HttpApi(running, stage=None)
    api.route("GET /x")
    api.client.create_stage(ApiId=api.id, StageName="prod")
    assert api.get("/prod/x").json == {"message": "Not Found"}
    deployment = api.client.create_deployment(ApiId=api.id, StageName="prod")["DeploymentId"]
    api.route("GET /y")
    assert (api.get("/prod/x").status, api.get("/prod/y").status) == (200, 404)
    assert api.client.get_stage(ApiId=api.id, StageName="prod")["DeploymentId"] == deployment


def test_errors_have_the_form_of_aws(running: Running) -> None:
    api = HttpApi(running)
    api.route("GET /fails", "fails")
    integration = api.route("GET /slow", "slow")
    api.client.update_integration(ApiId=api.id, IntegrationId=integration, TimeoutInMillis=100)
    answers = [api.get(path) for path in ("/absent", "/fails", "/slow")]
    assert [(one.status, one.body) for one in answers] == [
        (404, b'{"message":"Not Found"}'),
        (500, b'{"message":"Internal Server Error"}'),
        (503, b'{"message":"Service Unavailable"}'),
    ]


def test_the_cors_configuration_answers_preflight_requests_and_decides_which_pages_get_in(running: Running) -> None:
    origin = "https://shop.example"
    api = HttpApi(running, CorsConfiguration={"AllowOrigins": [origin], "AllowMethods": ["GET"], "MaxAge": 60})
    api.route("GET /x")
    preflight = api.get("/x", method="OPTIONS", Origin=origin, Access_Control_Request_Method="GET")
    assert (preflight.status, preflight.headers["access-control-allow-methods"]) == (204, "GET")
    answer = api.get("/x", Origin=origin)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)
    refused = api.get("/x", Origin="https://other.example")
    assert (refused.status, "access-control-allow-origin" in refused.headers) == (403, False)
    closed = HttpApi(running)
    closed.route("GET /x")
    assert closed.get("/x", Origin=origin).status == 403


def test_a_simple_authorizer_decides_and_its_answers_are_kept_by_identity(running: Running) -> None:
    api = HttpApi(running)
    authorizer = api.client.create_authorizer(
        ApiId=api.id, Name="a", AuthorizerType="REQUEST", AuthorizerUri=uri_of("simple"), EnableSimpleResponses=True,
        AuthorizerPayloadFormatVersion="2.0", IdentitySource=["$request.header.X-Token"],
        AuthorizerResultTtlInSeconds=60,
    )["AuthorizerId"]  # fmt: skip
    api.route("GET /x", AuthorizationType="CUSTOM", AuthorizerId=authorizer)

    def caller(token: str) -> dict[str, str]:
        found: dict[str, str] = api.get("/x", X_Token=token).json["requestContext"]["authorizer"]["lambda"]
        return found

    first = caller("anna")
    assert (first["caller"], caller("bert")["caller"]) == ("anna", "bert")
    assert caller("anna") == first
    assert (api.get("/x", X_Token="deny").body, api.get("/x").body) == (
        b'{"message":"Forbidden"}',
        b'{"message":"Unauthorized"}',
    )


def test_an_authorizer_may_answer_with_a_policy(running: Running) -> None:
    api = HttpApi(running)
    authorizer = api.client.create_authorizer(
        ApiId=api.id, Name="a", AuthorizerType="REQUEST", AuthorizerUri=uri_of("allows"),
        AuthorizerPayloadFormatVersion="1.0", IdentitySource=["$request.header.X-Token"],
    )["AuthorizerId"]  # fmt: skip
    api.route("GET /x", AuthorizationType="CUSTOM", AuthorizerId=authorizer)
    assert api.get("/x", X_Token="anna").json["requestContext"]["authorizer"]["lambda"]["caller"] == "anna"
    assert api.get("/x", X_Token="deny").status == 403
    assert api.get("/x", X_Token="malformed").status == 500


def test_a_jwt_authorizer_accepts_the_tokens_of_its_issuer(running: Running) -> None:
    from joserfc import jwt
    from joserfc.jwk import RSAKey

    key = RSAKey.generate_key(2048, {"kid": "k"})
    api = HttpApi(running)
    with receiving() as issuer:
        issuer.answers = {
            "/.well-known/openid-configuration": json.dumps({"jwks_uri": f"{issuer.url}/keys"}).encode(),
            "/keys": json.dumps({"keys": [key.as_dict(private=False)]}).encode(),
        }
        authorizer = api.client.create_authorizer(
            ApiId=api.id, Name="a", AuthorizerType="JWT", IdentitySource=["$request.header.Authorization"],
            JwtConfiguration={"Issuer": issuer.url, "Audience": ["shop"]},
        )["AuthorizerId"]  # fmt: skip
        api.route("GET /x", AuthorizationType="JWT", AuthorizerId=authorizer, AuthorizationScopes=["read"])

        def asked(**claims: Any) -> Answer:
            given = {"iss": issuer.url, "aud": "shop", "exp": int(time.time()) + 60, "scope": "read write", **claims}
            token = jwt.encode({"alg": "RS256", "kid": "k"}, given, key, algorithms=["RS256"])
            return api.get("/x", Authorization=f"Bearer {token}")

        said = asked(sub="anna").json["requestContext"]["authorizer"]["jwt"]
        assert (said["claims"]["sub"], said["scopes"]) == ("anna", ["read", "write"])
        for wrong in ({"aud": "other"}, {"exp": 1}, {"iss": "https://other.example"}):
            refused = asked(**wrong)
            assert (refused.status, refused.body) == (401, b'{"message":"Unauthorized"}')
            assert 'error="invalid_token"' in refused.headers["www-authenticate"]
        assert asked(scope="none").status == 403
    assert api.get("/x").headers["www-authenticate"] == "Bearer"


def test_a_signed_request_is_let_in_where_the_route_requires_iam(running: Running) -> None:
    api = HttpApi(running)
    api.route("GET /x", AuthorizationType="AWS_IAM")
    path = f"/_aws/execute-api/{api.id}/x"
    signed = AWSRequest("GET", running.url + path, {})
    SigV4Auth(Credentials("test", "test"), "execute-api", "us-east-1").add_auth(signed)
    headers = {name.replace("-", "_"): value for name, value in signed.headers.items()}
    event = request(running.url, path, **headers).json
    assert event["requestContext"]["authorizer"]["iam"]["accessKey"] == "test"
    assert "authorization" not in event["headers"]
    assert request(running.url, path).json == {"message": "Forbidden"}


def test_an_http_integration_sends_the_request_to_the_endpoint_with_its_parameters_changed(running: Running) -> None:
    api = HttpApi(running)
    with receiving() as endpoint:
        endpoint.answers = {"/to/7": b'{"got": true}'}
        made = api.client.create_integration(
            ApiId=api.id, IntegrationType="HTTP_PROXY", IntegrationMethod="ANY", PayloadFormatVersion="1.0",
            IntegrationUri=f"{endpoint.url}/to/{{id}}",
            RequestParameters={"append:header.x-route": "$context.routeKey", "remove:querystring.secret": "''"},
            ResponseParameters={"200": {"overwrite:statuscode": "202"}},
        )["IntegrationId"]  # fmt: skip
        api.client.create_route(ApiId=api.id, RouteKey="ANY /from/{id}", Target=f"integrations/{made}")
        answer = api.get("/from/7?secret=1&open=2", method="POST", body=b"hello")
        assert (answer.status, answer.json) == (202, {"got": True})
        received = endpoint.got[0]
        assert (received.path, received.body) == ("/to/7?open=2", b"hello")
        assert received.headers["x-route"] == "ANY /from/{id}"
    assert api.get("/from/7").status == 503


def test_an_openapi_document_makes_an_http_api(running: Running) -> None:
    client = client_of(running.url, "apigatewayv2")
    document = {
        "openapi": "3.0.1",
        "info": {"title": "imported", "version": "1"},
        "paths": {
            "/x/{id}": {"x-amazon-apigateway-any-method": {"x-amazon-apigateway-integration": {
                "type": "aws_proxy", "uri": arn_of("echo"), "payloadFormatVersion": "2.0"}}},
            "/$default": {"x-amazon-apigateway-any-method": {"x-amazon-apigateway-integration": {
                "type": "aws_proxy", "uri": arn_of("echo"), "payloadFormatVersion": "2.0"}}},
        },
    }  # fmt: skip
    made = client.import_api(Body=json.dumps(document))
    client.create_stage(ApiId=made["ApiId"], StageName="$default", AutoDeploy=True)
    host = f"{made['ApiId']}.execute-api.localhost"
    assert request(running.url, "/x/7", host=host).json["routeKey"] == "ANY /x/{id}"
    assert request(running.url, "/else", host=host).json["routeKey"] == "$default"
