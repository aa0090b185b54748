"""Measures many models behind one route, loaded by the handler or thawed from a snapshot for each model.

Run it with ``make example-multi-model``. It makes the models that are missing, starts thawd with an emulated S3, and
stops it.

    python examples/multi_model/demo.py --models 100 --requests 400
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import io
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent
PRIME = HERE / "prime.json"
SINGLE = "single"
LATEST = "$LATEST"
RUNTIME = f"python{sys.version_info.major}.{sys.version_info.minor}"
STOP_S = 60.0
# Size of ResNet-18. Its optimised copy is as large. A snapshot contains neither of the two files.
MODEL_BYTES = 45e6
SNAPSHOT_BYTES = 30e6
FOLLOWED_WITHIN_S = 30.0
SHOWN_S3 = 5


class DemoError(Exception):
    """A step did not do what it should. The message says which step and what is known."""


@dataclass
class Times:
    """Milliseconds from sending a request to receiving its answer, by whether the model was in memory (hit) or not
    (miss)."""

    hit: list[float] = field(default_factory=list)
    miss: list[float] = field(default_factory=list)
    have_ms: list[float] = field(default_factory=list)


class Server:
    """The running thawd, called over one connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=300)

    def post(self, path: str, event: object) -> dict[str, Any]:
        """Post an event to `path` and return the answer, which must be a success."""
        self._connection.request("POST", path, json.dumps(event), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200 or response.getheader("x-amz-function-error"):
            raise DemoError(f"POST {path} was answered {response.status} {body[:500]!r}")
        answer: dict[str, Any] = json.loads(body)
        return answer

    def invoke(self, function: str, event: object) -> dict[str, Any]:
        """Invoke a function, or a version of it (``name:alias``), and return its answer."""
        return self.post(f"/2015-03-31/functions/{function}/invocations", event)

    def client(self, service: str) -> Any:
        """Return a boto3 client of the server."""
        keys = {"aws_access_key_id": "demo", "aws_secret_access_key": "demo"}
        return boto3.client(service, endpoint_url=self.url, region_name="us-east-1", **keys)


def main() -> int:
    """Run all steps and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer; 64 gives ResNet-18")
    parser.add_argument("--side", type=int, default=224)
    choices = ["all", "prepare"]
    parser.add_argument("what", nargs="?", choices=choices, default="all", help="prepare: make only the models")
    parser.add_argument(
        "--at-most",
        type=float,
        help="fail if a miss with snapshots adds more time to a hit than this number times what reading a file adds",
    )
    parser.add_argument("--keep", action="store_true", help="keep the versions of `single` and their snapshots")
    given = parser.parse_args()
    # SIGTERM acts like Ctrl-C: the server is stopped, and the versions of `single` are removed unless --keep is given.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    say("thawd: many models behind one route\n")
    try:
        run(given)
    except DemoError as error:
        say(f"\nthe demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("\nstopped")
        return 130
    return 0


def say(text: str) -> None:
    """Print one line."""
    print(text, flush=True)


def step(title: str, text: str) -> None:
    """Print the result of a step."""
    say(f"  {title:<10} {text}")


def run(given: argparse.Namespace) -> None:
    """Run all steps."""
    names = [f"model-{number:03}" for number in range(given.models)]
    store = HERE / "store"
    make_models(store, given)
    expected = direct(store, names)
    PRIME.write_text(json.dumps(event_of(names[0], picture(0))))
    if given.what == "prepare":
        return
    with running() as server:
        try:
            ratio = compare(server, names, expected, given.requests)
            replace(server, store, given)
            from_s3(server, names[:SHOWN_S3], expected)
        finally:
            if not given.keep:
                tidy(server)
    step("stop", "done")
    if given.at_most is not None:
        what = f"a miss with snapshots adds {ratio:.2f} times as much time to a hit as a miss that reads the file"
        step("bound", f"{what}; at most {given.at_most:g}")
        if ratio > given.at_most:
            raise DemoError(f"{what}, more than {given.at_most:g} times")


def make_models(store: Path, given: argparse.Namespace) -> None:
    """Make sure the store has the models, one file each.

    Raises:
        DemoError: the disk has too little free space for them.
    """
    begun_s = time.monotonic()
    needed = int(given.models * (2 * MODEL_BYTES * (given.width / 64) ** 2 + SNAPSHOT_BYTES))
    store.mkdir(parents=True, exist_ok=True)
    there = sum(file.stat().st_size for file in store.glob("*.onnx"))
    if (free := shutil.disk_usage(store).free) < needed - 2 * there:
        raise DemoError(
            f"{given.models} models, their optimised copies and snapshots take {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free in {store}; make fewer with --models, or smaller ones with --width 32"
        )
    options = ["--count", str(given.models), "--width", str(given.width), "--side", str(given.side)]
    subprocess.run([sys.executable, HERE / "make_models.py", store, *options], check=True)
    files = sorted(store.glob("*.onnx"))[: given.models]
    size = sum(file.stat().st_size for file in files) / 2**20
    step("models", f"{len(files)} in examples/multi_model/store, {size:,.0f} MiB, after {taken(begun_s)}")


def picture(seed: int) -> npt.NDArray[np.uint8]:
    """Make a picture in the form that the requests use."""
    return np.random.default_rng(seed).integers(0, 255, (1, 64, 64, 3), np.uint8)


def event_of(name: str, image: npt.NDArray[np.uint8]) -> dict[str, str]:
    """Make the event of a request for a model."""
    return {"model": name, "image": base64.b64encode(image.tobytes()).decode()}


def direct(store: Path, names: list[str]) -> dict[str, npt.NDArray[np.float32]]:
    """Run each model here with plain ONNX Runtime and return its scores. This makes the optimised copies, too."""
    import onnxruntime

    from thawd import models

    begun_s = time.monotonic()
    scores, made = {}, 0
    for name in names:
        path = store / f"{name}.onnx"
        scores[name] = onnxruntime.InferenceSession(path).run(["scores"], {"image": picture(0)})[0]
        made += any(s.note == "made now" for s in models.load_onnx(models.open(f"file:{path}")).steps)
    step("optimise", f"{made} models optimised for this CPU, {len(names) - made} were already, after {taken(begun_s)}")
    return scores


def taken(begun_s: float) -> str:
    """Return the seconds since `begun_s`, as text."""
    return f"{time.monotonic() - begun_s:.1f} s"


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Run `thawd up --aws`. The logs of an earlier run are deleted; its snapshots and other data are kept."""
    begun_s = time.monotonic()
    data = HERE / ".thawd"
    for path in data.glob("*") if data.exists() else []:
        if path.name == "logs":
            shutil.rmtree(path)
    with tempfile.TemporaryDirectory(prefix="thawd-demo-") as name:
        ready, log = Path(name) / "ready.json", Path(name) / "thawd.log"
        command = [sys.executable, "-m", "thawd", "up", "--aws", "--port", "0"]
        command += ["--ready-file", str(ready), "--ready-when", "published"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("THAWD_", "AWS_"))}
        # `single` is created through the API, which requires one of Lambda's runtime names. The section `[runtimes]`
        # gives this name to the interpreter that runs the demo, because that one has the packages.
        configuration = HERE / ".served.toml"
        runtime = f'\n[runtimes]\n"{RUNTIME}" = {json.dumps(sys.executable)}\n'
        text = (HERE / "thawd.toml").read_text()
        ten_mb = 10 * (HERE / "store" / "model-000.onnx").stat().st_size / 2**20
        configuration.write_text(text.replace('MEMORY_MB = "430"', f'MEMORY_MB = "{ten_mb + 1:.0f}"') + runtime)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--config", str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environ,
            )
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise DemoError(f"thawd up ended with status {process.returncode}:\n{log.read_text()[-2000:]}")
                time.sleep(0.05)
            url = json.loads(ready.read_text())["url"]
            step("server", f"{url} after {taken(begun_s)}")
            yield Server(url)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def publish(server: Server, names: list[str]) -> None:
    """Publish a version of `single` for each model, with an alias of the model's name.

    This uses only Lambda's API, so it works on AWS Lambda, too.
    """
    begun_s = time.monotonic()
    client = server.client("lambda")
    with contextlib.suppress(client.exceptions.ResourceNotFoundException):
        client.delete_function(FunctionName=SINGLE)
    client.create_function(
        FunctionName=SINGLE,
        Runtime=RUNTIME,
        Role="arn:aws:iam::123456789012:role/any",
        Handler="predict.single",
        Code={"ZipFile": zipped(HERE / "function")},
        MemorySize=512,
        Timeout=60,
        SnapStart={"ApplyOn": "PublishedVersions"},
        Environment={"Variables": {"MODEL": names[0]}},
    )
    versions = {}
    for name in names:
        settled(client)
        client.update_function_configuration(FunctionName=SINGLE, Environment={"Variables": {"MODEL": name}})
        settled(client)
        versions[name] = client.publish_version(FunctionName=SINGLE)["Version"]
        client.create_alias(FunctionName=SINGLE, Name=name, FunctionVersion=versions[name])
    for version in versions.values():
        settled(client, Qualifier=version)
    images = snapshots()
    size = sum(path.stat().st_blocks * 512 for path in images) / 2**20
    client.close()
    step(
        "publish", f"{len(versions)} versions after {taken(begun_s)}; {len(images)} snapshots, {size:,.0f} MiB on disk"
    )


