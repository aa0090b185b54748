"""AWS, emulated in a process of its own for tests."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Any

from tests.clients import client_of


class EmulatedAws:
    """moto's server, as `thawd up --aws` runs it."""

    def __enter__(self) -> EmulatedAws:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "thawd.emulated_aws"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it; what it held is gone."""
        self._process.communicate()

    def client(self, service: str) -> Any:
        """A boto3 client of it."""
        return client_of(self.url, service, retries=None)

    def make_table(self, name: str, *, key: str = "key", kind: str = "S", sort: str | None = None) -> None:
        """A table in DynamoDB."""
        keys = [(key, kind, "HASH")] + ([(sort, "S", "RANGE")] if sort else [])
        client = self.client("dynamodb")
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": n, "KeyType": t} for n, _, t in keys],
            AttributeDefinitions=[{"AttributeName": n, "AttributeType": k} for n, k, _ in keys],
            BillingMode="PAY_PER_REQUEST",
        )
        client.close()
