"""Delivers events to the targets of EventBridge's rules and schedules. Runs in the emulator's own process.

A target may be a function, an SQS queue, an SNS topic, a state machine, a Kinesis stream, an event bus or a log group;
a schedule may also name any operation of an AWS service. Functions are invoked asynchronously through thawd's Lambda
API, so thawd has stored the event when the delivery is complete. If a delivery fails, thawd prints a line on the
console, and sends the event to the target's dead-letter queue. Other targets are not affected.

Source: EventBridge user guide, "Event bus targets" and "Using dead-letter queues"; EventBridge Scheduler user guide,
"Managing targets".
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# boto3's names of services, by the name in AWS's other SDKs where it differs.
_SERVICES = {"sfn": "stepfunctions", "eventbridge": "events", "cloudwatchlogs": "logs"}
_UNIVERSAL = "arn:aws:scheduler:::aws-sdk:"
_LONGEST_ATTRIBUTE = 1000


class TargetError(Exception):
    """An event cannot be delivered to a target; the message says why."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The rule or schedule that sends an event.

    Attributes:
        kind: ``rule`` or ``schedule``.
        name: its name.
        arn: its ARN.
    """

    kind: str
    name: str
    arn: str


class EventTargets:
    """Delivers events.

    Args:
        connect: returns a boto3 client for thawd's address, by service and region.
        complain: prints a line for the operator.
    """

    def __init__(self, connect: Callable[..., Any], complain: Callable[[str], None]) -> None:
        self._connect = connect
        self._complain = complain

    def send(self, target: dict[str, Any], make_text: Callable[[], str], sender: Sender) -> None:
        """Deliver an event to a target. A failure is reported, not raised.

        Args:
            target: the target, in the form of ``PutTargets`` or ``CreateSchedule``.
            make_text: returns the text to deliver. If it raises an exception, the delivery has failed.
            sender: the rule or schedule that sends the event.
        """
        text = ""
        try:
            text = make_text()
            self._deliver(target, text)
        except Exception as error:  # whatever fails, the other targets get the event, and `PutEvents` succeeds
            arn = target["Arn"]
            does = "invoke" if ":lambda:" in arn else "deliver to"
            self._complain(f"thawd: --aws: the {sender.kind} {sender.name} could not {does} {arn}: {error}")
            self._to_dead_letter_queue(target, text, sender, error)

    def _deliver(self, target: dict[str, Any], text: str) -> None:
        arn = str(target["Arn"])
        if arn.startswith(_UNIVERSAL):
            self._call(arn.removeprefix(_UNIVERSAL), text)
            return
        _, _, service, region, account, resource, *_ = [*arn.split(":", 5), "", "", "", "", "", ""]
        deliver = {
            "lambda": self._invoke,
            "sqs": _to_queue,
            "sns": _to_topic,
            "states": _to_machine,
            "kinesis": _to_stream,
            "events": _to_bus,
            "logs": self._to_log,
        }.get(service)
        if deliver is None:
            raise TargetError(f"the emulator of thawd has no targets of the service {service}")
        deliver(_Delivery(target, arn, region, account, resource, text))

    def _invoke(self, one: _Delivery) -> None:
        self._connect().invoke(FunctionName=one.arn, InvocationType="Event", Payload=one.text.encode())

    def _to_log(self, one: _Delivery) -> None:
        logs = self._connect("logs", region=one.region)
        place = {"logGroupName": one.resource.removeprefix("log-group:").removesuffix(":*")}
        place["logStreamName"] = str(uuid.uuid4())
        logs.create_log_stream(**place)
        logs.put_log_events(**place, logEvents=[{"timestamp": int(time.time() * 1000), "message": one.text}])

    def _call(self, operation: str, text: str) -> None:
        """Call the operation of a universal target, such as ``sqs:sendMessage``."""
        from botocore import xform_name

        service, _, action = operation.partition(":")
        client = self._connect(_SERVICES.get(service, service), is_patient=True)
        getattr(client, xform_name(action[:1].upper() + action[1:]))(**json.loads(text or "{}"))

    def _to_dead_letter_queue(self, target: dict[str, Any], text: str, sender: Sender, error: Exception) -> None:
        arn = target.get("DeadLetterConfig", {}).get("Arn")
        if not arn:
            return
        code = getattr(error, "response", {}).get("Error", {}).get("Code") or type(error).__name__
        attributes = {
            f"{sender.kind.upper()}_ARN": sender.arn,
            "TARGET_ARN": str(target["Arn"]),
            "ERROR_CODE": code,
            "ERROR_MESSAGE": str(error)[:_LONGEST_ATTRIBUTE] or code,
        }
        values = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
        try:
            _, _, _, region, account, queue = arn.split(":", 5)
            _queues(account, region).send_message(queue_name=queue, message_body=text, message_attributes=values)
        except Exception as failure:
            self._complain(f"thawd: --aws: the dead-letter queue {arn} did not get the event: {failure}")


@dataclass(frozen=True, slots=True)
class _Delivery:
    """One delivery: the target, the parts of its ARN, and the text that it gets."""

    target: dict[str, Any]
    arn: str
    region: str
    account: str
    resource: str
    text: str


def _queues(account: str, region: str) -> Any:
    from moto.sqs.models import sqs_backends

    return sqs_backends[account][region]


def _to_queue(one: _Delivery) -> None:
    group = one.target.get("SqsParameters", {}).get("MessageGroupId")
    _queues(one.account, one.region).send_message(queue_name=one.resource, message_body=one.text, group_id=group)


def _to_topic(one: _Delivery) -> None:
    from moto.sns.models import sns_backends

    sns_backends[one.account][one.region].publish(message=one.text, arn=one.arn)


def _to_machine(one: _Delivery) -> None:
    from moto.stepfunctions.parser.models import stepfunctions_parser_backends

    stepfunctions_parser_backends[one.account][one.region].start_execution(one.arn, execution_input=one.text)


def _to_stream(one: _Delivery) -> None:
    from moto.kinesis.models import kinesis_backends

    given = one.target.get("KinesisParameters", {})
    key = given.get("PartitionKey") or str(uuid.uuid4())
    name = one.resource.removeprefix("stream/")
    data = base64.b64encode(one.text.encode()).decode()
    kinesis_backends[one.account][one.region].put_record(one.arn, name, key, "", data)


def _to_bus(one: _Delivery) -> None:
    from moto.events.models import events_backends

    given = one.target.get("EventBridgeParameters")
    if given:
        entry = {"Source": given["Source"], "DetailType": given["DetailType"], "Detail": one.text or "{}"}
    else:
        event = json.loads(one.text)
        entry = {"Source": event["source"], "DetailType": event["detail-type"], "Detail": json.dumps(event["detail"])}
        entry["Resources"] = event.get("resources", [])
    entry["EventBusName"] = one.arn
    (result,) = events_backends[one.account][one.region].put_events([entry])
    if "ErrorCode" in result:
        raise TargetError(f"{result['ErrorCode']}: {result['ErrorMessage']}")
