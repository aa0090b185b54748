"""Makes emulated SNS topics invoke thawd's functions, and connects to thawd. Runs in the emulator's own process.

moto would invoke functions of its own Lambda service, which has none. Here a topic invokes subscribed functions through
thawd's Lambda API. The invocation is asynchronous, as on AWS: thawd stores the event before the emulator answers
``Publish``.

If thawd refuses the event, for example because the function does not exist, thawd prints a line on the console. Other
subscribers of the topic are not affected.

Source: AWS Lambda developer guide, "Invoking Lambda functions with Amazon SNS notifications".
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from thawd.server.emulator import trace_headers

_ANSWER_S = 30
# Longer than a start and the longest time limit of a function.
_LONGEST_S = 1200


class FunctionTargets:
    """Invokes functions for topics, and makes clients for thawd's address.

    Args:
        complain: prints a line for the operator.
    """

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._connection: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}

    def connect(self, connection: dict[str, Any]) -> None:
        """From now on, connect to thawd with these values: ``url``, ``access_key`` and ``secret``."""
        with self._lock:
            self._connection, self._clients = connection, {}

    def connection(self) -> dict[str, Any]:
        """Return the connection: ``url``, ``access_key`` and ``secret``.

        Raises:
            RuntimeError: `connect` has not been called yet.
        """
        with self._lock:
            if self._connection is None:
                raise RuntimeError("thawd is still starting")
            return self._connection

    def install(self) -> None:
        """Change ``moto.sns.models``: topics invoke functions through this object."""
        from moto.sns.models import Subscription

        publish = Subscription.publish

        def publish_or_invoke(subscription: Any, message: str, message_id: str, **options: Any) -> None:
            if subscription.protocol == "lambda":
                self._notify(subscription, message, message_id, options)
            else:
                publish(subscription, message, message_id, **options)

        setattr(Subscription, "publish", publish_or_invoke)  # noqa: B010 - mypy forbids to assign to a method

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
                "Signature": "EXAMPLE",  # AWS signs each message; the emulator has no key to sign with
                "SigningCertUrl": "EXAMPLE",
                "UnsubscribeUrl": "EXAMPLE",
                "MessageAttributes": {
                    name: {"Type": value["Type"], "Value": value["Value"]} for name, value in (attributes or {}).items()
                },
            },
        }
        self._send(subscription.endpoint, {"Records": [record]}, f"the topic {subscription.topic.name}")

    def _send(self, function: str, event: Any, sender: str) -> None:
        """Invoke the function with this ARN asynchronously. A failure is reported, not raised."""
        try:
            payload = json.dumps(event).encode()
            self.client().invoke(FunctionName=function, InvocationType="Event", Payload=payload)
        except Exception as error:  # whatever fails, `Publish` succeeds, as on AWS
            self._complain(f"thawd: --aws: {sender} could not invoke {function}: {error}")

    def client(self, service: str = "lambda", *, region: str = "us-east-1", is_patient: bool = False) -> Any:
        """Return a boto3 client for thawd's port. thawd forwards requests to services that it does not have to moto.

        Args:
            service: name of the service.
            region: region of the service.
            is_patient: whether the client waits for the longest invocations and does not retry.

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
                self._clients[key].meta.events.register("before-call.lambda.Invoke", trace_headers.add_to)
            return self._clients[key]


def _now_text() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
