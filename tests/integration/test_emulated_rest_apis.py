"""`thawd up --aws`: REST APIs that were made with API Gateway's own API answer and reach functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.clients import client_of
from tests.integration.apis import CODE, FUNCTIONS, RestApi, arn_of, request, uri_of
from tests.integration.conftest import Project, Running
from tests.integration.receiving import receiving


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("rest"))
    project.code(CODE)
    project.config("".join(f'[functions.{name}]\nhandler = "app.{name}"\n' for name in FUNCTIONS))
    with project.up("--aws") as served:
        yield served


def test_a_proxy_integration_passes_the_request_to_the_function_and_its_answer_to_the_client(running: Running) -> None:
    api = RestApi(running.url)
    api.function("/{proxy+}", "echo", method="ANY")
    deployment = api.deploy(variables={"color": "red"})
    answer = api.get("/dev/a%2Bb/c?x=1&x=2", method="POST", body=b"hello", Content_Type="text/plain", X_Name="y")
    event = answer.json
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert {"x-amzn-requestid", "x-amz-apigw-id", "x-amzn-trace-id"} <= answer.headers.keys()
    assert (event["resource"], event["path"], event["httpMethod"]) == ("/{proxy+}", "/a%2Bb/c", "POST")
    assert event["pathParameters"] == {"proxy": "a%2Bb/c"}
    assert event["multiValueQueryStringParameters"] == {"x": ["1", "2"]}
    assert (event["body"], event["isBase64Encoded"], event["stageVariables"]) == ("hello", False, {"color": "red"})
    assert event["headers"]["X-Name"] == "y"
    context = event["requestContext"]
    assert (context["path"], context["stage"], context["apiId"]) == ("/dev/a%2Bb/c", "dev", api.id)
    assert (context["deploymentId"], context["requestId"]) == (deployment, answer.headers["x-amzn-requestid"])


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("/dev/x", "{id}.execute-api.localhost"),
        ("/dev/x", "{id}.execute-api.us-east-1.localhost"),
        ("/dev/x", "{id}.execute-api.us-east-1.amazonaws.com"),
        ("/_aws/execute-api/{id}/dev/x", None),
        ("/restapis/{id}/dev/_user_request_/x", None),
    ],
)
def test_an_api_is_reached_by_each_form_of_its_address(running: Running, address: str, host: str | None) -> None:
    api = RestApi(running.url)
    api.function("/x", "echo")
    api.deploy()
    answer = request(running.url, address.format(id=api.id), host=host and host.format(id=api.id))
    assert (answer.status, answer.json["path"]) == (200, "/x")


def test_a_stage_serves_what_was_deployed_and_not_what_was_changed_since(running: Running) -> None:
    api = RestApi(running.url)
    api.function("/x", "echo")
    api.deploy(variables={"kept": "yes"})
    api.function("/y", "echo")
    assert api.get("/dev/y").json == {"message": "Missing Authentication Token"}
    api.deploy()
    assert api.get("/dev/y").json["stageVariables"] == {"kept": "yes"}


def test_what_no_method_or_stage_serves_is_refused_as_on_aws(running: Running) -> None:
    api = RestApi(running.url)
    api.function("/x", "echo", method="POST")
    api.deploy()
    for answer in (api.get("/dev/x"), api.get("/dev/nothing")):
        assert (answer.status, answer.body) == (403, b'{"message":"Missing Authentication Token"}')
        assert answer.headers["x-amzn-errortype"] == "MissingAuthenticationTokenException"
    absent = api.get("/prod/x")
    assert (absent.status, absent.body) == (403, b'{"message":"Forbidden"}')
    assert request(running.url, "/_aws/execute-api/absent/dev/x").status == 403


def test_functions_that_fail_answer_malformed_or_are_slow_give_502_and_504(running: Running) -> None:
    api = RestApi(running.url)
    api.function("/fails", "fails")
    api.function("/answer", "answer", method="POST")
    api.function("/absent", "absent")
    api.method("/slow", {"type": "AWS_PROXY", "uri": uri_of("slow"), "timeoutInMillis": 100})
    api.deploy()
    wrong = api.get("/dev/answer", method="POST", body=json.dumps({"statusCode": 200, "wrong": 1}).encode())
    for answer in (api.get("/dev/fails"), wrong):
        assert (answer.status, answer.body) == (502, b'{"message": "Internal server error"}')
        assert answer.headers["x-amzn-errortype"] == "InternalServerErrorException"
    assert api.get("/dev/absent").status == 500
    slow = api.get("/dev/slow")
    assert (slow.status, slow.body) == (504, b'{"message": "Endpoint request timed out"}')


def test_templates_map_requests_to_functions_and_errors_to_responses(running: Running) -> None:
    api = RestApi(running.url)
    api.method(
        "/map/{id}",
        {
            "type": "AWS",
            "uri": uri_of("plain"),
            "requestTemplates": {"application/json": '{"id": "$input.params("id")", "body": $input.json("$.a")}'},
        },
        method="POST",
        responses={"200": {"responseTemplates": {"application/json": 'got $input.path("$.id")'}}},
    )
    api.method(
        "/fails",
        {"type": "AWS", "uri": uri_of("fails"), "requestTemplates": {"application/json": '{"error": "not here"}'}},
        responses={
            "200": {},
            "404": {
                "selectionPattern": "not .*",
                "responseTemplates": {"application/json": '{"why": "$input.path("$.errorMessage")"}'},
                "responseParameters": {"method.response.header.X-Why": "integration.response.body.errorType"},
            },
        },
    )
    api.deploy()
    assert api.get("/dev/map/7", method="POST", body=b'{"a": [1]}').body == b"got 7"
    failed = api.get("/dev/fails")
    assert (failed.status, failed.json, failed.headers["x-why"]) == (404, {"why": "not here"}, "Exception")


def test_a_mock_integration_answers_preflight_requests_and_lets_foreign_pages_in(running: Running) -> None:
    api = RestApi(running.url)
    origin = "https://shop.example"
    api.function("/open", "echo")
    api.function("/closed", "echo")
    api.method(
        "/open",
        {"type": "MOCK", "requestTemplates": {"application/json": "{statusCode: 204}"}},
        method="OPTIONS",
        responses={
            "204": {"responseParameters": {"method.response.header.Access-Control-Allow-Origin": f"'{origin}'"}}
        },
    )
    api.deploy()
    preflight = api.get("/dev/open", method="OPTIONS", Origin=origin, Access_Control_Request_Method="GET")
    assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (204, origin)
    assert api.get("/dev/open", Origin=origin).status == 200
    assert api.get("/dev/open", Origin="https://other.example").status == 403
    assert "web pages of https://shop.example" in api.get("/dev/closed", Origin=origin).json["Message"]


def test_a_token_authorizer_decides_and_never_answers_one_caller_with_anothers_identity(running: Running) -> None:
    api = RestApi(running.url)
    authorizer = api.client.create_authorizer(
        restApiId=api.id, name="a", type="TOKEN", authorizerUri=uri_of("allows"),
        identitySource="method.request.header.Authorization", identityValidationExpression="[a-z]+",
    )["id"]  # fmt: skip
    for path in ("/x", "/y"):
        api.function(path, "echo", authorizationType="CUSTOM", authorizerId=authorizer)
    api.deploy()

    def caller(path: str, token: str) -> dict[str, str]:
        found: dict[str, str] = api.get(path, Authorization=token).json["requestContext"]["authorizer"]
        return found

    first, second = caller("/dev/x", "anna"), caller("/dev/x", "bert")
    assert (first["principalId"], second["principalId"]) == ("anna", "bert")
    assert (first["number"], first["truth"]) == ("7", "true")
    assert caller("/dev/y", "anna")["when"] == first["when"]  # kept for all methods of the stage
    assert caller("/dev/x", "this")["caller"] == "this"
    denied = api.get("/dev/y", Authorization="this")  # the kept policy allows only the first method
    assert (denied.status, denied.body) == (403, b'{"Message":"User is not authorized to access this resource"}')
    explicit = api.get("/dev/x", Authorization="deny")
    assert explicit.json == {"Message": "User is not authorized to access this resource with an explicit deny"}
    for token in (None, "unauthorized", "NOT-VALID"):
        answer = api.get("/dev/x", **({} if token is None else {"Authorization": token}))
        assert (answer.status, answer.body) == (401, b'{"message":"Unauthorized"}')
    malformed = api.get("/dev/x", Authorization="malformed")
    assert (malformed.status, malformed.body) == (500, b'{"message":null}')
    api.client.flush_stage_authorizers_cache(restApiId=api.id, stageName="dev")
    assert caller("/dev/x", "anna")["when"] != first["when"]


def test_a_method_that_requires_an_api_key_accepts_keys_of_the_stages_usage_plan(running: Running) -> None:
    api = RestApi(running.url)
    api.function("/x", "echo", apiKeyRequired=True)
    api.deploy()
    key = api.client.create_api_key(name=api.id, enabled=True, value=f"{api.id}-0123456789-0123456789")
    lone = api.client.create_api_key(name=f"{api.id}-lone", enabled=True)
    plan = api.client.create_usage_plan(
        name=api.id, apiStages=[{"apiId": api.id, "stage": "dev"}], quota={"limit": 2, "period": "DAY"}
    )["id"]
    api.client.create_usage_plan_key(usagePlanId=plan, keyId=key["id"], keyType="API_KEY")
    for refused in (api.get("/dev/x"), api.get("/dev/x", X_Api_Key=lone["value"])):
        assert (refused.status, refused.body) == (403, b'{"message":"Forbidden"}')
        assert refused.headers["x-amzn-errortype"] == "ForbiddenException"
    identity = api.get("/dev/x", X_Api_Key=key["value"]).json["requestContext"]["identity"]
    assert (identity["apiKey"], identity["apiKeyId"]) == (key["value"], key["id"])
    assert api.get("/dev/x", X_Api_Key=key["value"]).status == 200
    used_up = api.get("/dev/x", X_Api_Key=key["value"])
    assert (used_up.status, used_up.body) == (429, b'{"message":"Limit Exceeded"}')


def test_a_custom_domain_serves_apis_by_path_and_no_other_host_name_gets_in(running: Running) -> None:
    api = RestApi(running.url)
    api.function("/x", "echo")
    api.deploy()
    domain = f"{api.id}.shop.example"
    assert request(running.url, "/base/x", host=domain).status == 403
    api.client.create_domain_name(domainName=domain, certificateArn="arn:aws:acm:us-east-1:000000000000:certificate/1")
    api.client.create_base_path_mapping(domainName=domain, basePath="base", restApiId=api.id, stage="dev")
    event = request(running.url, "/base/x", host=domain).json
    assert (event["path"], event["requestContext"]["path"]) == ("/base/x", "/base/x")
    assert (event["requestContext"]["stage"], event["requestContext"]["domainName"]) == ("dev", domain)
    assert request(running.url, f"/_aws/execute-api/{domain}/base/x").status == 200
    assert request(running.url, "/other/x", host=domain).json == {"message": "Forbidden"}
    api.client.delete_domain_name(domainName=domain)
    assert request(running.url, "/base/x", host=domain).status == 403


def test_an_integration_of_an_aws_service_reaches_the_emulator(running: Running) -> None:
    api = RestApi(running.url)
    dynamodb = client_of(running.url, "dynamodb")
    dynamodb.create_table(
        TableName=api.id,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    api.method(
        "/items/{id}",
        {
            "type": "AWS",
            "uri": "arn:aws:apigateway:us-east-1:dynamodb:action/PutItem",
            "requestTemplates": {
                "application/json": f'{{"TableName": "{api.id}", "Item": {{"id": {{"S": "$input.params("id")"}}}}}}'
            },
        },
        method="PUT",
        responses={"200": {"responseTemplates": {"application/json": "stored"}}},
    )
    api.deploy()
    assert api.get("/dev/items/7", method="PUT").body == b"stored"
    assert dynamodb.scan(TableName=api.id)["Items"] == [{"id": {"S": "7"}}]


def test_an_openapi_document_makes_an_api_with_authorizer_and_gateway_response(running: Running) -> None:
    api = RestApi(running.url)
    uri = uri_of("echo")
    document = {
        "openapi": "3.0.1",
        "info": {"title": "imported", "version": "1"},
        "x-amazon-apigateway-binary-media-types": ["image/png"],
        "x-amazon-apigateway-gateway-responses": {"DEFAULT_4XX": {"responseParameters": {
            "gatewayresponse.header.X-From": "'gateway'"}}},
        "components": {"securitySchemes": {"caller": {
            "type": "apiKey", "name": "X-Token", "in": "header", "x-amazon-apigateway-authtype": "custom",
            "x-amazon-apigateway-authorizer": {"type": "token", "authorizerUri": uri_of("allows")}}}},
        "paths": {
            "/a/{id}": {"x-amazon-apigateway-any-method": {
                "x-amazon-apigateway-integration": {"type": "aws_proxy", "httpMethod": "POST", "uri": uri}}},
            "/safe": {"get": {"security": [{"caller": []}], "x-amazon-apigateway-integration": {
                "type": "aws_proxy", "httpMethod": "POST", "uri": uri}}},
        },
    }  # fmt: skip
    api.client.put_rest_api(restApiId=api.id, mode="overwrite", body=json.dumps(document).encode())
    api.deploy()
    assert api.get("/dev/a/7", method="PATCH").json["pathParameters"] == {"id": "7"}
    image = api.get("/dev/a/7", method="POST", body=b"\x89PNG", Content_Type="image/png").json
    assert (image["body"], image["isBase64Encoded"]) == ("iVBORw==", True)
    refused = api.get("/dev/safe")
    assert (refused.status, refused.headers["x-from"]) == (401, "gateway")
    assert api.get("/dev/safe", X_Token="anna").json["requestContext"]["authorizer"]["principalId"] == "anna"


def test_a_signed_request_is_let_in_where_the_method_requires_iam(running: Running) -> None:
    api = RestApi(running.url)
    api.function("/x", "echo", authorizationType="AWS_IAM")
    api.deploy()
    path = f"/_aws/execute-api/{api.id}/dev/x"
    signed = AWSRequest("GET", running.url + path, {})
    SigV4Auth(Credentials("test", "test"), "execute-api", "us-east-1").add_auth(signed)
    headers = {name.replace("-", "_"): value for name, value in signed.headers.items()}
    event = request(running.url, path, **headers).json
    identity = event["requestContext"]["identity"]
    assert (identity["accessKey"], identity["accountId"]) == ("test", arn_of("f").split(":")[4])
    assert "Authorization" not in event["headers"]
    assert request(running.url, path).json == {"message": "Missing Authentication Token"}
    headers["Authorization"] = headers["Authorization"][:-4] + "0000"
    assert request(running.url, path, **headers).status == 403


def test_an_api_in_front_of_another_one_reaches_it_by_its_address_at_aws(running: Running) -> None:
    behind, front = RestApi(running.url), RestApi(running.url)
    behind.function("/x", "echo")
    behind.deploy()
    uri = f"https://{behind.id}.execute-api.us-east-1.amazonaws.com/dev/x"
    front.method("/own", {"type": "HTTP_PROXY", "integrationHttpMethod": "GET", "uri": uri})
    front.deploy()
    reached = front.get("/dev/own?a=b").json
    assert (reached["path"], reached["queryStringParameters"]) == ("/x", {"a": "b"})
    assert reached["requestContext"]["apiId"] == behind.id


def test_a_host_name_that_another_site_can_own_reaches_no_api(running: Running) -> None:
    api = RestApi(running.url)
    api.function("/x", "echo")
    api.deploy()
    for path in ("/dev/x", f"/_aws/execute-api/{api.id}/dev/x"):
        refused = request(running.url, path, host=f"{api.id}.execute-api.evil.example")
        assert (refused.status, "are refused" in refused.body.decode()) == (403, True)


def test_http_integrations_send_requests_to_the_endpoint_and_nowhere_else(running: Running) -> None:
    api = RestApi(running.url)
    with receiving() as endpoint:
        endpoint.answer = b'{"got": 1}'
        endpoint.headers = {"X-From": "endpoint", "Location": "http://127.0.0.1:1/elsewhere"}
        api.method(
            "/proxy/{id}",
            {
                "type": "HTTP_PROXY",
                "integrationHttpMethod": "ANY",
                "uri": f"{endpoint.url}/to/{{id}}",
                "requestParameters": {"integration.request.path.id": "method.request.path.id"},
            },
            method="ANY",
            requestParameters={"method.request.path.id": True},
        )
        api.method(
            "/mapped",
            {
                "type": "HTTP",
                "integrationHttpMethod": "POST",
                "uri": f"{endpoint.url}/mapped",
                "requestTemplates": {"application/json": '{"n": $input.json("$.a")}'},
                "requestParameters": {"integration.request.header.X-Stage": "stageVariables.color"},
            },
            method="POST",
            responses={"200": {"selectionPattern": "2\\d{2}"}, "502": {}},
        )
        api.deploy(variables={"color": "red"})
        endpoint.statuses = [302]
        proxied = api.get("/dev/proxy/7?a=b", method="POST", body=b"hello", X_Name="y")
        assert (proxied.status, proxied.headers["x-from"], proxied.json) == (302, "endpoint", {"got": 1})
        received = endpoint.got[0]
        assert (received.path, received.body, received.headers["x-name"]) == ("/to/7?a=b", b"hello", "y")
        assert received.headers["x-amzn-apigateway-api-id"] == api.id
        assert proxied.headers["x-amzn-remapped-content-length"] == "10"
        endpoint.statuses = [201, 400]
        mapped = [api.get("/dev/mapped", method="POST", body=b'{"a": 3}').status for _ in range(2)]
        assert (mapped, endpoint.got[1].body, endpoint.got[1].headers["x-stage"]) == ([200, 502], b'{"n": 3}', "red")
    assert api.get("/dev/proxy/7").status == 504


def test_a_user_pool_of_the_emulated_cognito_authorizes_its_users(running: Running) -> None:
    cognito, api = client_of(running.url, "cognito-idp"), RestApi(running.url)
    pool = cognito.create_user_pool(PoolName=api.id)["UserPool"]
    other = cognito.create_user_pool(PoolName=f"{api.id}-other")["UserPool"]
    authorizer = api.client.create_authorizer(
        restApiId=api.id, name="pool", type="COGNITO_USER_POOLS", providerARNs=[pool["Arn"]],
        identitySource="method.request.header.Authorization",
    )["id"]  # fmt: skip
    api.function("/x", "echo", authorizationType="COGNITO_USER_POOLS", authorizerId=authorizer)
    api.deploy()

    def token_of(pool_id: str) -> str:
        client = cognito.create_user_pool_client(UserPoolId=pool_id, ClientName="c")["UserPoolClient"]["ClientId"]
        cognito.admin_create_user(UserPoolId=pool_id, Username="anna")
        cognito.admin_set_user_password(UserPoolId=pool_id, Username="anna", Password="Secret-123", Permanent=True)
        answer = cognito.admin_initiate_auth(
            UserPoolId=pool_id, ClientId=client, AuthFlow="ADMIN_NO_SRP_AUTH",
            AuthParameters={"USERNAME": "anna", "PASSWORD": "Secret-123"},
        )  # fmt: skip
        return str(answer["AuthenticationResult"]["IdToken"])

    token = token_of(pool["Id"])
    claims = api.get("/dev/x", Authorization=token).json["requestContext"]["authorizer"]["claims"]
    assert (claims["cognito:username"], claims["token_use"]) == ("anna", "id")
    assert api.get("/dev/x", Authorization=f"Bearer {token}").status == 200
    for wrong in (token_of(other["Id"]), token[:-6] + "AAAAAA", "nonsense"):
        assert api.get("/dev/x", Authorization=wrong).body == b'{"message":"Unauthorized"}'


def test_patch_operations_change_methods_integrations_and_settings(running: Running) -> None:
    api = RestApi(running.url)
    api.function("/x", "echo")
    at = {"restApiId": api.id, "resourceId": api.resource("/x"), "httpMethod": "GET"}
    api.client.update_integration(**at, patchOperations=[{"op": "replace", "path": "/uri", "value": uri_of("answer")}])
    api.client.update_method(**at, patchOperations=[{"op": "replace", "path": "/apiKeyRequired", "value": "true"}])
    api.client.update_rest_api(
        restApiId=api.id, patchOperations=[{"op": "add", "path": "/binaryMediaTypes/image~1png"}]
    )
    assert api.client.get_rest_api(restApiId=api.id)["binaryMediaTypes"] == ["image/png"]
    api.client.update_gateway_response(
        restApiId=api.id, responseType="INVALID_API_KEY",
        patchOperations=[{"op": "replace", "path": "/statusCode", "value": "418"}],
    )  # fmt: skip
    api.deploy()
    assert api.get("/dev/x").status == 418
    api.client.update_method(**at, patchOperations=[{"op": "replace", "path": "/apiKeyRequired", "value": "false"}])
    api.deploy()
    assert api.get("/dev/x").status == 502  # the function answer fails without a body
    with pytest.raises(ClientError) as refused:
        api.client.update_method(**at, patchOperations=[{"op": "replace", "path": "/nothing", "value": "x"}])
    assert refused.value.response["Error"]["Code"] == "BadRequestException"


def test_import_rest_api_takes_yaml_and_swagger(running: Running) -> None:
    client = client_of(running.url, "apigateway")
    document = f"""
