"""`thawd up --aws`: the APIs of a CloudFormation stack answer, change and go with the stack, and outlast a restart."""

from __future__ import annotations

import json
import signal
from typing import Any

from tests.integration.apis import CODE, arn_of, request, uri_of
from tests.integration.conftest import Project, Running
from tests.integration.emulated import AwsAt
from tests.integration.stack_operations import stack_status

RATES = {"/items/{id}/GET": {"BurstLimit": 10, "RateLimit": 5}}
ECHO = {"Type": "AWS_PROXY", "IntegrationHttpMethod": "POST", "Uri": uri_of("echo")}


def rest_template(method: str) -> dict[str, Any]:
    """The resources of a REST API whose path /items/{id} has a method, with an API key and a gateway response."""
    api = {"Ref": "Rest"}
    mock = {
        "Type": "MOCK",
        "RequestTemplates": {"application/json": '{"statusCode": 204}'},
        "IntegrationResponses": [
            {"StatusCode": 204, "ResponseParameters": {"method.response.header.Access-Control-Allow-Origin": "'*'"}}
        ],
    }

    def of(kind: str, properties: dict[str, Any], *needs: str) -> dict[str, Any]:
        made: dict[str, Any] = {"Type": f"AWS::ApiGateway::{kind}", "Properties": {"RestApiId": api, **properties}}
        return {**made, "DependsOn": list(needs)} if needs else made

    item = {"ResourceId": {"Ref": "Item"}, "AuthorizationType": "NONE"}
    return {
        "Rest": {"Type": "AWS::ApiGateway::RestApi", "Properties": {"Name": "shop", "BinaryMediaTypes": ["image/png"]}},
        "Items": of("Resource", {"ParentId": {"Fn::GetAtt": ["Rest", "RootResourceId"]}, "PathPart": "items"}),
        "Item": of("Resource", {"ParentId": {"Ref": "Items"}, "PathPart": "{id}"}),
        "Method": of("Method", {**item, "HttpMethod": method, "ApiKeyRequired": "true", "Integration": ECHO}),
        "Options": of(
            "Method",
            {**item, "HttpMethod": "OPTIONS", "Integration": mock, "MethodResponses": [{"StatusCode": 204}]},
        ),
        "Missing": of("GatewayResponse", {"ResponseType": "MISSING_AUTHENTICATION_TOKEN", "StatusCode": "404"}),
        f"Deployment{method}": of("Deployment", {}, "Method", "Options", "Missing"),
        "Stage": of(
            "Stage",
            {"StageName": "prod", "DeploymentId": {"Ref": f"Deployment{method}"}, "Variables": {"method": method}},
        ),
        "Key": {"Type": "AWS::ApiGateway::ApiKey", "Properties": {"Enabled": True, "Value": "k" * 24}},
        "Plan": {
            "Type": "AWS::ApiGateway::UsagePlan",
            "Properties": {"ApiStages": [{"ApiId": api, "Stage": {"Ref": "Stage"}, "Throttle": RATES}]},
        },
        "PlanKey": {
            "Type": "AWS::ApiGateway::UsagePlanKey",
            "Properties": {"KeyId": {"Ref": "Key"}, "KeyType": "API_KEY", "UsagePlanId": {"Ref": "Plan"}},
        },
    }


HTTP = {
    "Http": {"Type": "AWS::ApiGatewayV2::Api", "Properties": {"Name": "web", "ProtocolType": "HTTP"}},
    "Integration": {
        "Type": "AWS::ApiGatewayV2::Integration",
        "Properties": {
            "ApiId": {"Ref": "Http"},
            "IntegrationType": "AWS_PROXY",
            "IntegrationUri": arn_of("echo"),
            "PayloadFormatVersion": "2.0",
        },
    },
    "Route": {
        "Type": "AWS::ApiGatewayV2::Route",
        "Properties": {
            "ApiId": {"Ref": "Http"},
            "RouteKey": "GET /x",
            "Target": {"Fn::Join": ["/", ["integrations", {"Ref": "Integration"}]]},
        },
    },
    "HttpStage": {
        "Type": "AWS::ApiGatewayV2::Stage",
        "Properties": {"ApiId": {"Ref": "Http"}, "StageName": "$default", "AutoDeploy": True},
    },
}

IMPORTED = {"openapi": "3.0.1", "info": {"title": "imported", "version": "1"}, "paths": {}}


