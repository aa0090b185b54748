"""prometheus_client: its HTTP server, with a thread that waits for connections at the freeze."""

from __future__ import annotations

import urllib.request
from typing import Any

import prometheus_client
import repeated

DEADLINE_S = 60


class Prometheus:
    """Metrics, and the server that publishes them."""

    def __init__(self, _options: repeated.Options) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        self._gauge = prometheus_client.Gauge("square", "Of a number", ["name", "number"], registry=self._registry)
        self._server, _thread = prometheus_client.start_http_server(0, "127.0.0.1", registry=self._registry)

    def answer(self, number: int) -> Any:
        self._gauge.labels(repeated.name(), number).set(number * number)
        port = self._server.socket.getsockname()[1]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as response:
            lines = response.read().decode().splitlines()
        (value,) = [line for line in lines if f'name="{repeated.name()}",number="{number}"' in line]
        return value.replace(repeated.name(), "")


if __name__ == "__main__":
    repeated.main(Prometheus)
