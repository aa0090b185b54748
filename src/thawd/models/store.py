"""S3, through a process beside this one (`thawd.models.store_process`), which is started when it is first needed.

The process is ended before a snapshot is taken, and a fork starts its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import IO, Any, Callable, Dict, List, Optional

from thawd.models import snapshots
from thawd.models.addresses import Address
from thawd.models.faults import ModelChangedError, ModelError, ModelNotFoundError, missing

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "store_process.py")
_ERRORS = {"missing": ModelNotFoundError, "changed": ModelChangedError}

Told = Callable[[Dict[str, Any]], None]


class _Process:
    """The process, one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Optional[subprocess.Popen[str]] = None
        self._owner = 0

    def ask(self, request: Dict[str, Any], told: Optional[Told]) -> Any:
        """The answer to one request; `told` gets what is said on the way.

        Raises:
            ModelError: the store, or the process, failed.
        """
        if self._owner != os.getpid():  # a fork: the process is its parent's, and the lock may be held by nobody
            self._lock, self._process, self._owner = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._process is None:
                self._start()
            return self._exchange(request, told)

    def end(self) -> None:
        """End the process, if it is this process's own."""
        if self._process is not None and self._owner == os.getpid():
            process, self._process = self._process, None
            _pipe(process.stdin).close()
            _pipe(process.stdout).close()
            process.wait()

    def _start(self) -> None:
        snapshots.before(self.end)
        self._process = subprocess.Popen(
            [sys.executable, _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        try:
            self._exchange({"op": "hello", "path": sys.path}, None)
        except BaseException:
            self.end()
            raise

    def _exchange(self, request: Dict[str, Any], told: Optional[Told]) -> Any:
        process = self._process
        assert process is not None
        try:
            try:
                _pipe(process.stdin).write(json.dumps(request) + "\n")
                _pipe(process.stdin).flush()
            except BrokenPipeError:
                pass  # it has died; its output ends, too
            for line in _pipe(process.stdout):
                answer = json.loads(line)
                if "done" in answer:
                    return answer["done"]
                if "error" in answer:
                    raise _error_of(answer, request)  # noqa: TRY301 - the answer is taken, the process goes on
                if told is not None:
                    told(answer)
        except ModelError:  # an answer
            raise
        except BaseException:  # an answer that nobody waits for any more must not be taken for the next one's
            process.kill()
            self.end()
            raise
        self.end()
        raise ModelError(f"the process that talks to S3 ended with status {process.returncode}; try again")


def _pipe(pipe: Optional[IO[str]]) -> IO[str]:
    assert pipe is not None
    return pipe


def _error_of(answer: Dict[str, Any], request: Dict[str, Any]) -> ModelError:
    if answer["kind"] == "library":
        return missing("obstore", "pip install 'thawd[buckets]' (in a function: obstore among its requirements)")
    return _ERRORS.get(answer["kind"], ModelError)(f"s3://{request['bucket']}/{request['key']}: {answer['error']}")


_process = _Process()


def _request(op: str, address: Address, **more: Any) -> Dict[str, Any]:
    return {"op": op, "bucket": address.bucket, "key": address.key, "parameters": address.parameters, **more}


def head(address: Address, *, version: Optional[str] = None) -> Dict[str, Any]:
    """``size`` in bytes, ``etag`` and ``version`` of an object.

    Raises:
        ModelNotFoundError: there is none.
        ModelError: the store cannot be asked.
    """
    found: Dict[str, Any] = _process.ask(_request("head", address, version=version), None)
    return found


def below(address: Address) -> List[Dict[str, Any]]:
    """The objects below a key that ends with a slash, as `head` describes them, with their ``key``, in order."""
    found: List[Dict[str, Any]] = _process.ask(_request("list", address), None)
    return found


def fetch(address: Address, told: Optional[Told], **places: Any) -> Dict[str, Any]:
    """Download an object into the cache, unless another process just has; see `store_process`.

    Raises:
        ModelChangedError: the store has another one by now, or its SHA-256 is not the one asked for.
        ModelError: the store failed. What has come stays, and is gone on with.
    """
    recorded: Dict[str, Any] = _process.ask(_request("fetch", address, text=address.text, **places), told)
    return recorded
