"""What the samples with APIs have to answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from tools.samples.served import Served, expect


def _key(it: Served) -> str:
    """The value of the stack's API key, as the console shows it."""
    [key] = it.client("apigateway").get_api_keys(includeValues=True)["items"]
    return str(key["value"])


def api_key(it: Served) -> None:
    """`apigw-api-key`."""
    refused = it.request(it.outputs["AppApiEndpoint"])
    expect(refused.status == 403, refused)
    answer = it.request(it.outputs["AppApiEndpoint"], headers={"x-api-key": _key(it)})
    expect(answer.status == 200 and answer.json["httpMethod"] == "GET", answer)


def resource_policy(it: Served) -> None:
    """`apigw-custom-resource-policy`, with a date in the future."""
    answer = it.request(it.outputs["HelloWorldApi"])
    expect(answer.status == 200 and answer.json == {"message": "Hello world"}, answer)


def data_validation(it: Served) -> None:
    """`apigw-data-validation`."""
    url, vehicle = it.outputs["ProcessApi"] + "vehicle", {"make": "MINI", "model": "Countryman", "year": 2020}
    answer = it.request(url, method="POST", body=vehicle)
    expect(answer.status == 200 and answer.json["data"] == vehicle, answer)
    old = it.request(url, method="POST", body={**vehicle, "year": 2002})
    expect(old.status == 400 and old.json["message"] == "Invalid request body", old)


def table_to_stream(it: Served) -> None:
    """`apigw-dynamodb-kinesis-lambda`: API, table, the table's stream in Kinesis, function."""
    comment = {"username": "myname", "message": "My First Comment"}
    answer = it.request(it.outputs["ApiRootUrl"] + "/comment", method="POST", body=comment)
    expect(answer.status == 200 and answer.json == {}, answer)
    [item] = it.client("dynamodb").scan(TableName="Comments")["Items"]
    expect(item["message"]["S"] == comment["message"], item)
    it.until_logged("LambdaConsumer", comment["message"])


def http_api(it: Served) -> None:
    """`apigw-http-api-lambda`."""
    url = it.outputs["HttpApiEndpoint"] + "/path1/path2?foo=bar"
    answer = it.request(url, method="POST", body='{"key1":"value1"}')
    wanted = {"method": "POST", "rawPath": "/path1/path2", "queryString": {"foo": "bar"}, "body": '{"key1":"value1"}'}
    expect(answer.status == 200 and wanted.items() <= answer.json.items(), answer)


def function_table_stream(it: Served) -> None:
    """`apigw-lambda-dynamodb-kinesis-lambda`."""
    item = {"id": "1", "name": "Ann", "description": "a sale", "customer": "Bob"}
    answer = it.request(it.outputs["EndpointUrl"] + "/", method="POST", body=item)
    expect(answer.status == 200 and answer.body == "Successfully inserted data!", answer)
    row = it.until_row("DynamoDBTable", {"id": {"S": "1"}})
    expect(row["customer"] == {"S": "Bob"}, row)
    it.until_logged("LambdaConsumerFunction", "kinesis")


def bus_and_queue(it: Served) -> None:
    """`apigw-rest-api-eventbridge-sqs-sam`."""
    event = {"Detail": {"IsHelloWorldExample": "Hello"}, "DetailType": "POSTED", "Source": "demo.event"}
    answer = it.request(it.outputs["ApiURL"], method="POST", body=event)
    expect(answer.status == 200 and answer.json["FailedEntryCount"] == 0, answer)
    it.until_logged("LambdaFuncton", "IsHelloWorldExample: 'Hello'")


def hello_world(it: Served) -> None:
    """`apigw-rest-api-lambda-python`, which asks http://checkip.amazonaws.com for its address."""
    answer = it.request(it.outputs["HelloWorldApi"])
    expect(answer.status == 200 and answer.json["message"] == "hello world", answer)


def api_of_apis(it: Served) -> None:
    """`apigw-rest-apigw-rest`: an API in front of two, to which it adds their key."""
    for path, wanted in (("reports", "reporting"), ("users", "user management")):
        answer = it.request(f"{it.outputs['PrimaryApiEndpoint']}/admin/{path}")
        expect(answer.status == 200 and answer.json["message"] == f"Response from {wanted} application", answer)
    expect(it.request(it.outputs["ReportingEndpoint"]).status == 403, "without the key")


def queue_behind_api(it: Served) -> None:
    """`apigw-sqs-lambda`."""
    answer = it.request(it.outputs["MyHttpApiEndpoint"] + "/submit", method="POST", body={"isMessageReceived": "Yes"})
    expect(answer.status == 200, answer)
    it.until_logged("MyLambdaFunction", "isMessageReceived")


def authorized_queue(it: Served) -> None:
    """`apigw-sqs-lambda-ddb`."""

    def secret(name: str) -> dict[str, str]:
        return dict(json.loads(it.client("secretsmanager").get_secret_value(SecretId=name)["SecretString"]))

    pair = f"{secret('endpoint/username')['UserName']}:{secret('endpoint/password')['Password']}"
    url = it.api("HttpApi", "submit")
    body = {"eventId": "f5337ee6", "message": "Sample message for testing"}
    refused = it.request(url, method="POST", body=body, headers={"authorization": "Basic bm9ib2R5Og=="})
    expect(refused.status == 403, refused)
    basic = "Basic " + base64.b64encode(pair.encode()).decode()
    answer = it.request(url, method="POST", body=body, headers={"authorization": basic})
    expect(answer.status == 200 and "MessageId" in answer.body, answer)
    expect(it.until_row("EventTable", {"eventId": {"S": "f5337ee6"}})["message"]["S"] == body["message"], "row")


def usage_plan(it: Served) -> None:
    """`apigw-usage-plans`."""
    expect(it.request(it.outputs["UsagePlanApi"]).status == 403, "without the key")
    answer = it.request(it.outputs["UsagePlanApi"], headers={"x-api-key": _key(it)})
    expect(answer.status == 200 and answer.json == {"message": "hello world"}, answer)


def account_settings(it: Served) -> None:
    """`sample-apps/nodejs-apig`."""
    answer = it.request(it.api("api", "api/"))
    expect(answer.status == 200 and answer.json["FunctionCount"] == 1, answer)


CHECKS: dict[str, Callable[[Served], None]] = {
    "apigw-api-key": api_key,
    "apigw-custom-resource-policy": resource_policy,
    "apigw-data-validation": data_validation,
    "apigw-dynamodb-kinesis-lambda": table_to_stream,
    "apigw-http-api-lambda": http_api,
    "apigw-lambda-dynamodb-kinesis-lambda": function_table_stream,
    "apigw-rest-api-eventbridge-sqs-sam": bus_and_queue,
    "apigw-rest-api-lambda-python": hello_world,
    "apigw-rest-apigw-rest": api_of_apis,
    "apigw-sqs-lambda": queue_behind_api,
    "apigw-sqs-lambda-ddb": authorized_queue,
    "apigw-usage-plans": usage_plan,
    "sample-apps/nodejs-apig": account_settings,
}
