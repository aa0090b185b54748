"""How much time a forward to another machine of the cluster adds to a request.

What: the median latency of a no-op function with one client: at the machine that runs it, and at another machine that
has no environment of it free and forwards each request. The figure is the difference.

How: two servers of one cluster on this machine, over loopback without TLS. The function has one environment on each. An
invocation that waits occupies that of the first server, so that it forwards all other requests. The two servers are
measured in turns.

Why: the cluster may forward any request. On a real network, the network's own round trip is added.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import load, machine, progress, serving
from benchmarks.report import AT_MOST, BenchmarkError, Figure

TITLE = "forwarding: a request that another machine runs"

MOST_ADDED_MS = 1.5
ROUNDS = 5
ROUND_S = 1.0
BODY = b"{}"

HANDLER = """
import os, time
def handler(event, context):
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.02)
    return 1
"""


def measure() -> Sequence[Figure]:
    """Measure both medians."""
    ports = free_ports(2)
    addresses = ", ".join(f'{name} = "127.0.0.1:{port}"' for name, port in zip("ab", ports, strict=True))
    with contextlib.ExitStack() as stack:
        served = []
        for name in "ab":
            configuration = (
                f'[cluster]\nname = "{name}"\nkey = "a-key-for-this-benchmark"\nmachines = {{ {addresses} }}\n'
                '[functions.noop]\nhandler = "noop.handler"\ncode = "code"\ntimeout_s = 900\n'
                "reserved_concurrency = 2\nprovisioned_concurrency = 2\n"
            )
            served.append(stack.enter_context(serving.thawd(configuration, {"code/noop.py": HANDLER})))
        gate = Path(served[0].folder, "gate")
        stack.callback(gate.touch)
        occupying = threading.Thread(target=serving.invoke, args=(served[0], "noop", {"gate": str(gate)}), daemon=True)
        occupying.start()
        serving.wait_for(lambda: _is_ready(served[0].status()) or None, "a busy environment", within_s=60)
        urls = [f"{each.url}/2015-03-31/functions/noop/invocations" for each in served]
        for url in urls:
            load.drive(url, body=BODY, connections=1, duration_s=ROUND_S)
        rounds = [
            [load.drive(url, body=BODY, connections=1, duration_s=ROUND_S).p50_us / 1000 for url in urls]
            for _ in progress.rounds(ROUNDS)
        ]
        counted = json.loads(json.dumps(served[0].status()["cluster"]))
        if not counted["forwarded"] or counted["refused"] > counted["forwarded"] / 100:
            raise BenchmarkError(f"requests were not forwarded: {counted}")
        gate.touch()
    forwarded_ms, direct_ms = (statistics.median(times) for times in zip(*rounds, strict=True))
    return [
        Figure(
            "added by a forward, p50",
            statistics.median(forwarded - direct for forwarded, direct in rounds),
            "ms",
            AT_MOST,
            machine.bound(MOST_ADDED_MS),
            f"{forwarded_ms:.2f} ms forwarded, {direct_ms:.2f} ms direct, {counted['forwarded']} requests",
        )
    ]


def _is_ready(status: dict[str, Any]) -> bool:
    is_busy = status["functions"]["noop"]["environments"]["busy"] == 1
    return is_busy and status["cluster"]["machines"]["b"]["idle"] == 1


def free_ports(count: int) -> list[int]:
    """Return ports that nothing uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
