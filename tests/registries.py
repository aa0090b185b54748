"""A registry of container images: docker-registry, as Debian packages it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import quiet_port
from tests.waiting import pause


@contextlib.contextmanager
def docker_registry(folder: Path) -> Iterator[str]:
    """Run a registry that allows no deletion, in the ``with`` block; without the program, skip the test.

    Args:
        folder: where its configuration and its images are.

    Yields:
        Its host and port.
    """
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    port = quiet_port()
    configuration = folder / "registry.yml"
    configuration.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder / 'registry'}}}}}\n"
        f'http: {{addr: "127.0.0.1:{port}"}}\nlog: {{level: error}}\n'
    )
    with subprocess.Popen([program, "serve", configuration], stderr=subprocess.DEVNULL) as running:
        try:
            begun_s = time.monotonic()
            while not _answers(port):
                assert running.poll() is None
                pause(begun_s)
            yield f"localhost:{port}"
        finally:
            running.kill()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
