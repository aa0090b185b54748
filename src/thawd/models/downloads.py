"""Accesses S3 through a separate process (`thawd.models.download_process`), which is started when it is first needed.

The process is ended before a snapshot is taken. A fork starts its own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import IO, Any, Callable, Dict, List, Optional

from thawd.models import snapshot_hooks
from thawd.models.addresses import Address
from thawd.models.faults import ModelChangedError, ModelError, ModelNotFoundError, missing

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "download_process.py")
_ERRORS = {"missing": ModelNotFoundError, "changed": ModelChangedError}

OnProgress = Callable[[Dict[str, Any]], None]


class _Process:
    """The separate process, which gets one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Optional[subprocess.Popen[str]] = None
        self._owner = 0

    def ask(self, request: Dict[str, Any], on_progress: Optional[OnProgress]) -> Any:
        """Send one request and return its answer; `on_progress` is called with each progress line.

        Raises:
            ModelError: the store or the process failed.
        """
        if self._owner != os.getpid():  # in a fork, the process and the lock belong to the parent
            self._lock, self._process, self._owner = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._process is None:
                self._start()
            return self._exchange(request, on_progress)

    def end(self) -> None:
        """End the separate process, unless it belongs to the process that this one was forked from."""
        if self._process is not None and self._owner == os.getpid():
            process, self._process = self._process, None
            _pipe(process.stdin).close()
            _pipe(process.stdout).close()
            process.wait()

    def _start(self) -> None:
        snapshot_hooks.before(self.end)
        self._process = subprocess.Popen(
            [sys.executable, _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        try:
            self._exchange({"op": "hello", "path": sys.path}, None)
        except BaseException:
            self.end()
            raise

    def _exchange(self, request: Dict[str, Any], on_progress: Optional[OnProgress]) -> Any:
        process = self._process
        assert process is not None
        try:
            try:
                _pipe(process.stdin).write(json.dumps(request) + "\n")
                _pipe(process.stdin).flush()
            except BrokenPipeError:
                pass  # the process has ended, so the loop below finds the end of its output
            for line in _pipe(process.stdout):
                answer = json.loads(line)
                if "done" in answer:
                    return answer["done"]
                if "error" in answer:
                    raise _error_of(answer, request)  # noqa: TRY301 - after a complete answer the process can continue
                if on_progress is not None:
                    on_progress(answer)
        except ModelError:  # the process answered with an error; it continues
            raise
        except BaseException:  # end the process: its unread answer could be taken for the answer to the next request
            process.kill()
            self.end()
            raise
        self.end()
        raise ModelError(f"the process that sends requests to S3 ended with status {process.returncode}; try again")


def _pipe(pipe: Optional[IO[str]]) -> IO[str]:
    assert pipe is not None
    return pipe


def _error_of(answer: Dict[str, Any], request: Dict[str, Any]) -> ModelError:
    if answer["kind"] == "library":
        return missing("obstore", "pip install 'thawd[buckets]' (for a function, add obstore to its requirements)")
    return _ERRORS.get(answer["kind"], ModelError)(f"s3://{request['bucket']}/{request['key']}: {answer['error']}")


_process = _Process()


def _request(op: str, address: Address, **more: Any) -> Dict[str, Any]:
    return {"op": op, "bucket": address.bucket, "key": address.key, "parameters": address.parameters, **more}


def head(address: Address, *, version: Optional[str] = None) -> Dict[str, Any]:
    """Ask for an object's ``size`` in bytes, ``etag`` and ``version``.

    Raises:
        ModelNotFoundError: there is no such object.
        ModelError: the store cannot be reached.
    """
    found: Dict[str, Any] = _process.ask(_request("head", address, version=version), None)
    return found


def below(address: Address) -> List[Dict[str, Any]]:
    """The objects whose keys begin with the address's key (a folder), sorted by key.

    Each is described by ``key`` and the fields that `head` returns.
    """
    found: List[Dict[str, Any]] = _process.ask(_request("list", address), None)
    return found


def fetch(address: Address, on_progress: Optional[OnProgress], **places: Any) -> Dict[str, Any]:
    """Download an object into the cache, unless another process has done so; return the object's record in the cache.

    Args:
        address: the object.
        on_progress: called with each progress line; None: progress is not reported.
        places: paths in the cache and properties of the object, for `thawd.models.download_process`.

    Raises:
        ModelChangedError: the object was replaced in the meantime, or its SHA-256 is not the requested one.
        ModelError: the store failed. The downloaded part is kept, and the next call resumes the download.
    """
    recorded: Dict[str, Any] = _process.ask(_request("fetch", address, text=address.text, **places), on_progress)
    return recorded
