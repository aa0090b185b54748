"""Documents that several threads decode at once, for the first time in their process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, sys, threading
from thawd.errors import ImageError
from thawd.oci import documents
from thawd.system import decoded_types

assert decoded_types.examine() > 5

sys.setswitchinterval(1e-6)
manifest = b'{"schemaVersion": 2, "config": %s, "layers": [%s]}'
blob = b'{"mediaType": "a", "digest": "sha256:' + b"a" * 64 + b'", "size": 1}'
config = b'{"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}'

def decode():
    with contextlib.suppress(ImageError):  # what the documents say does not matter here
        documents.decode_manifest(manifest % (blob, blob), "M")
    with contextlib.suppress(ImageError):
        documents.decode_config(config, "C")

threads = [threading.Thread(target=decode) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("attempt", range(6))
def test_threads_that_decode_the_first_documents_at_once_do_not_end_the_process(attempt: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), attempt
