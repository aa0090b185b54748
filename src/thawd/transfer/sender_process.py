"""Sends a snapshot in a process of its own, so that a server that serves requests does not wait for it.

In one process, threads that cut, digest and compress would take turns with the server's loop: with a function of 214
MiB, 1 of 100 requests took 5 to 9 ms instead of 2 to 3.

The process has a low priority. It gets what to do as a JSON line on its standard input, and ends when the other end of
that pipe is closed, so it does not outlive the server. It prints the reason on its standard output if it cannot send.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from thawd.errors import ResourceNotFoundException, StoreError, ThawdError
from thawd.resources import RemoteBucket
from thawd.telemetry.console import stderr_of_children

# About a tenth of a busy processor. With the policy SCHED_IDLE, it would not end on a machine that is always busy.
_NICENESS = 10
_GONE = 3  # exit status: the snapshot was removed meanwhile
_MODULE = "thawd.transfer.sender_process"


class Task(msgspec.Struct, frozen=True):
    """What to send.

    Attributes:
        snapshots: folder of this machine's snapshots.
        sha256: the snapshot.
        folder: folder with the store of chunks; None: it is in `bucket`.
        bucket: bucket with the store of chunks; None: it is in `folder`.
        key: file with the main key.
    """

    snapshots: str
    sha256: str
    folder: str | None
    bucket: RemoteBucket | None
    key: str


def send_apart(task: Task) -> None:
    """Send a snapshot in a new process, and wait for its end. The caller must keep it from being killed as a stray.

    Raises:
        ResourceNotFoundException: the snapshot was removed meanwhile (HTTP 404).
        StoreError: it could not be sent; the message says why (HTTP 500).
    """
    command = [sys.executable, "-P", "-m", _MODULE]  # -P: no modules from the working folder
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr_of_children(),
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        process.stdin.flush()
        said = process.stdout.read().decode(errors="replace").strip()
        status = process.wait()
    if status == _GONE:
        raise ResourceNotFoundException(f"the snapshot {task.sha256[:12]} has been removed.")
    if status != 0:
        raise StoreError(said or f"the process that sends ended with status {status}")


def main() -> None:
    """The process itself."""
    from thawd.snapshot.store.images import SnapshotStore
    from thawd.transfer import sending, store_keys
    from thawd.transfer.store_layout import place_at

    task = msgspec.json.decode(_line(), type=Task)
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    os.nice(_NICENESS)
    where = task.bucket if task.bucket is not None else Path(task.folder or "")
    store = SnapshotStore(Path(task.snapshots))
    try:
        snapshot = store.resolve(task.sha256)
        sending.send(store, snapshot, place_at(where), store_keys.main_key(Path(task.key)))
    except ResourceNotFoundException:
        sys.exit(_GONE)
    except ThawdError as error:
        print(error.message)
        sys.exit(1)


def _line() -> bytes:
    """Read a line from standard input, and nothing after it. A buffered reader would be locked at the end."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(0, 1 << 16)):
        line += part
    return line


def _end_with_the_server() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
