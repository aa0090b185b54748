"""Puts records into Kinesis streams of the emulator, for subscription filters, through boto3."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from thawd.errors import ResourceNotFoundException, ServiceException
from thawd.resources import REGION

_CONNECT_S = 5.0
_READ_S = 30.0


class KinesisStreams:
    """The Kinesis streams of the emulator.

    Args:
        endpoint: URL of the emulator.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._client: Any = None

    async def exists(self, arn: str) -> bool:
        """Whether there is a stream with this ARN that accepts records.

        Raises:
            ServiceException: the emulator does not answer (500).
        """
        return await asyncio.to_thread(self._exists, arn)

    async def put(self, arn: str, data: bytes, key: str) -> None:
        """Put a record into a stream.

        Args:
            arn: ARN of the stream.
            data: the record's data.
            key: its partition key.

        Raises:
            ResourceNotFoundException: there is no such stream (404).
            ServiceException: the emulator does not accept the record now (500).
        """
        await asyncio.to_thread(self._put, arn, data, key)

    def _exists(self, arn: str) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            described = self._connected().describe_stream_summary(StreamARN=arn)
        except ClientError:
            return False
        except BotoCoreError as error:
            raise ServiceException(f"the emulator does not answer: {error}") from None
        return bool(described["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE")

    def _put(self, arn: str, data: bytes, key: str) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._connected().put_record(StreamARN=arn, Data=data, PartitionKey=key[:256])
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "ResourceNotFoundException":
                raise ResourceNotFoundException(f"there is no stream {arn}") from None
            raise ServiceException(f"{arn}: {error}") from None
        except BotoCoreError as error:
            raise ServiceException(f"the emulator does not answer: {error}") from None

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                import boto3
                from botocore.config import Config

                self._client = boto3.client(
                    "kinesis",
                    endpoint_url=self._endpoint,
                    region_name=REGION,
                    aws_access_key_id="test",
                    aws_secret_access_key="test",
                    config=Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S, proxies={}),
                )
            return self._client