def tidy(server: Server) -> None:
    """Delete `single` and wait until its snapshots are deleted, too.

    Raises:
        DemoError: snapshots are left after `STOP_S` seconds.
    """
    client = server.client("lambda")
    with contextlib.suppress(client.exceptions.ResourceNotFoundException):
        client.delete_function(FunctionName=SINGLE)
    client.close()
    until_s = time.monotonic() + STOP_S
    while left := [path for path in snapshots() if is_of_single(path)]:
        if time.monotonic() > until_s:
            raise DemoError(f"{len(left)} snapshots of {SINGLE} are still there after {STOP_S:.0f} s")
        time.sleep(0.05)


def is_of_single(image: Path) -> bool:
    """Return whether the image belongs to a version of `single`. The image may disappear at any moment."""
    try:
        about = json.loads(image.with_suffix(".json").read_text())
    except FileNotFoundError:
        return False
    return bool(about["origin"]["function"] == SINGLE)


def snapshots() -> list[Path]:
    """Return the existing images."""
    return list((HERE / ".thawd" / "snapshots").glob("*.img"))


def settled(client: Any, **qualifier: str) -> None:
    """Wait until a version of `single` can be used, or until ``$LATEST`` can be changed.

    Raises:
        DemoError: the version, or its update, has failed.
    """
    while True:
        found = client.get_function_configuration(FunctionName=SINGLE, **qualifier)
        if "Failed" in (found["State"], found.get("LastUpdateStatus")):
            reason = found.get("StateReason") or found.get("LastUpdateStatusReason")
            raise DemoError(f"{SINGLE} {qualifier or LATEST} is Failed: {reason}")
        if found["State"] == "Active" and found.get("LastUpdateStatus") != "InProgress":
            return
        time.sleep(0.02)


