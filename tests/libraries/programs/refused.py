"""Holds something that cannot be restored; its freeze is refused, it releases the thing, and then it can be frozen.

`refused.py IMAGE CASE` prints the refusal on standard error and then ``frozen``; a copy prints ``pass``. If the process
cannot release the thing, it ends with status 0 instead. It runs in the frozen process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from thawd.snapshot import engine

Release = Callable[[], object]
NOTHING_HELD = 77
"""Exit status if the library does not hold here what the case is about."""


def onnx_telemetry() -> Release:
    """ONNX Runtime's telemetry: a locked database for as long as the process lives.

    A separate thread opens it some time after the import.
    """
    import onnxruntime

    assert onnxruntime.get_available_providers()
    patience = time.monotonic() + 60
    while not _locks_held():
        if time.monotonic() > patience:
            print("ONNX Runtime opens no telemetry database here", file=sys.stderr)
            sys.exit(NOTHING_HELD)
        time.sleep(0.01)
    return sys.exit


def _locks_held() -> bool:
    """Return whether this process holds a lock on a file."""
    return any(line.split()[4] == str(os.getpid()) for line in Path("/proc/locks").read_text().splitlines())


def loader_workers() -> Release:
    """torch's persistent data loader workers: running child processes."""
    from torch.utils.data import DataLoader

    loader = DataLoader(list(range(100)), batch_size=10, num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 10
    kept = [loader]
    return kept.clear


def process_pool() -> Release:
    """A process pool of multiprocessing."""
    import multiprocessing

    pool = multiprocessing.get_context("fork").Pool(2)
    assert pool.map(abs, [-1, 1]) == [1, 1]

    def close() -> None:
        pool.close()
        pool.join()

    return close


def shared_memory() -> Release:
    """Named shared memory, which other processes may open."""
    from multiprocessing import resource_tracker, shared_memory

    area = shared_memory.SharedMemory(create=True, size=4096)

    def close() -> None:
        area.close()
        area.unlink()
        resource_tracker._resource_tracker._stop()

    return close


def joblib_processes() -> Release:
    """joblib's reusable workers."""
    import math

    from joblib import Parallel, delayed

    assert Parallel(n_jobs=2)(delayed(math.sqrt)(number) for number in (1, 4)) == [1, 2]
    return sys.exit


def http_server() -> Release:
    """A server on a port of the program's own choice."""
    import http.server
    import threading

    import httpx

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    client = httpx.Client(trust_env=False)
    assert client.get(f"http://127.0.0.1:{server.server_port}/").status_code == 204

    def close() -> None:
        client.close()
        server.shutdown()
        thread.join()
        server.server_close()

    return close


CASES: dict[str, Callable[[], Release]] = {
    case.__name__: case
    for case in (onnx_telemetry, loader_workers, process_pool, shared_memory, joblib_processes, http_server)
}


def main(image: Path, case: str) -> None:
    """Hold the thing, be refused, release it, freeze."""
    release = CASES[case]()
    try:
        engine.freeze(str(image))
    except engine.SnapshotRefused as refusal:
        print(refusal, file=sys.stderr, flush=True)
    else:
        sys.exit("it was not refused")
    left = {path.name for path in image.parent.iterdir()} - {"image.errors"}
    assert not left, f"the refusal left {left}"
    assert asyncio.run(asyncio.sleep(0, "goes on")) == "goes on"
    release()
    outcome = engine.freeze(str(image))
    if not outcome.restored:
        print(f"frozen {outcome.image_bytes}", flush=True)
        while True:
            signal.pause()
    print("pass", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
