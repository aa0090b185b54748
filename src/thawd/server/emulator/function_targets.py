"""Lets the emulated SNS topics and EventBridge rules invoke thawd's functions. Runs in the emulator's own process.

moto, the emulator, has a Lambda service of its own, which has no functions. So a topic with a function as subscriber,
or a rule with a function as target, would fail or do nothing. Here both invoke the function through thawd's Lambda API,
asynchronously, as on AWS: thawd has stored the event before the emulator answers ``Publish`` or ``PutEvents``.

If a function does not exist, or thawd does not accept the event for another reason, the console says so. The other
targets of the topic or rule are not affected.

Source: AWS Lambda developer guide, "Invoking Lambda functions with Amazon SNS notifications" and "Process events from
Amazon EventBridge"; EventBridge user guide, "Amazon EventBridge target input".
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from thawd.server.emulator import traces

_LAMBDA = ":lambda:"
# The pieces of a template: an escaped character, a quotation mark, a name between angle brackets, or another character.
_PIECES = re.compile(r'\\.|"|<[\w.-]+>|.', re.DOTALL)
# The steps of a path: ``.name`` or ``[index]``.
_STEPS = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_ANSWER_S = 30
# Longer than the longest time-out of a function, and its start.
_LONGEST_S = 1200


class FunctionTargets:
    """Invokes functions for topics and rules.

    Args:
        complain: prints a line for the operator.
    """

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._connection: dict[str, str] | None = None
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}

    def connect(self, connection: dict[str, str]) -> None:
        """Invoke functions with this connection from now on: ``url``, ``access_key`` and ``secret``."""
        with self._lock:
            self._connection, self._clients = connection, {}

    def install(self) -> None:
        """Make moto's topics and rules use this object for functions."""
        from moto.events.models import Rule
        from moto.sns.models import Subscription

        publish, send_to_targets = Subscription.publish, Rule.send_to_targets

        def publish_or_invoke(subscription: Any, message: str, message_id: str, **options: Any) -> None:
            if subscription.protocol == "lambda":
                self._notify(subscription, message, message_id, options)
            else:
                publish(subscription, message, message_id, **options)

        def send_or_invoke(rule: Any, original_event: Any, transform_input: bool = True) -> None:
            functions = [target for target in rule.targets if _LAMBDA in target["Arn"]]
            if not functions:
                send_to_targets(rule, original_event, transform_input)
                return
            others = copy.copy(rule)
            others.targets = [target for target in rule.targets if target not in functions]
            send_to_targets(others, original_event, transform_input)
            if rule.event_pattern.matches_event(original_event):
                for target in functions:
                    self._send(target["Arn"], partial(input_of, target, original_event, rule), f"the rule {rule.name}")

        setattr(Subscription, "publish", publish_or_invoke)  # noqa: B010 - mypy forbids to assign to a method
        setattr(Rule, "send_to_targets", send_or_invoke)  # noqa: B010

    def _notify(self, subscription: Any, message: str, message_id: str, options: dict[str, Any]) -> None:
        attributes = options.get("message_attributes")
        matcher = subscription._filter_policy_matcher
        if matcher is not None and not matcher.matches(attributes, message):
            return
        if options.get("message_structure") == "json":
            message = subscription._parse_message_structure(message, subscription.protocol)
        record = {
            "EventSource": "aws:sns",
            "EventVersion": "1.0",
            "EventSubscriptionArn": subscription.arn,
            "Sns": {
                "Type": "Notification",
                "MessageId": message_id,
                "TopicArn": subscription.topic.arn,
                "Subject": options.get("subject"),
                "Message": message,
                "Timestamp": _now_text(),
                "SignatureVersion": "1",
                "Signature": "EXAMPLE",  # AWS signs each message; this emulator has no such key
                "SigningCertUrl": "EXAMPLE",
                "UnsubscribeUrl": "EXAMPLE",
                "MessageAttributes": {
                    name: {"Type": value["Type"], "Value": value["Value"]} for name, value in (attributes or {}).items()
                },
            },
        }
        self._send(subscription.endpoint, lambda: {"Records": [record]}, f"the topic {subscription.topic.name}")

    def _send(self, function: str, make_event: Callable[[], Any], sender: str) -> None:
        """Have the function with this ARN invoked; a failure is reported and not raised."""
        try:
            payload = json.dumps(make_event()).encode()
            self.client().invoke(FunctionName=function, InvocationType="Event", Payload=payload)
        except Exception as error:  # whatever fails, `Publish` and `PutEvents` succeed, as on AWS
            self._complain(f"thawd: --aws: {sender} could not invoke {function}: {error}")

    def client(self, service: str = "lambda", *, region: str = "us-east-1", is_patient: bool = False) -> Any:
        """A boto3 client for thawd's API, which passes the requests of other services than Lambda to the emulator.

        Args:
            service: name of the service.
            region: region of the service.
            is_patient: the client waits for the longest invocations, and does not retry.

        Raises:
            RuntimeError: `connect` has not been called yet.
        """
        with self._lock:
            key = f"{service} {region} {is_patient}"
            if key not in self._clients:
                if self._connection is None:
                    raise RuntimeError("thawd is still starting")
                import boto3
                from botocore.config import Config

                patience = {"read_timeout": _LONGEST_S, "retries": {"total_max_attempts": 1}} if is_patient else {}
                self._clients[key] = boto3.client(
                    service,
                    endpoint_url=self._connection["url"],
                    region_name=region,
                    aws_access_key_id=self._connection["access_key"],
                    aws_secret_access_key=self._connection["secret"],
                    config=Config(
                        **{"read_timeout": _ANSWER_S, **patience},
                        max_pool_connections=50,
                        proxies={},
                        s3={"addressing_style": "path"},
                    ),
                )
                self._clients[key].meta.events.register("before-call.lambda.Invoke", traces.add_to)
            return self._clients[key]