swagger: "2.0"
info: {{title: imported, version: "1"}}
definitions:
  Item: {{type: object, required: [a]}}
x-amazon-apigateway-request-validators:
  all: {{validateRequestBody: true, validateRequestParameters: true}}
x-amazon-apigateway-request-validator: all
paths:
  /:
    get:
      x-amazon-apigateway-integration:
        type: mock
        requestTemplates: {{application/json: '{{"statusCode": 200}}'}}
        responses: {{default: {{statusCode: 203}}}}
  /items:
    post:
      parameters: [{{in: body, name: Item, schema: {{$ref: "#/definitions/Item"}}}}]
      x-amazon-apigateway-integration: {{type: aws_proxy, httpMethod: POST, uri: "{uri_of("echo")}"}}
"""
    api = client.import_rest_api(body=document.encode())
    assert api["name"] == "imported"
    client.create_deployment(restApiId=api["id"], stageName="dev")
    base = f"/_aws/execute-api/{api['id']}/dev"
    assert request(running.url, f"{base}/").status == 203
    assert request(running.url, f"{base}/items", method="POST", body=b"{}").json == {"message": "Invalid request body"}
    assert request(running.url, f"{base}/items", method="POST", body=b'{"a": 1}').status == 200


def test_many_callers_at_the_same_time_get_their_own_answers(running: Running) -> None:
    api = RestApi(running.url)
    api.function("/{id}", "echo")
    api.deploy()

    def asked(number: int) -> int:
        return int(api.get(f"/dev/{number}").json["pathParameters"]["id"])

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(asked, range(200))) == list(range(200))
