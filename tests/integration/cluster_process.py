"""A process that wants a lease, for tests: it writes to a file each time that it acts as the leader.

Arguments: URL, name of the machine, file, seconds by which its wall clock is wrong. It prints a line for each lease
that it gets or loses. Each act appends a line ``TIME TOKEN NAME`` to the file, if `Lease.is_held` says that it may act.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from thawd.resources import StoreUrl
from thawd.stores.cluster.lease_thread import LeaseThread
from thawd.stores.cluster.leases import Lease
from thawd.stores.cluster.machines import Identity

LEADER = "leader"


def main() -> None:
    url, name, file, wrong_s = sys.argv[1:]
    real = time.time
    time.time = lambda: real() + float(wrong_s)
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(what: str) -> None:
        os.write(1, f"{what}\n".encode())

    def gained(lease: Lease) -> None:
        say(f"gained {lease.token}")

    leases = LeaseThread(
        StoreUrl(text=url, shown="there"), Identity(name, f"http://{name}"), holder=f"{name}/{os.getpid()}"
    )
    leases.summary = f"summary of {name}".encode()
    leases.want(LEADER, on_gained=gained, on_lost=lambda lease: say(f"lost {lease.token}"))
    leases.start(on_gained=lambda lease: say(f"member {lease.token}"), on_lost=lambda lease: say("cut off"))
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.wait(0.01):
        lease = leases.lease(LEADER)
        if lease is not None:
            os.write(log, f"{time.monotonic()} {lease.token} {name}\n".encode())
    leases.close()


if __name__ == "__main__":
    main()
