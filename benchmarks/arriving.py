"""How much later a machine answers if it never had the function's image, which has 1 GiB of weights.

What: the time from when the server accepts connections until the first answer of the function, on a machine that must
receive the snapshot, minus the same time on a machine that has it; and the share of the image's bytes that had left
the store by then. The bound of the former is 250 ms, plus the time that these bytes take at 10 Gbit/s.

How: the function fills 1 GiB with random bytes at init, and a request reads 5 % of them. One server freezes it, and
sends it to a store in a folder. A program serves the folder as a bucket. Then the data folder is removed, as on another
machine, and a server starts and gets a request at once. That server is started again for the time with the image.
The other machine is simulated by the empty data folder, and the network by loopback, whose bandwidth is not limited.

Why: an image is made once, and other machines should not wait for more of it than they need.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks import progress, serving
from benchmarks.report import AT_MOST, BenchmarkError, Figure, Skipped
from thawd.snapshot.engine import unavailable
from thawd.transfer.fuse_files import why_not_detached
from thawd.transfer.store_layout import missing_library

TITLE = "arriving: functions whose image is in a store of chunks"

WEIGHTS_BYTES = 1 << 27
USED = 0.05
ROUNDS = 2
MOST_MS = 250.0
MOST_SHARE = 0.15
NETWORK_BYTES_S = 10e9 / 8
SENT_S = 300.0
_KEY = "snapshots.key"

HANDLER = f"""
import hashlib
import os
import zlib

weights = os.urandom({WEIGHTS_BYTES})


def handler(event, context):
    return zlib.crc32(memoryview(weights)[:{int(WEIGHTS_BYTES * USED)}])
"""

CONFIGURATION = """
[server]
data = "data"
snapshot_store = "{store}"
chunk_cache_max_mb = 0
[functions.weights]
handler = "weights.handler"
code = "code"
memory_mb = 1536
timeout_s = 60
init_timeout_s = 120
prime = {{}}
"""


def measure() -> Sequence[Figure]:
    """Measure both times, in rounds."""
    why = unavailable() or why_not_detached() or missing_library(Path())
    if why is not None:
        raise Skipped(why)
    serving.BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=serving.BUILD) as name:
        folder = Path(name)
        (folder / "code").mkdir()
        (folder / "code" / "weights.py").write_text(HANDLER)
        right, image_bytes = _freeze(folder)
        with serving.bucket(folder / "store") as bucket:
            store = f"s3://chunks/?endpoint={bucket.url}&anonymous=true"
            (folder / "thawd.toml").write_text(CONFIGURATION.format(store=store))
            added_ms, shares, notes = [], [], []
            for _ in progress.rounds(ROUNDS):
                _forget(folder)
                before = _sent_bytes(bucket.url)
                first_ms, moved_bytes = _first_answer(folder, bucket.url, right)
                moved_bytes -= before
                again_ms, _ = _first_answer(folder, bucket.url, right)
                added_ms.append(first_ms - again_ms - 1000 * moved_bytes / NETWORK_BYTES_S)
                shares.append(moved_bytes / image_bytes)
                notes.append(f"{first_ms:.0f}/{again_ms:.0f}")
    return [
        Figure(
            "first answer without the image, minus with it and the network's time",
            statistics.median(added_ms), "ms", AT_MOST, MOST_MS, f"ms without/with: {' '.join(notes)}",
        ),
        Figure("share of the image's bytes moved before the answer", max(shares), "x", AT_MOST, MOST_SHARE),
    ]  # fmt: skip


def _freeze(folder: Path) -> tuple[object, int]:
    """Freeze the function, and send it to the store. Returns its answer, and the size of its memory in the image."""
    (folder / "thawd.toml").write_text(CONFIGURATION.format(store=folder / "store"))
    (folder / "data").mkdir(mode=0o700)
    serving.command(folder, "snapshot", "key")
    with serving.thawd_in(folder, options=["--ready-when", "published"]) as served:
        right = serving.invoke(served, "weights", {})

        def sent() -> int | None:
            listed = serving.command(folder, "snapshot", "list", "--store", str(folder / "store"), "--json")
            rows = json.loads(listed)
            return len(rows) or None

        serving.wait_for(sent, "the snapshot in the store", within_s=SENT_S)
    [image] = (folder / "data" / "snapshots").glob("*.img")
    return right, image.stat().st_blocks * 512


def _forget(folder: Path) -> None:
    """Make the data folder that of a machine that has nothing but the key."""
    key = (folder / "data" / _KEY).read_text()
    shutil.rmtree(folder / "data")
    (folder / "data").mkdir(mode=0o700)
    (folder / "data" / _KEY).touch(0o600)
    (folder / "data" / _KEY).write_text(key)


def _first_answer(folder: Path, bucket: str, right: object) -> tuple[float, int]:
    """Start the server, and invoke the function at once. Then wait until the image is there.

    Returns:
        The time from the server's first connection to the answer, milliseconds; and the bytes that had been sent then.
    """
    with serving.thawd_in(folder) as served:
        begun_s = time.perf_counter()
        answer = serving.invoke(served, "weights", {})
        took_ms = 1000 * (time.perf_counter() - begun_s)
        moved_bytes = _sent_bytes(bucket)
        if answer != right:
            raise BenchmarkError(f"the function answered {answer!r}, but where it was frozen {right!r}")
        if "thaw" not in served.function("weights")["starts"]:
            raise BenchmarkError(f"the function was not thawed; {(folder / 'server.log').read_text()[-2000:]}")
        serving.wait_for(
            lambda: None if served.function("weights")["snapshot"].get("arriving") else True,
            "the whole image",
            within_s=SENT_S,
        )
    return took_ms, moved_bytes


def _sent_bytes(bucket: str) -> int:
    with urllib.request.urlopen(f"{bucket}/-/bytes", timeout=10) as response:
        return int(response.read())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdout.writelines(f"{figure}\n" for figure in measure())
