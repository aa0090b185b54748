"""What the CDK apps and the services of the Serverless Framework have to answer."""

from __future__ import annotations

import json
from collections.abc import Callable

from tools.samples.served import Served, expect


def adobe(it: Served) -> None:
    """`adobe-eventbridge-lambda`."""
    event = json.loads((it.folder / "event.json").read_text())
    answer = it.invoke("AdobeProcessOrderEventsLambda", event)
    expect(answer.endswith("the Imaging API Events:photoshop-job-status event is value"), answer)


def tagged_secrets(it: Served) -> None:
    """`automate-secrets-manager-tags`: the event is one of CloudTrail."""
    client = it.client("secretsmanager")
    client.create_secret(Name="database", SecretString="x")
    detail = {"userIdentity": {"principalId": "AROA:ann"}, "requestParameters": {"name": "database"}}
    it.invoke("MyEventBridgeLambda", {"detail": detail})
    tags = client.describe_secret(SecretId="database")["Tags"]
    expect(tags == [{"Key": "LoginUserName", "Value": "ann"}], tags)


def stream(it: Served) -> None:
    """`kinesis-lambda-py-cdk`."""
    it.client("kinesis").put_record(StreamName=it.physical("SampleStream"), PartitionKey="123", Data=b"testdata")
    it.until_logged("sampleFn", "Hello!")


def large_file(it: Served) -> None:
    """`s3-large-deployments-cdk`: a custom resource has copied the file."""
    body = it.client("s3").get_object(Bucket="large-deployments", Key="large.txt")["Body"].read()
    expect(body == (it.folder / "assets/large.txt").read_bytes(), body[:100])


def queue_of_items(it: Served) -> None:
    """`sqs-lambda-dynamodb-cdk`."""
    text = (it.folder / "example-message.json").read_text()
    it.client("sqs").send_message(QueueUrl=it.physical("VsamToDynamoQueue"), MessageBody=text[text.index("{") :])
    row = it.until_row("CLIENT", {"CLIENT-KEY": {"S": "0|0"}})
    expect(row["CLIENT-RECORD-COUNT"] == {"N": "220"}, row)


def dashboard(it: Served) -> None:
    """`lambda-cloudwatch-dashboard`: the function works for 3 to 8 seconds, and fails at random, one time of ten."""
    answer = it.until(lambda: it.invoke("lambdafunction", {}), "no answer")
    expect(answer == {"statusCode": 200, "body": "OK"}, answer)
    expect(it.client("cloudwatch").get_dashboard(DashboardName="ExampleLambdaDashboard")["DashboardBody"] != "", "")


def cron(it: Served) -> None:
    """`lambda-cron`."""
    it.invoke("Singleton", {})
    it.until_logged("Singleton", "I'm running!")


def custom_resource(it: Served) -> None:
    """`custom-resource`."""
    expect(it.outputs["ResponseMessage"] == 'You said "CustomResource says hello"', it.outputs)


def notifications(it: Served) -> None:
    """`lambda-manage-s3-event-notification`: stacks add notifications to the bucket of another stack."""
    bucket = next(name for name in _buckets(it) if "cdk-" not in name and "thawd" not in name)
    it.client("s3").put_object(Bucket=bucket, Key="CategoryA/1", Body=b"x")
    url = it.physical("SampleQueue")

    def message() -> object:
        messages = it.client("sqs").receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages", [])
        return next((each for each in messages if "CategoryA/1" in each["Body"]), None)

    it.until(message, "no message about the object")


def wait_condition(it: Served) -> None:
    """`cdk-custom-resource-with-wait-condition`: a state machine ends the waiting, and the stack is complete."""
    [stack] = it.client("cloudformation").describe_stacks(StackName="Custom-Resource-With-Wait-Condition-Demo")[
        "Stacks"
    ]
    expect(stack["StackStatus"] == "CREATE_COMPLETE", stack["StackStatus"])
    client = it.client("stepfunctions")
    [execution] = client.list_executions(stateMachineArn=it.physical("LongRunningProcessStateMachine"))["executions"]
    it.until(lambda: _status(it, execution["executionArn"]) == "SUCCEEDED", "the execution has not succeeded")


def delayed(it: Served) -> None:
    """`delayed-eventbridge-events`: an event makes a schedule, which sends another event two minutes later."""
    user = {"id": "7", "firstName": "Ann", "lastName": "Lee"}
    entry = {
        "EventBusName": "MyCustomBus",
        "Source": "myapp.users",
        "DetailType": "UserCreated",
        "Detail": json.dumps(user),
    }
    it.client("events").put_events(Entries=[entry])
    client = it.client("scheduler")
    found = {"Name": "7-24hr", "GroupName": "SchedulesForUsers24HoursAfterCreation"}
    schedule = it.until(lambda: client.get_schedule(**found), "no schedule")
    expect(json.loads(schedule["Target"]["Input"]) == user, schedule)


def every_minute(it: Served) -> None:
    """`eventbridge-scheduled-lambda-cdk-typescript`."""
    expect(it.invoke("functionname", {}) == "Complete - OK", "answer")
    it.until_logged("functionname", "This function runs every 1 minutes")


def queue_to_table(it: Served) -> None:
    """`sqs-lambda-ddb-cdk-ts`."""
    it.client("sqs").send_message(QueueUrl=it.physical("SampleTable1Queue"), MessageBody='{"id": "1", "n": 2}')
    expect(it.until_row("SampleTable1", {"id": {"S": "1"}})["n"] == {"N": "2"}, "row")


