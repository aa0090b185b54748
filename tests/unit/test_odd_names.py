"""Names of files, processes, threads and mounts that are not UTF-8; documents that cannot be decoded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.privileges import MODULES
from tests.unit.execution_fakes import claim
from thawd.environments.child_processes import Children
from thawd.environments.init_phase import InitError
from thawd.environments.runtime_api.messages import message_of
from thawd.environments.starts.image_key import key_of
from thawd.errors import StoreError
from thawd.snapshot.store import file_lists
from thawd.snapshot.store.file_digests import FileDigests
from thawd.transfer import record_body
from thawd.transfer.chunk_format import ChunkError

# Gives the calling thread the name b"\\xff\\xfe".
NAMED = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff\\xfe')"
UNDECODABLE = [b"[" * 100_000, b'{"x":' * 100_000, b'{"function": "\xff", "refused": "\xff"}']


def printed(script: str, *arguments: str) -> str:
    command = [*arguments, sys.executable, "-c", script]
    done = subprocess.run(command, env={**os.environ, **MODULES}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_dead_process_with_any_name_is_reaped() -> None:
    async def work() -> None:
        process = subprocess.Popen([sys.executable, "-S", "-c", NAMED], start_new_session=True)  # noqa: ASYNC220
        process.returncode = 0  # `Children` reaps it, not Popen
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        children = Children()
        children._note_session(process.pid)
        children.reap()
        with pytest.raises(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222

    claim(work)


def test_threads_and_children_with_any_names_keep_a_process_from_being_forked() -> None:
    script = f"""
import subprocess, sys, threading
from thawd.runtime import fork_refusals, process
named, ends = threading.Event(), threading.Event()
def run():
    {NAMED}
    named.set()
    ends.wait()
threading.Thread(target=run).start()
named.wait()
child = subprocess.Popen([sys.executable, "-S", "-c", r"{NAMED}; print(1, flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(len(process.native_threads()), len(fork_refusals._children()))
child.communicate()
ends.set()
"""
    assert printed(script) == "1 1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_mounts_with_any_names_do_not_matter(tmp_path: Path) -> None:
    mounting = 'mkdir "$0" && mount -t tmpfs none "$0" && exec "$@"'
    script = "from thawd.runtime import shared_files; print(shared_files.is_own(), shared_files.keep())"
    arguments = ["unshare", "-m", "sh", "-c", mounting, os.fsdecode(bytes(tmp_path) + b"/\xff")]
    assert printed(script, *arguments) == "False None"


def test_files_with_any_names_that_a_variable_leads_to_decide_the_key_of_an_image(tmp_path: Path) -> None:
    function = SimpleNamespace(
        environment={"MODELS": str(tmp_path)}, prime=None, snapshot_connections="drop", snapshot_listeners="refuse"
    )
    version = SimpleNamespace(
        function=function, python="python", python_version="3.12.0", code="/code", variables={}, places=None, root=None
    )
    keys = set()
    for name in (b"a", b"\xff", b"\xfe"):
        Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).write_text("x")
        keys.add(key_of(cast(Any, version), cast(Any, SimpleNamespace(digests=list))))
    assert len(keys) == 3


@pytest.mark.parametrize("text", UNDECODABLE)
def test_documents_that_cannot_be_decoded_are_reported_as_damaged(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ChunkError, match="damaged"):
        record_body.decode(text, function="f", sha256="0" * 64)
    with pytest.raises(StoreError, match="damaged"):
        file_lists.decode(text, where=tmp_path)
    (tmp_path / "digests").write_bytes(text)
    (tmp_path / "digests").chmod(0o600)
    FileDigests(tmp_path / "digests")


@pytest.mark.parametrize("text", UNDECODABLE)
def test_error_documents_that_cannot_be_decoded_are_passed_on(text: bytes) -> None:
    error = InitError.reported(message_of(text), text)
    assert str(error).startswith("Runtime.Unknown: ")
    assert error.document_for("id") == text
