"""Deliveries to AWS: SQS, SNS, EventBridge and S3 buckets outside thawd, through boto3, an optional dependency.

All functions here block, so callers run them in threads. The clients do not retry: `thawd.queue.outcome_delivery` does.

Source: AWS Lambda developer guide, "Capturing records of Lambda asynchronous invocations"; the services' API references
and quotas.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from thawd.destinations.record import arn_in
from thawd.destinations.slots import SLOTS
from thawd.errors import DestinationRefused, DestinationUnavailable, ThawdError
from thawd.grammar.destination_names import is_fifo
from thawd.resources import REGION, Destination

if TYPE_CHECKING:
    from thawd.destinations.delivery import Delivery

CONNECT_S = 5.0
READ_S = 8.0
MAX_BYTES = {"sqs": 1_048_576, "sns": 262_144, "events": 1_048_576}
"""The largest message that each service accepts, including its attributes. A queue can be configured to accept less."""

# Errors that say that there are too many requests. A later request may succeed.
_THROTTLED = {
    "BandwidthLimitExceeded",
    "KmsThrottled",
    "KMS.ThrottlingException",
    "KMSThrottlingException",
    "LimitExceededException",
    "OverLimit",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
# Errors after which a later request may succeed: the credentials have expired, this machine's clock is wrong, or a
# request took too long.
_EXPIRED = {
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "RequestTimeTooSkewed",
    "RequestTimeout",
    "TokenRefreshRequired",
}
_INTERNAL = {"InternalException", "InternalFailure", "InternalError", "ServiceUnavailable"}


class Aws:
    """Clients of AWS's services.

    Args:
        endpoint: URL of an AWS emulator; None: AWS, configured by its usual environment variables and files.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}
        self._queues: dict[str, str] = {}

    def send(self, delivery: Delivery) -> None:
        """Send a delivery's body to its destination. When this returns, the service has accepted the body.

        Raises:
            DestinationUnavailable: the service does not answer or accepts no requests now, no credentials were found,
                or boto3 is not installed. A later attempt may succeed.
            DestinationRefused: the service refuses the body for good.
        """
        destination = delivery.destination
        if is_fifo(destination):
            raise DestinationRefused(
                f"{destination} is a FIFO queue or topic; as on Lambda, name a standard queue or topic instead"
            )
        size = len(delivery.body) + sum(len(name) + len(value.encode()) for name, value in delivery.attributes.items())
        most = MAX_BYTES.get(destination.kind)
        if most is not None and size > most:
            raise DestinationRefused(
                f"{destination} takes messages of at most {most:,} bytes; this message has {size:,}"
            )
        try:
            _SENDERS[destination.kind](self, delivery)
        except ThawdError:
            raise
        except Exception as error:
            raise self._translated(destination, error, size=size) from error

    def _translated(self, destination: Destination, error: Exception, *, size: int) -> Exception:
        """Return the error to raise for an error of boto3. Any other error is returned unchanged."""
        from botocore import exceptions as aws

        if isinstance(error, aws.ClientError):
            answer: dict[str, Any] = error.response
            code = str(answer.get("Error", {}).get("Code", ""))
            status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            self._queues.pop(destination.name, None)  # the queue may have been deleted and recreated at another URL
            message = f"{destination} answered {code}: {answer.get('Error', {}).get('Message', '')} ({size:,} bytes)"
            return _unavailable_or_refused(message, code, status)
        if isinstance(error, aws.ParamValidationError):
            return DestinationRefused(f"{destination}: {error}")
        if isinstance(error, aws.NoCredentialsError | aws.CredentialRetrievalError | aws.TokenRetrievalError):
            with self._lock:
                self._clients.clear()  # a client looks for credentials only once: a later attempt needs a new client
            return DestinationUnavailable(
                f"{destination}: there are no credentials for AWS: {error}; configure them for the user that runs thawd"
            )
        if isinstance(error, aws.BotoCoreError | OSError):
            return DestinationUnavailable(f"{destination} could not be reached: {error}")
        return error

    def _client(self, service: str, region: str) -> Any:
        with self._lock:  # threads can share boto3's clients, but must not make clients at the same time
            if (service, region) not in self._clients:
                self._clients[service, region] = self._make_client(service, region)
            return self._clients[service, region]

    def _make_client(self, service: str, region: str) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ModuleNotFoundError:
            raise DestinationUnavailable(
                "destinations at AWS need boto3, which is not installed; install it with: pip install 'thawd[aws]', "
                "then restart thawd"
            ) from None
        # An emulator accepts any credentials.
        credentials = {} if self._endpoint is None else {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            retries={"total_max_attempts": 1},
            max_pool_connections=4 * SLOTS,
            s3={"addressing_style": "path"} if self._endpoint is not None else {},
        )
        session = boto3.Session(region_name=region, **credentials)
        return session.client(service, endpoint_url=self._endpoint, config=config)

    def _send_sqs(self, delivery: Delivery) -> None:
        arn = delivery.destination.name
        _, _, _, region, account, name = arn.split(":")
        client = self._client("sqs", region)
        if arn not in self._queues:
            self._queues[arn] = client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"]
        client.send_message(
            QueueUrl=self._queues[arn],
            MessageBody=delivery.body.decode(),
            MessageAttributes=_attributes(delivery.attributes),
        )

    def _send_sns(self, delivery: Delivery) -> None:
        arn = delivery.destination.name
        self._client("sns", arn.split(":")[3]).publish(
            TopicArn=arn, Message=delivery.body.decode(), MessageAttributes=_attributes(delivery.attributes)
        )

    def _send_events(self, delivery: Delivery) -> None:
        arn = delivery.destination.name
        entry = {
            "Source": "lambda",
            "DetailType": f"Lambda Function Invocation Result - {'Success' if delivery.success else 'Failure'}",
            "Detail": delivery.body.decode(),
            "Resources": [arn, arn_in(delivery.body)],
            "EventBusName": arn,
        }
        answer = self._client("events", arn.split(":")[3]).put_events(Entries=[entry])
        if answer.get("FailedEntryCount"):
            (failed,) = answer["Entries"]
            code = str(failed.get("ErrorCode", ""))
            raise _unavailable_or_refused(
                f"{delivery.destination} answered {code}: {failed.get('ErrorMessage', '')}", code, 0
            )

    def _send_s3(self, delivery: Delivery) -> None:
        self._client("s3", REGION).put_object(
            Bucket=delivery.destination.name, Key=delivery.key, Body=delivery.body, ContentType="application/json"
        )


_SENDERS = {"sqs": Aws._send_sqs, "sns": Aws._send_sns, "events": Aws._send_events, "s3": Aws._send_s3}


def _attributes(attributes: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return message attributes in boto3's form. ``ErrorCode`` has the type Number, as AWS documents."""
    return {
        name: {"DataType": "Number" if name == "ErrorCode" else "String", "StringValue": value}
        for name, value in attributes.items()
    }


def _unavailable_or_refused(message: str, code: str, status: int) -> ThawdError:
    passes = status >= 500 or status == 429 or code in _THROTTLED | _EXPIRED | _INTERNAL
    return DestinationUnavailable(message) if passes else DestinationRefused(message)
