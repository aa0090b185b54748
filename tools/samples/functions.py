"""What the samples of SAM and CloudFormation without APIs have to answer."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from tools.samples.served import Served, WrongAnswerError, expect

_FAILED_INVESTIGATION = {
    "source": "aws.aidevops",
    "detail-type": "Investigation Failed",
    "account": "123456789012",
    "region": "us-east-1",
    "time": "2026-01-15T10:30:00Z",
    "detail": {
        "version": "1.0.0",
        "metadata": {"agent_space_id": "test-space-123", "task_id": "task-abc-001", "execution_id": "exec-xyz-002"},
        "data": {
            "task_type": "INVESTIGATION",
            "priority": "CRITICAL",
            "status": "FAILED",
            "created_at": "2026-01-15T10:00:00Z",
            "updated_at": "2026-01-15T10:30:00Z",
        },
    },
}


def table_events(it: Served) -> None:
    """`dynamodb-eventbridge`."""
    it.client("dynamodb").put_item(TableName=it.physical("MyDynamoStream"), Item={"name": {"S": "Ann"}})
    it.until_logged("SubscribeInsertFunction", '"INSERT"')


def table_to_bus(it: Served) -> None:
    """`dynamodb-streams-lambda-eventbridge-sam-node`."""
    it.client("dynamodb").put_item(TableName=it.physical("MyTable"), Item={"id": {"S": "1"}})
    it.until_logged("MyFunction", "FailedEntryCount: 0")


def other_bus(it: Served) -> None:
    """`eventbridge-cross-region/eventbus-destination`."""
    entry = {"EventBusName": "CrossRegionDestination", "Source": "webhook", "DetailType": "t", "Detail": '{"a": "hi"}'}
    expect(it.client("events").put_events(Entries=[entry])["FailedEntryCount"] == 0, "PutEvents")
    it.until_logged("LoggerFunction", '"a": "hi"')


def old_schedules(it: Served) -> None:
    """`eventbridge-schedule-remove-one-time-schedules`: a schedule of the past goes, another one stays."""
    client = it.client("scheduler")
    target = {"Arn": f"arn:aws:sqs:us-east-1:{_account(it)}:any", "RoleArn": "arn:aws:iam::123456789012:role/any"}
    for name, when in (("old", "at(2022-12-01T00:00:00)"), ("daily", "rate(1 day)")):
        client.create_schedule(Name=name, ScheduleExpression=when, Target=target, FlexibleTimeWindow={"Mode": "OFF"})
    it.invoke("FindSchedules", {})

    def names() -> set[str]:
        return {each["Name"] for each in client.list_schedules()["Schedules"]}

    it.until(lambda: "old" not in names(), "the old schedule is not removed")
    expect("daily" in names(), names())


def scheduled(it: Served) -> None:
    """`eventbridge-scheduled-lambda`: every minute."""
    it.invoke("ScheduledFunction", {})
    it.until_logged("ScheduledFunction", "Hello World")


def machine_states(it: Served) -> None:
    """`eventbridge-sns-lambda`. Only AWS itself can send an event of EC2, so it is published to the topic."""
    event = {"source": "aws.ec2", "detail-type": "EC2 Instance State-change Notification"}
    it.client("sns").publish(TopicArn=it.physical("SNSTopic"), Message=json.dumps(event))
    it.until_logged("LambdaFunction", "EC2 Instance State-change Notification")


def function_states(it: Served) -> None:
    """`eventbridge-stepfunction-lambda-getfunctionstatus`."""
    given = {"Function_ARN_List_existing": {"lambda_arn_list_combined": []}, "NextMarker": None}
    client = it.client("stepfunctions")
    started = client.start_execution(stateMachineArn=it.physical("StepFunction"), input=json.dumps(given))

    def ended() -> dict[str, Any] | None:
        described = client.describe_execution(executionArn=started["executionArn"])
        return described if described["status"] != "RUNNING" else None

    execution = it.until(ended, "the execution has not ended")
    if execution["status"] != "SUCCEEDED":
        raise WrongAnswerError(f"{execution.get('error')}: {execution.get('cause')}")
    expect("MessageId" in json.loads(execution["output"]), execution["output"])


def poison_pill(it: Served) -> None:
    """`kinesis-lambda-error-handling`: good records are logged."""
    hydrogen = {"AtomicNumber": 1, "Element": "Hydrogen", "Symbol": "H", "AtomicMass": 1.007}
    it.client("kinesis").put_record(
        StreamName="DataActivityKinesisStream", Data=json.dumps(hydrogen).encode(), PartitionKey="key"
    )
    it.until_logged("KinesisDataStreamProcessor", "'Element': 'Hydrogen'")


def simple(it: Served) -> None:
    """`lambda`."""
    answer = it.invoke("SimpleFunction", {"name": "Ben"})
    expect(answer == "Hello Ben, from Lambda", answer)


def destinations(it: Served) -> None:
    """`lambda-destinations-sam`: the destination of a success is another function."""
    it.invoke("MainLambdaFunction", {}, kind="Event")
    it.until_logged("OnSuccessLambdaFunction", '"responsePayload":"hello world"')


def escalation(it: Served) -> None:
    """`lambda-durable-investigation-escalation`: a durable function notes the incident, and waits for an answer."""
    it.invoke("EscalationFunction", _FAILED_INVESTIGATION, kind="Event", alias="live")
    client, table = it.client("dynamodb"), it.physical("IncidentTable")
    [item] = it.until(lambda: client.scan(TableName=table)["Items"], "no incident in the table")
    expect("task-abc-001" in json.dumps(item), item)
    callbacks = it.physical("CallbackTable")
    it.until(lambda: client.scan(TableName=callbacks)["Items"], "no callback in the table")


def producer_consumer(it: Served) -> None:
    """`lambda-kinesis-lambda`."""
    answer = it.invoke("ProducerFunction", {"key1": "value1"})
    expect(answer == {"statusCode": 200, "body": "Successfully posted"}, answer)
    it.until_logged("ConsumerFunction", "Decoded data: ")


def with_layer(it: Served) -> None:
    """`lambda-layer`: a function with a layer works, the same function without it does not."""
    expect(it.invoke("PyMySQLLayerLambdaFunction", {}) is True, "with the layer")
    try:
        it.invoke("PyMySQLNoLayerLambdaFunction", {})
    except WrongAnswerError as error:
        expect("No module named 'pymysql'" in str(error), error)
    else:
        raise WrongAnswerError("the function without the layer works, too")


def parameter(it: Served) -> None:
    """`lambda-ssm-parameter`."""
    answer = it.invoke("LambdaFunction", {"method": "GET", "body": ""})
    expect(json.loads(answer["body"])["Parameter"]["Value"] == '{"key1":"value1"}', answer)


def resized(it: Served) -> None:
    """`s3-lambda-resizing-node`."""
    picture = next(iter(sorted(it.folder.rglob("*.jpg"))))
    it.client("s3").upload_file(str(picture), "pictures-in", "example.jpg")
    it.until(lambda: it.client("s3").list_objects_v2(Bucket="pictures-out").get("Contents"), "no resized picture")


def queue_to_table(it: Served) -> None:
    """`sqs-lambda-ddb-sam-ts`."""
    it.client("sqs").send_message(QueueUrl=it.outputs["QueueURL"], MessageBody='{"id": "1", "n": 2}')
    row = it.until_row("DestinationTable", {"id": {"S": "1"}})
    expect(row["n"] == {"N": "2"} and set(row["timestamps"]["M"]) == {"ddb", "sqs"}, row)


def queue(it: Served) -> None:
    """`sqs-lambda-nodejs-sam`."""
    it.client("sqs").send_message(QueueUrl=it.outputs["ProcessingQueueURL"], MessageBody='{"message": "Test"}')
    it.until_logged("ProcessorFunction", 'Processed message: {"message": "Test"}')


def tenants(it: Served) -> None:
    """`sqs-lambda-tenant-isolation-sam-py`."""
    it.client("sqs").send_message(
        QueueUrl=it.outputs["QueueUrl"], MessageBody='{"data": "test payload"}', MessageGroupId="tenant-blue"
    )
    it.until_logged("TenantIsolatedFunction", "Processing request for tenant: tenant-blue")


def settings_node(it: Served) -> None:
    """`sample-apps/blank-nodejs`."""
    event = json.loads((it.folder / "event.json").read_text())
    answer = it.invoke("function", event)
    expect(answer["AccountUsage"]["FunctionCount"] == 1, answer)


def settings_python(it: Served) -> None:
    """`sample-apps/blank-python`."""
    answer = it.invoke("function", json.loads((it.folder / "event.json").read_text()))
    expect(answer["FunctionCount"] == 1, answer)


def encrypted(it: Served) -> None:
    """`sample-apps/file-processing-python`."""
    client = it.client("s3")
    client.put_object(Bucket="papers", Key="paper.pdf", Body=_PDF)
    found = {"Bucket": "papers-encrypted", "Key": "paper_encrypted.pdf"}
    body = it.until(lambda: bytes(client.get_object(**found)["Body"].read()), "no PDF")
    expect(io.BytesIO(body).read(4) == b"%PDF" and b"/Encrypt" in body, body[:100])


def inline(it: Served) -> None:
    """`templates`, function-inline.yml."""
    answer = it.invoke("function", {})
    expect(answer["AccountUsage"]["FunctionCount"] == 1, answer)


def _account(it: Served) -> str:
    return str(it.client("sts").get_caller_identity()["Account"])


_PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj\nxref\n0 4\n0000000000 65535 f \n0000000009 00000 n \n"
    b"0000000054 00000 n \n0000000105 00000 n \ntrailer<</Size 4/Root 1 0 R>>\nstartxref\n168\n%%EOF\n"
)
CHECKS: dict[str, Callable[[Served], None]] = {
    "dynamodb-eventbridge": table_events,
    "dynamodb-streams-lambda-eventbridge-sam-node": table_to_bus,
    "eventbridge-cross-region/eventbus-destination": other_bus,
    "eventbridge-schedule-remove-one-time-schedules": old_schedules,
    "eventbridge-scheduled-lambda": scheduled,
    "eventbridge-sns-lambda": machine_states,
    "eventbridge-stepfunction-lambda-getfunctionstatus": function_states,
    "kinesis-lambda-error-handling": poison_pill,
    "lambda": simple,
    "lambda-destinations-sam": destinations,
    "lambda-durable-investigation-escalation": escalation,
    "lambda-kinesis-lambda": producer_consumer,
    "lambda-layer": with_layer,
    "lambda-ssm-parameter": parameter,
    "s3-lambda-resizing-node": resized,
    "sqs-lambda-ddb-sam-ts": queue_to_table,
    "sqs-lambda-nodejs-sam": queue,
    "sqs-lambda-tenant-isolation-sam-py": tenants,
    "sample-apps/blank-nodejs": settings_node,
    "sample-apps/blank-python": settings_python,
    "sample-apps/file-processing-python": encrypted,
    "templates": inline,
}
