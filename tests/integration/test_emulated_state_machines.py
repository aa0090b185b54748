"""`thawd up --aws`: Step Functions run state machines, whose tasks are functions and services; stacks make them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients import client_of
from tests.integration.conftest import Project, Running, eventually
from tests.integration.emulated import AwsAt
from tests.integration.stack_operations import stack_status

CODE = """
import boto3, json
class NotNow(Exception): pass
def handler(event, context):
    if event.get("token"):
        boto3.client("stepfunctions").send_task_success(taskToken=event["token"], output='"called back"')
    if event.get("fails"):
        raise NotNow("later")
    return {"doubled": event.get("number", 0) * 2}
"""
CONFIG = """
[functions.f]
handler = "app.handler"
maximum_retry_attempts = 0
[functions.busy]
handler = "app.handler"
reserved_concurrency = 0
"""
ARN = "arn:aws:lambda:us-east-1:000000000000:function:"
INVOKE = "arn:aws:states:::lambda:invoke"
SDK = "arn:aws:states:::aws-sdk"
ROLE = "arn:aws:iam::000000000000:role/r"
END = {"Type": "Pass", "End": True}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("machines"))
    project.code(CODE)
    project.config(CONFIG)
    return project


@pytest.fixture(scope="module")
def running(project: Project) -> Iterator[Running]:
    with project.up("--aws") as served:
        yield served


class Machines:
    """Makes and runs state machines."""

    def __init__(self, running: Running) -> None:
        self.client = client_of(running.url, "stepfunctions", retries=None, inject_host_prefix=False)

    def make(self, name: str, states: dict[str, Any], kind: str = "STANDARD") -> str:
        definition = json.dumps({"StartAt": next(iter(states)), "States": states})
        made = self.client.create_state_machine(name=name, definition=definition, roleArn=ROLE, type=kind)
        return str(made["stateMachineArn"])

    def run(self, name: str, states: dict[str, Any], given: Any) -> tuple[str, Any, list[str]]:
        """Run a machine; return its output, or error and cause, with the types of its history."""
        arn = self.client.start_execution(stateMachineArn=self.make(name, states), input=json.dumps(given))[
            "executionArn"
        ]
        ended: dict[str, Any] = {}

        def has_ended() -> bool:
            ended.update(self.client.describe_execution(executionArn=arn))
            return bool(ended["status"] != "RUNNING")

        eventually(has_ended, what="the end of the execution")
        history = [one["type"] for one in self.client.get_execution_history(executionArn=arn)["events"]]
        output = json.loads(ended["output"]) if "output" in ended else (ended["error"], ended["cause"])
        return ended["status"], output, history


@pytest.fixture
def machines(running: Running) -> Machines:
    return Machines(running)


def test_a_task_is_a_function_by_its_arn_or_by_lambda_invoke(machines: Machines) -> None:
    states = {
        "Direct": {"Type": "Task", "Resource": f"{ARN}f", "ResultPath": "$.direct", "Next": "Service"},
        "Service": {
            "Type": "Task",
            "Resource": INVOKE,
            "Parameters": {"FunctionName": "f", "Payload.$": "$"},
            "ResultPath": "$.service",
            "End": True,
        },
    }
    status, output, history = machines.run("both", states, {"number": 4})
    assert (status, output["direct"]) == ("SUCCEEDED", {"doubled": 8})
    assert output["service"]["StatusCode"] == 200
    assert output["service"]["Payload"] == {"doubled": 8}
    assert "LambdaFunctionSucceeded" in history
    assert "TaskSucceeded" in history


def test_failures_are_tried_again_and_caught_by_the_names_that_aws_gives_them(machines: Machines) -> None:
    def task(resource: str, error: str, **more: Any) -> dict[str, Any]:
        return {
            "Task": {
                "Type": "Task",
                "Resource": resource,
                **more,
                "Retry": [{"ErrorEquals": [error], "IntervalSeconds": 1, "MaxAttempts": 1}],
                "Catch": [{"ErrorEquals": [error], "ResultPath": "$.caught", "Next": "End"}],
                "End": True,
            },
            "End": END,
        }

    status, output, history = machines.run("own", task(f"{ARN}f", "NotNow"), {"fails": True})
    assert (status, output["caught"]["Error"]) == ("SUCCEEDED", "NotNow")
    assert json.loads(output["caught"]["Cause"])["errorMessage"] == "later"
    assert history.count("LambdaFunctionFailed") == 2
    throttled = "Lambda.TooManyRequestsException"
    parameters = {"FunctionName": "busy", "Payload.$": "$"}
    for name, resource, more in (("arn", f"{ARN}busy", {}), ("service", INVOKE, {"Parameters": parameters})):
        status, output, _ = machines.run(f"busy-{name}", task(resource, throttled, **more), {})
        assert (status, output["caught"]["Error"]) == ("SUCCEEDED", throttled)
    status, (error, cause), _ = machines.run("absent", {"T": {"Type": "Task", "Resource": f"{ARN}no", "End": True}}, {})
    assert (status, error) == ("FAILED", "Lambda.ResourceNotFoundException")
    assert cause.startswith("Function not found: ")


def test_a_function_calls_back_and_jsonata_maps_and_services_work(machines: Machines, running: Running) -> None:
    queue = AwsAt(running.url).queue("steps")
    send = {"QueueUrl": f"{running.url}/000000000000/steps", "MessageBody": {"numbers": "{% $states.input %}"}}
    wait = {"FunctionName": "f", "Payload": {"token": "{% $states.context.Task.Token %}"}}
    double = {
        "Type": "Task",
        "Resource": f"{ARN}f",
        "Arguments": {"number": "{% $states.input %}"},
        "Output": "{% $states.result.doubled %}",
        "End": True,
    }
    states = {
        "Each": {
            "Type": "Map",
            "Items": "{% $states.input.numbers %}",
            "ItemProcessor": {"StartAt": "Double", "States": {"Double": double}},
            "Next": "Send",
        },
        "Send": {"Type": "Task", "Resource": "arn:aws:states:::sqs:sendMessage", "Arguments": send, "Next": "List"},
        "List": {"Type": "Task", "Resource": f"{SDK}:sqs:listQueues", "Arguments": {"NextToken": None}, "Next": "Wait"},
        "Wait": {"Type": "Task", "Resource": f"{INVOKE}.waitForTaskToken", "Arguments": wait, "End": True},
    }
    definition = json.dumps({"QueryLanguage": "JSONata", "StartAt": "Each", "States": states})
    made = machines.client.create_state_machine(name="jsonata", definition=definition, roleArn=ROLE)
    arn = machines.client.start_execution(stateMachineArn=made["stateMachineArn"], input='{"numbers": [1, 2, 3]}')

    def ended() -> dict[str, Any]:
        found: dict[str, Any] = machines.client.describe_execution(executionArn=arn["executionArn"])
        return found

    eventually(lambda: ended()["status"] != "RUNNING", what="the end of the execution")
    assert ended().get("output") == '"called back"', ended()
    (message,) = AwsAt(running.url).messages(queue)
    assert json.loads(message["Body"]) == {"numbers": [2, 4, 6]}


def test_an_express_machine_answers_synchronously(machines: Machines) -> None:
    task = {"T": {"Type": "Task", "Resource": f"{ARN}f", "End": True}}
    arn = machines.make("express", task, "EXPRESS")
    answer = machines.client.start_sync_execution(stateMachineArn=arn, input='{"number": 3}')
    assert (answer["status"], json.loads(answer["output"])) == ("SUCCEEDED", {"doubled": 6})
    answer = machines.client.start_sync_execution(stateMachineArn=arn, input='{"fails": true}')
    assert (answer["status"], answer["error"]) == ("FAILED", "NotNow")
    with pytest.raises(machines.client.exceptions.StateMachineTypeNotSupported):
        machines.client.start_sync_execution(stateMachineArn=machines.make("standard", task))


def test_a_stack_makes_state_machines(machines: Machines, running: Running) -> None:
    definition = {"StartAt": "T", "States": {"T": {"Type": "Task", "Resource": "${Function}", "End": True}}}
    properties = {
        "StateMachineName": "stacked",
        "RoleArn": ROLE,
        "Definition": definition,
        "DefinitionSubstitutions": {"Function": f"{ARN}f"},
    }
    template = {"Resources": {"M": {"Type": "AWS::StepFunctions::StateMachine", "Properties": properties}}}
    stacks = AwsAt(running.url).client("cloudformation")
    stacks.create_stack(StackName="machines", TemplateBody=json.dumps(template))
    assert stack_status(stacks, "machines") == "CREATE_COMPLETE"
    arn = stacks.describe_stack_resources(StackName="machines")["StackResources"][0]["PhysicalResourceId"]
    execution = machines.client.start_execution(stateMachineArn=arn, input='{"number": 5}')["executionArn"]
    output = {"doubled": 10}
    eventually(
        lambda: json.loads(machines.client.describe_execution(executionArn=execution).get("output", "0")) == output,
        what="the answer",
    )


def test_executions_are_there_after_a_restart_and_those_that_ran_have_failed(tmp_path_factory: Any) -> None:
    project = Project(tmp_path_factory.mktemp("restart"))
    project.config("")
    with project.up("--aws") as running:
        machines = Machines(running)
        machines.run("done", {"P": END}, {"a": 1})
        waiting = machines.make("waiting", {"W": {"Type": "Wait", "Seconds": 600, "End": True}})
        running_arn = machines.client.start_execution(stateMachineArn=waiting)["executionArn"]
    with project.up("--aws") as running:
        client = Machines(running).client
        (done,) = client.list_executions(stateMachineArn=waiting.replace("waiting", "done"))["executions"]
        history = client.get_execution_history(executionArn=done["executionArn"])["events"]
        assert (done["status"], len(history)) == ("SUCCEEDED", 4)
        found = client.describe_execution(executionArn=running_arn)
        assert (found["status"], found["error"]) == ("FAILED", "States.Runtime")


def test_a_stack_makes_schedules(machines: Machines, running: Running) -> None:
    aws = AwsAt(running.url)
    properties = {
        "Name": "stacked",
        "GroupName": {"Ref": "Group"},
        "ScheduleExpression": "rate(1 hour)",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "Target": {"Arn": {"Fn::GetAtt": ["Queue", "Arn"]}, "RoleArn": ROLE, "Input": "from a schedule"},
    }
    resources = {
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "scheduled"}},
        "Group": {"Type": "AWS::Scheduler::ScheduleGroup", "Properties": {"Name": "group"}},
        "Schedule": {"Type": "AWS::Scheduler::Schedule", "Properties": properties},
    }
    stacks, scheduler = aws.client("cloudformation"), aws.client("scheduler")
    stacks.create_stack(StackName="schedules", TemplateBody=json.dumps({"Resources": resources}))
    assert stack_status(stacks, "schedules") == "CREATE_COMPLETE"
    assert scheduler.get_schedule(Name="stacked", GroupName="group")["State"] == "ENABLED"
    queue = "arn:aws:sqs:us-east-1:000000000000:scheduled"
    eventually(lambda: [one["Body"] for one in aws.messages(queue)] == ["from a schedule"], what="the first run")
    changed = {**properties, "ScheduleExpression": "rate(2 hours)", "State": "DISABLED"}
    resources["Schedule"] = {"Type": "AWS::Scheduler::Schedule", "Properties": changed}
    stacks.update_stack(StackName="schedules", TemplateBody=json.dumps({"Resources": resources}))
    assert stack_status(stacks, "schedules") == "UPDATE_COMPLETE"
    found = scheduler.get_schedule(Name="stacked", GroupName="group")
    assert (found["ScheduleExpression"], found["State"]) == ("rate(2 hours)", "DISABLED")
    stacks.delete_stack(StackName="schedules")
    assert stack_status(stacks, "schedules") == "DELETE_COMPLETE"
    assert scheduler.list_schedules()["Schedules"] == []
