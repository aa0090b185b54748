"""Datadog's StatsD client: one that sends immediately, and one that buffers and sends from its own threads."""

from __future__ import annotations

from typing import Any

import repeated
from datadog.dogstatsd import DogStatsd


class StatsD:
    """Two clients that have sent before the freeze."""

    def __init__(self, options: repeated.Options) -> None:
        host, port = options.address.split(":")
        self._clients = {
            "direct": DogStatsd(host=host, port=int(port), disable_buffering=True),
            "buffered": DogStatsd(
                host=host, port=int(port), disable_buffering=False, flush_interval=0.1, disable_background_sender=False
            ),
        }

    def answer(self, number: int) -> Any:
        for kind, client in self._clients.items():
            client.gauge("square", number * number, tags=[f"name:{repeated.name()}", f"kind:{kind}"])
        for client in self._clients.values():
            client.flush()
            client.wait_for_pending()
        return number * number


if __name__ == "__main__":
    repeated.main(StatsD)
