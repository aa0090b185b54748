"""The servers that `benchmarks.peers` loads: thawd with both kinds of admission, LitServe and BentoML.

All run the work of `programs/peer_work.py` for requests to ``POST /predict``. The body of a request is ``{"pixels": [64
numbers]}``, the answer is ``{"label": n}``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import engine_models, serving
from benchmarks.report import BenchmarkError
from thawd.bench import memory

PATH = "/predict"
BODY = json.dumps({"pixels": [(index * 7) % 17 for index in range(64)]}).encode()
STOP_S = 20.0

_THAWD = """
[server]
admission = "{admission}"
queue_timeout_s = 120

[functions.predict]
handler = "predict.handler"
code = "function"
memory_mb = {memory_mb}
timeout_s = 60
prime = {{ body = '{body}' }}
environment = {{ KIND = "{kind}", MODELS = "{models}", THREADS = "{threads}" }}

[routes]
"POST /predict" = "predict"
"""
_HANDLER = """
import json
import os

import peer_work

work = peer_work.load(os.environ["KIND"], os.environ["MODELS"], int(os.environ["THREADS"]))


def handler(event, context):
    return {"label": work([json.loads(event["body"])["pixels"]])[0]}
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a peer.

    Attributes:
        name: name of the setting as it is shown; begins with the name of the peer.
        kind: kind of work, as `programs/peer_work.py` names it.
        threads: threads of one inference.
        workers: processes that run inferences; LitServe only.
        batch: most requests in a batch; 1: no batches; LitServe only.
        window_s: how long a batch waits for more requests, seconds; LitServe only.
        fast_queue: whether LitServe uses its option `fast_queue` between its server and its workers.
        is_async: whether BentoML runs the work in a coroutine on the server's event loop, and not in a thread.
    """

    name: str
    kind: str
    threads: int = 1
    workers: int = 1
    batch: int = 1
    window_s: float = 0.0
    fast_queue: bool = False
    is_async: bool = False

    def serving(self, python: str, models: str) -> AbstractContextManager[str]:
        """Run the peer, with this interpreter and folder of models, for a ``with`` block, which gets the URL."""
        port = _free_port()
        setting = json.dumps({**asdict(self), "models": models})
        if self.name.startswith("LitServe"):
            return _peer(
                [python, str(engine_models.PROGRAMS / "peer_litserve.py"), str(port), setting], {}, port, self.name
            )
        service = ["peer_bentoml:Peer", "--working-dir", str(engine_models.PROGRAMS)]
        command = [python, "-m", "bentoml", "serve", *service, "--host", "127.0.0.1", "--port", str(port)]
        return _peer(command, {"PEER_SETTING": setting}, port, self.name)


@contextmanager
def thawd(admission: str, kind: str, models: str, *, threads: int, memory_mb: int) -> Iterator[str]:
    """Run thawd for a ``with`` block, which gets the URL of the route."""
    files = {
        "function/predict.py": _HANDLER,
        "function/peer_work.py": (engine_models.PROGRAMS / "peer_work.py").read_text(),
    }
    limits = {"threads": threads, "memory_mb": memory_mb}
    configuration = _THAWD.format(admission=admission, kind=kind, models=models, body=BODY.decode(), **limits)
    with serving.thawd(configuration, files) as served:
        yield served.url + PATH


def label(url: str) -> int | None:
    """Return the label that a server answers, or None if it accepts no connections or answers 503 while it starts.

    Raises:
        BenchmarkError: it answered, but not with a label.
    """
    request = urllib.request.Request(url, data=BODY, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            document = json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return None
        raise BenchmarkError(f"{url} answered {error.code}: {error.read()[:500]!r}") from error
    except OSError:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("label"), int):
        raise BenchmarkError(f"{url} answered {document}")
    answer: int = document["label"]
    return answer


@contextmanager
def _peer(command: Sequence[str], environment: dict[str, str], port: int, name: str) -> Iterator[str]:
    """Run a peer for a ``with`` block, which gets the peer's URL. After the block, end all of the peer's processes."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=serving.BUILD) as folder:
        log = Path(folder) / "server.log"
        variables = {**os.environ, "BENTOML_HOME": folder, "BENTOML_DO_NOT_TRACK": "True", "NO_COLOR": "1"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env={**variables, **environment}
            )
        url = f"http://127.0.0.1:{port}{PATH}"

        def answers() -> bool | None:
            if process.poll() is not None:
                raise BenchmarkError(f"{name} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
            return None if label(url) is None else True

        try:
            serving.wait_for(answers, f"an answer of {name}", within_s=serving.START_S)
            yield url
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server and all its descendants, one by one, because some of them can be in other process groups."""
    below = []
    for pid in memory.descendants(process.pid):
        with suppress(OSError):
            below.append(os.pidfd_open(pid))
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pidfd in below:
        if not select.select([pidfd], [], [], 1.0)[0]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], STOP_S)
        os.close(pidfd)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