def input_of(target: dict[str, Any], event: dict[str, Any], rule: Any) -> Any:
    """The event that a rule's target gets.

    Args:
        target: the target: with ``Input``, ``InputPath``, ``InputTransformer``, or none of them.
        event: the event, in the form of EventBridge; moto gives its time in seconds.
        rule: moto's rule: its ``name`` and ``arn``.

    Raises:
        ValueError: ``Input``, or what the transformer makes, is not JSON.
    """
    event = dict(event)
    if isinstance(event.get("time"), (int, float)):
        event["time"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event["time"]))
    if target.get("Input") is not None:
        return json.loads(target["Input"])
    if target.get("InputPath"):
        return _at(target["InputPath"], event)
    transformer = target.get("InputTransformer")
    if not transformer:
        return event
    values = {name: _at(path, event) for name, path in transformer.get("InputPathsMap", {}).items()}
    values |= {
        "aws.events.rule-arn": rule.arn,
        "aws.events.rule-name": rule.name,
        "aws.events.event": {name: value for name, value in event.items() if name != "detail"},
        "aws.events.event.json": event,
        "aws.events.event.ingestion-time": event.get("time"),
    }
    return json.loads(_filled(transformer["InputTemplate"], values))


def _filled(template: str, values: dict[str, Any]) -> str:
    """The template of a transformer with its ``<name>`` replaced by values.

    In a text between quotation marks, a text is inserted as it is, another value as its JSON; elsewhere every value is
    inserted as JSON.
    """
    parts: list[str] = []
    in_text = False
    for part in _PIECES.findall(template):
        if part == '"':
            in_text = not in_text
            parts.append(part)
        elif part[0] == "<" and part[-1] == ">" and part[1:-1] in values:
            value = values[part[1:-1]]
            if in_text:
                text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
                parts.append(json.dumps(text)[1:-1])
            else:
                parts.append(json.dumps(value))
        else:
            parts.append(part)
    return "".join(parts)


def _at(path: str, event: Any) -> Any:
    """The value at a path such as ``$.detail.items[0].name``; None: there is none."""
    found = event
    for name, index in _STEPS.findall(path.removeprefix("$")):
        if name:
            found = found.get(name) if isinstance(found, dict) else None
        elif isinstance(found, list) and int(index) < len(found):
            found = found[int(index)]
        else:
            found = None
    return found


def _now_text() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
