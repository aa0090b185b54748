"""How much more a cluster of four machines carries than one machine.

What: answers per second of a function that sleeps, on one machine, on four machines of which all requests enter at one,
and on four at which the same number enters at each. The figures are ratios to the rate of one machine.

How: servers on this machine, which are connected over loopback without TLS. Each may have only a few environments, so
that their number is what limits a machine, not this machine's processor. Half as many clients again as all environments
can serve send requests without a pause.

Why: a request that waits at one machine while another one is free is capacity lost. Processor time is not measured
here: four real machines have four times as much of it.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks import load, progress, serving
from benchmarks.forwarding import free_ports
from benchmarks.report import AT_LEAST, BenchmarkError, Figure

TITLE = "cluster: four machines instead of one"

MACHINES = "abcd"
ENVIRONMENTS = 8
SLEEP_S = 1.0
CLIENTS = 12
"""Clients for each machine: more than `ENVIRONMENTS`."""
ROUNDS = 3
ROUND_S = 10.0
LEAST_RATIO = 3.6
BODY = b"{}"

HANDLER = f"""
import time
def handler(event, context):
    time.sleep({SLEEP_S})
    return 1
"""


def measure() -> Sequence[Figure]:
    """Measure the three rates."""
    with contextlib.ExitStack() as stack:
        [alone] = _machines(stack, "e")
        urls = _machines(stack, MACHINES)
        many = len(MACHINES) * CLIENTS
        ways = {
            "alone": [(alone, CLIENTS)],
            "entering at one": [(urls[0], many)],
            "entering at all": [(url, CLIENTS) for url in urls],
        }
        for clients in ways.values():
            _rate(clients)  # starts the environments
        rounds = [{way: _rate(clients) for way, clients in ways.items()} for _ in progress.rounds(ROUNDS)]
    figures = []
    for way in ("entering at one", "entering at all"):
        rates = [each[way] for each in rounds]
        one = [each["alone"] for each in rounds]
        note = f"{statistics.median(rates):.1f} answers/s, one machine {statistics.median(one):.1f}"
        ratio = statistics.median(rate / each for rate, each in zip(rates, one, strict=True))
        figures.append(Figure(f"four machines to one, {way}", ratio, "x", AT_LEAST, LEAST_RATIO, note))
    return figures


def _machines(stack: contextlib.ExitStack, names: str) -> list[str]:
    """Start the machines of a cluster; returns the URL of the function on each."""
    addresses = ", ".join(
        f'{name} = "127.0.0.1:{port}"' for name, port in zip(names, free_ports(len(names)), strict=True)
    )
    served = []
    for name in names:
        configuration = (
            f"[server]\nmax_environments = {ENVIRONMENTS}\n"
            f'[cluster]\nname = "{name}"\nkey = "a-key-for-this-benchmark"\nmachines = {{ {addresses} }}\n'
            '[functions.sleeps]\nhandler = "sleeps.handler"\ncode = "code"\nmemory_mb = 128\n'
        )
        served.append(stack.enter_context(serving.thawd(configuration, {"code/sleeps.py": HANDLER})))
    for each in served:
        serving.wait_for(
            lambda each=each: all(one["alive"] for one in each.status()["cluster"]["machines"].values()) or None,
            "machines that know each other",
            within_s=60,
        )
    return [f"{each.url}/2015-03-31/functions/sleeps/invocations" for each in served]


def _rate(clients: Sequence[tuple[str, int]]) -> float:
    """Answers per second at all URLs together, each with this number of clients."""

    def drive(client: tuple[str, int]) -> float:
        return load.drive(client[0], body=BODY, connections=client[1], duration_s=ROUND_S).rate_per_s

    with ThreadPoolExecutor(len(clients)) as threads:
        rate = sum(threads.map(drive, clients))
    if rate <= 0:
        raise BenchmarkError("no request was answered")
    return rate