def imported(method: str) -> dict[str, Any]:
    """An HTTP API that is described by a document, and by properties that the document does not have."""
    properties = {
        "Body": IMPORTED,
        "Description": f"for {method}",
        "Tags": {"method": method, method: "tagged"},
        "CorsConfiguration": {"AllowMethods": [method]},
    }
    return {"Imported": {"Type": "AWS::ApiGatewayV2::Api", "Properties": properties}}


def template(method: str) -> str:
    """A stack with a REST API and two HTTP APIs."""
    outputs = {
        "Rest": {"Value": {"Ref": "Rest"}},
        "Http": {"Value": {"Ref": "Http"}},
        "Imported": {"Value": {"Ref": "Imported"}},
        "Address": {"Value": {"Fn::GetAtt": ["Http", "ApiEndpoint"]}},
    }
    return json.dumps({"Resources": {**rest_template(method), **HTTP, **imported(method)}, "Outputs": outputs})


def outputs_of(stacks: Any) -> dict[str, str]:
    """The outputs of the stack, whose status must be one of success."""
    assert stack_status(stacks, "shop") in ("CREATE_COMPLETE", "UPDATE_COMPLETE")
    (stack,) = stacks.describe_stacks(StackName="shop")["Stacks"]
    return {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}


def check(running: Running, made: dict[str, str], method: str) -> None:
    """Check that the APIs of the stack answer as `template` says."""
    path = f"/_aws/execute-api/{made['Rest']}/prod/items/7"
    answer = request(running.url, path, method=method, X_Api_Key="k" * 24)
    assert answer.status == 200, answer
    event = answer.json
    assert (event["pathParameters"], event["stageVariables"]) == ({"id": "7"}, {"method": method})
    assert request(running.url, path, method=method).status == 403
    assert request(running.url, path, method="OPTIONS").headers["access-control-allow-origin"] == "*"
    assert request(running.url, f"{path}/absent").status == 404
    assert request(running.url, "/x", host=f"{made['Http']}.execute-api.localhost").json["routeKey"] == "GET /x"
    (plan,) = AwsAt(running.url).client("apigateway").get_usage_plans()["items"]
    assert plan["apiStages"][0]["throttle"] == {"/items/{id}/GET": {"burstLimit": 10, "rateLimit": 5}}
    api = AwsAt(running.url).client("apigatewayv2").get_api(ApiId=made["Imported"])
    assert (api["Name"], api["Description"], api["CorsConfiguration"]) == (
        "imported",
        f"for {method}",
        {"AllowMethods": [method]},
    )
    assert api["Tags"] == {"method": method, method: "tagged"}
    assert made["Address"].endswith(f"/_aws/execute-api/{made['Http']}")


def test_the_apis_of_a_stack_answer_also_after_a_restart_and_change_and_go_with_the_stack(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.echo]\nhandler = "app.echo"\n')
    with project.up("--aws") as running:
        stacks = AwsAt(running.url).client("cloudformation")
        stacks.create_stack(StackName="shop", TemplateBody=template("GET"))
        check(running, outputs_of(stacks), "GET")
        running.stop(number=signal.SIGTERM)
    with project.up("--aws") as running:
        stacks = AwsAt(running.url).client("cloudformation")
        made = outputs_of(stacks)
        check(running, made, "GET")
        stacks.update_stack(StackName="shop", TemplateBody=template("POST"))
        check(running, outputs_of(stacks), "POST")
        broken = json.loads(template("POST"))
        broken["Resources"]["Broken"] = {"Type": "AWS::ApiGateway::Resource", "Properties": {"RestApiId": "x"}}
        stacks.update_stack(StackName="shop", TemplateBody=json.dumps(broken))
        assert stack_status(stacks, "shop") == "UPDATE_ROLLBACK_COMPLETE"
        events = stacks.describe_stack_events(StackName="shop")["StackEvents"]
        assert any(one["LogicalResourceId"] == "Broken" and one["ResourceStatus"] == "CREATE_FAILED" for one in events)
        check(running, made, "POST")
        stacks.delete_stack(StackName="shop")
        assert stack_status(stacks, "shop") == "DELETE_COMPLETE"
        path = f"/_aws/execute-api/{made['Rest']}/prod/items/7"
        assert request(running.url, path, method="POST", X_Api_Key="k" * 24).json == {"message": "Forbidden"}
        assert AwsAt(running.url).client("apigatewayv2").get_apis()["Items"] == []
        assert AwsAt(running.url).client("apigateway").get_rest_apis()["items"] == []
