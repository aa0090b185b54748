"""boto3's clients of what the tests serve on this machine."""

from __future__ import annotations

import threading
from typing import Any

import boto3
from botocore.config import Config

REGION = "us-east-1"
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
_MAKING = threading.Lock()
"""boto3's default session is not for several threads at once."""


def client_of(url: str, service: str, **config: Any) -> Any:
    """A boto3 client with nobody's keys; safe to ask for in any thread.

    Args:
        url: where the service is.
        service: AWS's name of it.
        config: as botocore's Config takes it. What is left out: one attempt, so that a test sees each answer, and the
            bucket's name in the path.
    """
    given: dict[str, Any] = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}, **config}
    with _MAKING:
        client = boto3.client(service, endpoint_url=url, region_name=REGION, config=Config(**given), **KEYS)
        client.exceptions  # noqa: B018 - made on first use; two threads at once would make two sets of classes
        return client
