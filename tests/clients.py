"""boto3 clients of the servers that the tests run on this machine."""

from __future__ import annotations

import threading
from typing import Any

import boto3
from botocore.config import Config

REGION = "us-east-1"
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
_MAKING = threading.Lock()
"""boto3's default session is not thread-safe."""


def client_of(url: str, service: str, **config: Any) -> Any:
    """Return a boto3 client with made-up credentials. May be called from any thread.

    Args:
        url: the service's address.
        service: AWS's name of the service.
        config: arguments of botocore's Config. The defaults are one attempt, so that a test sees each answer, and
            bucket names in the path.
    """
    given: dict[str, Any] = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}, **config}
    with _MAKING:
        client = boto3.client(service, endpoint_url=url, region_name=REGION, config=Config(**given), **KEYS)
        client.exceptions  # noqa: B018 - made on first use; two threads at once would make two sets of classes
        return client