def zipped(folder: Path) -> bytes:
    """Return a deployment package."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.write(folder / "predict.py", "predict.py")
    return data.getvalue()


def compare(server: Server, names: list[str], expected: dict[str, npt.NDArray[np.float32]], requests: int) -> float:
    """Measure the three ways with the same requests in the same order, and compare each answer with the model run here.

    Returns:
        A ratio of two times: by how much a miss takes longer than a hit with a snapshot for each model, divided by how
        much it does if the handler reads the file (medians). Both are times of starting or loading. A miss divided by
        a hit would depend more on the machine, because a hit is mostly inference.

    Raises:
        DemoError: an answer differs.
    """
    publish(server, names)
    ways: dict[str, Callable[[str], str]] = {
        "in the handler, read": lambda name: "resident-read",
        "in the handler, mapped": lambda name: "resident",
        "a snapshot for each": lambda name: f"{SINGLE}:{name}",
    }
    say(f"\n    {requests} requests, each for one of {len(names)} models at random, memory for 10 of them\n")
    say(f"    {'way':<24} {'hits':>5} {'p50':>9} {'misses':>7} {'p50':>9} {'p99':>9} {'miss / hit':>11}")
    added_ms = []
    for title, function_of in ways.items():
        times = measure(server, function_of, names, expected, requests)
        say(row(title, times))
        added_ms.append(statistics.median(times.miss) - statistics.median(times.hit))
    say("")
    step("check", f"all {requests * len(ways)} answers are those of the models run directly")
    return added_ms[-1] / added_ms[0]


def measure(
    server: Server,
    function_of: Callable[[str], str],
    names: list[str],
    expected: dict[str, npt.NDArray[np.float32]],
    requests: int,
) -> Times:
    """Request randomly chosen models one after another. The first ten requests are not counted."""
    chosen, times = random.Random(0), Times()
    events = {name: event_of(name, picture(0)) for name in names}
    for number in range(requests + 10):
        name = chosen.choice(names)
        begun_s = time.perf_counter()
        answer = server.invoke(function_of(name), events[name])
        ms = (time.perf_counter() - begun_s) * 1000
        check(name, answer, expected[name])
        if number >= 10:
            (times.hit if answer["how"] == "hit" else times.miss).append(ms)
    return times


def check(name: str, answer: dict[str, Any], expected: npt.NDArray[np.float32]) -> None:
    """Check that an answer has the scores of the model run here, except for rounding errors.

    An optimised graph adds numbers in another order, so its rounding errors differ.

    Raises:
        DemoError: it differs.
    """
    if not np.allclose(answer["scores"], expected[0], rtol=1e-3, atol=1e-5):
        raise DemoError(f"{name} answered {answer}; run directly, the model answers {expected[0].tolist()}")


def row(title: str, times: Times) -> str:
    """Return one line of the table."""
    hit, miss = (statistics.median(found) if found else float("nan") for found in (times.hit, times.miss))
    p99 = sorted(times.miss)[int(len(times.miss) * 0.99)] if times.miss else float("nan")
    return (
        f"    {title:<24} {len(times.hit):>5} {hit:>6.1f} ms {len(times.miss):>7} {miss:>6.1f} ms {p99:>6.1f} ms"
        f" {miss / hit:>11.2f}"
    )


def replace(server: Server, store: Path, given: argparse.Namespace) -> None:
    """Replace a model that is in memory in the store, and send requests until the new one answers; then restore the old
    one.

    Raises:
        DemoError: the old one still answers.
    """
    import onnxruntime
    from make_models import write

    path = store / "model-000.onnx"
    old = path.read_bytes()
    event = event_of("model-000", picture(0))
    server.post("/predict", event)
    try:
        write(path, 10_000, width=given.width, side=given.side)
        begun_s = time.monotonic()
        expected = onnxruntime.InferenceSession(path).run(["scores"], {"image": picture(0)})[0]
        while not np.allclose(server.post("/predict", event)["scores"], expected[0], rtol=1e-3, atol=1e-5):
            if time.monotonic() - begun_s > FOLLOWED_WITHIN_S:
                raise DemoError(f"the new model-000 is not served after {FOLLOWED_WITHIN_S:.0f} s")
            time.sleep(0.05)
        step("replace", f"model-000 replaced in the store; served after {taken(begun_s)}, by the same version")
    finally:
        staged = path.with_name(".old")
        staged.write_bytes(old)
        staged.replace(path)


def from_s3(server: Server, names: list[str], expected: dict[str, npt.NDArray[np.float32]]) -> None:
    """Load the same models from S3, which thawd emulates. Models that are not in the cache are downloaded into it."""
    took = []
    for name in names:
        answer = server.invoke("resident-s3", event_of(name, picture(0)))
        check(name, answer, expected[name])
        took.append(answer["have_ms"])
    step("s3", f"{len(names)} models by obstore, each in memory after {statistics.median(took):,.0f} ms")


if __name__ == "__main__":
    sys.exit(main())
