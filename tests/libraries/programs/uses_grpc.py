"""gRPC: a channel that is connected at the freeze, with its threads.

A call made before gRPC's own thread has noticed the end of the connection fails with UNAVAILABLE, as after any lost
connection. So the channel has a retry policy, as gRPC's guide calls it.
"""

from __future__ import annotations

import json
from typing import Any

import grpc
import repeated

DEADLINE_S = 60
RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


class Grpc:
    """A channel."""

    def __init__(self, options: repeated.Options) -> None:
        service = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": RETRY}]})
        self._channel = grpc.insecure_channel(options.address, options=[("grpc.service_config", service)])
        self._square = self._channel.unary_unary("/thawd.Numbers/Square")

    def answer(self, number: int) -> Any:
        request = json.dumps({"number": number, "name": repeated.name()}).encode()
        said = json.loads(self._square(request, timeout=DEADLINE_S, wait_for_ready=True))
        assert said["name"] == repeated.name(), said
        return said["square"]


if __name__ == "__main__":
    repeated.main(Grpc)
