"""AWS, emulated in a process of its own for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.clients import client_of
from thawd.resources import ACCOUNT_ID


class EmulatedAws:
    """moto's server, as `thawd up --aws` runs it.

    Args:
        folder: keeps what it holds; None: that ends with it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def __enter__(self) -> EmulatedAws:
        # With a folder as thawd starts it: as the account that thawd's own ARNs are of.
        arguments = [] if self._folder is None else [str(self._folder)]
        account = {} if self._folder is None else {"MOTO_ACCOUNT_ID": ACCOUNT_ID}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "thawd.server.emulator.program", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **account},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
        self.url = f"http://127.0.0.1:{int(line)}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it; what it held is gone, unless a folder keeps it."""
        self._process.communicate()

    def kill(self) -> None:
        """Kill it with -9."""
        self._process.kill()
        self._process.wait()

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