def backup(it: Served) -> None:
    """`aws-node-dynamodb-backup`: the event is that of a table's stream."""
    client = it.client("s3")
    client.create_bucket(Bucket="table-backups")
    dynamodb = {"Keys": {"id": {"S": "7"}}, "NewImage": {"id": {"S": "7"}, "n": {"N": "2"}}}
    it.invoke("BackupLambdaFunction", {"Records": [{"dynamodb": dynamodb}]})
    key = "FOO/staging_EXAMPLE/7/image.json"
    body = json.loads(client.get_object(Bucket="table-backups", Key=key)["Body"].read())
    expect(body == {"id": "7", "n": 2}, body)


def variables(it: Served) -> None:
    """`aws-node-env-variables`."""
    answer = it.invoke("CreateUserLambdaFunction", {})
    expect(json.loads(answer["body"]) == {"message": "User created"}, answer)
    it.until_logged("CreateUserLambdaFunction", "4096")


def express(it: Served) -> None:
    """`aws-node-express-api`."""
    for path, wanted in (("", "Hello from root!"), ("path", "Hello from path!")):
        answer = it.request(it.api("HttpApi", path))
        expect(answer.status == 200 and answer.json == {"message": wanted}, answer)


def express_table(it: Served) -> None:
    """`aws-node-express-dynamodb-api`."""
    user = {"userId": "someUserId", "name": "Bob"}
    made = it.request(it.api("HttpApi", "users"), method="POST", body=user)
    expect(made.status == 200 and made.json == user, made)
    found = it.request(it.api("HttpApi", "users/someUserId"))
    expect(found.status == 200 and found.json == user, found)


def graphql(it: Served) -> None:
    """`aws-node-graphql-api-with-dynamodb`."""
    asked = "dev/query?query=%7Bgreeting(firstName:%22Max%22)%7D"
    answer = it.request(it.api("ApiGatewayRestApi", asked))
    expect(answer.status == 200 and answer.json == {"data": {"greeting": "Hello, Max."}}, answer)


def rest(it: Served) -> None:
    """`aws-node-rest-api`."""
    answer = it.request(it.api("ApiGatewayRestApi", "dev/"))
    expect(answer.status == 200 and "Your function executed successfully!" in answer.json["message"], answer)


def shared_gateway(it: Served) -> None:
    """`aws-node-shared-gateway`: a service whose API is in another stack."""
    [api] = it.client("apigateway").get_rest_apis()["items"]
    answer = it.request(f"{it.url}/_aws/execute-api/{api['id']}/dev/products/list")
    expect(answer.status == 200 and len(answer.json) == 3, answer)


def now(it: Served) -> None:
    """`aws-node-simple-http-endpoint` and `aws-python-simple-http-endpoint`."""
    answer = it.request(it.api("HttpApi", "time"))
    expect(answer.status == 200 and answer.json["message"].startswith("Hello, the current time is "), answer)


def uploaded(it: Served) -> None:
    """`aws-node-upload-to-s3-and-postprocess`."""
    it.client("s3").put_object(Bucket="uploaded-pictures", Key="some.png", Body=b"x" * 7)
    it.until_logged("PostprocessLambdaFunction", "New .png object has been created: some.png (7 bytes)")


def signed_urls(it: Served) -> None:
    """`aws-python-pynamodb-s3-sigurl`: an asset is made, uploaded, and listed."""
    url = it.api("ApiGatewayRestApi", "dev/asset")
    made = it.request(url, method="POST", body={})
    asset = made.json["body"]
    expect(made.json["statusCode"] == 201, made)
    expect(it.request(asset["upload_url"], method="PUT", body="x").status == 200, "upload")
    [item] = it.request(url).json["body"]["items"]
    expect(asset["id"] in json.dumps(item), item)


def stored_parameter(it: Served) -> None:
    """`lambda-ssm-sls`."""
    url = it.api("HttpApi", "")
    first = it.request(url)
    expect(first.status == 200 and first.json == "test", first)
    expect(it.request(url, method="PUT", body="more").body == "success", "put")
    expect(it.request(url).json == "more", "changed")


def _buckets(it: Served) -> list[str]:
    return [each["Name"] for each in it.client("s3").list_buckets()["Buckets"]]


def _status(it: Served, execution: str) -> str:
    return str(it.client("stepfunctions").describe_execution(executionArn=execution)["status"])


CHECKS: dict[str, Callable[[Served], None]] = {
    "adobe-eventbridge-lambda": adobe,
    "automate-secrets-manager-tags": tagged_secrets,
    "kinesis-lambda-py-cdk": stream,
    "s3-large-deployments-cdk": large_file,
    "sqs-lambda-dynamodb-cdk": queue_of_items,
    "python/lambda-cloudwatch-dashboard": dashboard,
    "python/lambda-cron": cron,
    "typescript/custom-resource": custom_resource,
    "typescript/lambda-manage-s3-event-notification": notifications,
    "cdk-custom-resource-with-wait-condition": wait_condition,
    "delayed-eventbridge-events": delayed,
    "eventbridge-scheduled-lambda-cdk-typescript": every_minute,
    "sqs-lambda-ddb-cdk-ts": queue_to_table,
    "aws-node-dynamodb-backup": backup,
    "aws-node-env-variables": variables,
    "aws-node-express-api": express,
    "aws-node-express-dynamodb-api": express_table,
    "aws-node-graphql-api-with-dynamodb": graphql,
    "aws-node-rest-api": rest,
    "aws-node-shared-gateway": shared_gateway,
    "aws-node-simple-http-endpoint": now,
    "aws-node-upload-to-s3-and-postprocess": uploaded,
    "aws-python-pynamodb-s3-sigurl": signed_urls,
    "aws-python-simple-http-endpoint": now,
    "lambda-ssm-sls": stored_parameter,
}
