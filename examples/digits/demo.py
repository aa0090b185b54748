"""Runs the whole example: trains a model, starts thawd, puts 360 pictures into a bucket, reads 360 rows from a table.

Run it with ``make demo``. It empties the bucket and the table each time, and keeps what takes long to make (the model,
the function's packages). At the end, also after Ctrl-C, it stops the server that it started and removes the pictures
that it put into the bucket.

    python examples/digits/demo.py
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
CONFIGURATION = HERE / "thawd.toml"
MODEL = HERE / "function" / "digits.onnx"
TRAINING = HERE / "train.py"
HELD_OUT = HERE / "held-out"
LABELS = HELD_OUT / "labels.json"
BUCKET = HERE / "uploads"
DATA = HERE / ".thawd"
PACKAGES = DATA / "environments"
LOCK = DATA / "lock"

FEWEST_RIGHT = 350
ROWS_SHOWN = 5
START_S = 900.0  # the first start downloads the function's packages
STALLED_S = 60.0
ROUNDS = 3
STOP_S = 45.0
POLL_S = 0.05


class DemoError(Exception):
    """A step did not do what it should. The message says which step and what is known."""


class Screen:
    """Lines of output. On a terminal, the last line changes while a step is in progress."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._said_s = 0.0

    def line(self, text: str = "") -> None:
        """Write one permanent line, replacing what `working` showed."""
        print(f"\r\x1b[K{text}" if self._live else text, flush=True)
        self._said_s = time.monotonic()

    def step(self, title: str, text: str) -> None:
        """Write the result of a step."""
        self.line(f"  {title:<10} {text}")

    def working(self, title: str, text: str) -> None:
        """Show the progress of a step: continuously on a terminal, and otherwise as a line every few seconds."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{f'  {title:<10} {text}'[:width]}", end="", flush=True)
        elif time.monotonic() - self._said_s > 5:
            self.step(title, text)


@dataclass(frozen=True, slots=True)
class Server:
    """The running thawd.

    Attributes:
        url: base URL.
        pid: process id.
    """

    url: str
    pid: int

    def get(self, path: str) -> Any:
        """Return the JSON document under `path`."""
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            return json.load(response)

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """Post a picture to `path` and return the answer's status and JSON document."""
        request = urllib.request.Request(self.url + path, data=body, headers={"Content-Type": "image/png"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)


def main() -> int:
    """Run all steps and return the exit status."""
    screen = Screen()
    signal.signal(signal.SIGTERM, _interrupt)
    # The user may have set options for another thawd. They must not apply to this one.
    for variable in [name for name in os.environ if name.startswith("THAWD_")]:
        del os.environ[variable]
    screen.line("thawd: handwritten digits, from a bucket through a function into a table\n")
    try:
        train(screen)
        labels: dict[str, int] = json.loads(LABELS.read_text())
        start_empty(labels)
        try:
            with running(screen) as server:
                upload(screen, labels)
                classify(screen, server, len(labels))
                score(screen, labels)
                show_starts(screen, server)
                ask(screen, server, labels)
                compare_starts(screen, server, labels)
        finally:
            empty_bucket(labels)
    except DemoError as error:
        screen.line(f"\nthe demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        screen.line("\nstopped")
        return 130
    show_what_next(screen)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def train(screen: Screen) -> None:
    """Make the model and the held-out pictures, unless they exist and are as new as the script that makes them."""
    if LABELS.exists() and MODEL.exists() and MODEL.stat().st_mtime >= TRAINING.stat().st_mtime:
        screen.step("model", "found from an earlier run")
        return
    screen.working("model", "training ...")
    done = subprocess.run([sys.executable, TRAINING], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"{TRAINING.name} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    screen.step("model", done.stdout.strip())


def start_empty(labels: dict[str, int]) -> None:
    """Delete the rows, events and logs of an earlier run; keep its packages.

    Raises:
        DemoError: a server runs on this example, or the bucket holds files that the demo did not put there.
    """
    DATA.mkdir(exist_ok=True, mode=0o700)
    with LOCK.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise DemoError(f"thawd serves this example already, as process {file.read()}; stop it first") from None
        empty_bucket(labels)
        if BUCKET.exists() and (others := [path.name for path in BUCKET.iterdir() if not path.name.startswith(".")]):
            raise DemoError(f"{BUCKET} holds files that are not from the demo ({others[0]}, ...); move them first")
        for path in set(DATA.iterdir()) - {PACKAGES, LOCK}:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def empty_bucket(labels: dict[str, int]) -> None:
    """Remove the demo's pictures from the bucket, and also the bucket if nothing else is in it."""
    for name in labels:
        (BUCKET / name).unlink(missing_ok=True)
    try:
        BUCKET.rmdir()
    except OSError:  # missing or not empty: then the demo must not remove it
        pass


@contextmanager
def running(screen: Screen) -> Iterator[Server]:
    """Run `thawd up`. The context begins when the server serves. At its end, check that no process is left behind."""
    began_s = time.monotonic()
    first = not PACKAGES.exists()
    with tempfile.TemporaryDirectory(prefix="thawd-demo-") as name:
        ready, log = Path(name) / "ready.json", Path(name) / "thawd.log"
        command = [*thawd("up"), "--port", "0", "--ready-file", str(ready), "--ready-when", "published"]
        with log.open("wb") as output:
            # In a separate session, the server gets no signal from Ctrl-C. Only the demo gets it, and stops the server.
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            server = await_ready(screen, process, ready, log)
            check_published(server)
            taken_s = time.monotonic() - began_s
            made = ", with the function's packages installed" if first else ""
            screen.step("server", f"{server.url} after {taken_s:.1f} s{made}")
            yield server
        finally:
            screen.working("stop", "...")
            stop(process, log)
        screen.step("stop", "done, no process left")


def thawd(*arguments: str) -> list[str]:
    """Return the command line of a thawd command for this example."""
    return [sys.executable, "-m", "thawd", *arguments, "--config", str(CONFIGURATION)]


def await_ready(screen: Screen, process: subprocess.Popen[bytes], ready: Path, log: Path) -> Server:
    """Wait until the server serves. Meanwhile show the last line that it wrote."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoError(f"thawd up ended with status {process.returncode}:\n{log.read_text()[-2000:]}")
        if ready.exists():
            announced = json.loads(ready.read_text())
            return Server(announced["url"], announced["pid"])
        written = log.read_text(errors="replace").split("\n")
        screen.working("server", next((line.strip() for line in reversed(written) if line.strip()), "starting ..."))
        time.sleep(POLL_S)
    raise DemoError(f"thawd up was not ready after {START_S:.0f} s:\n{log.read_text()[-2000:]}")


def check_published(server: Server) -> None:
    """Check that the demo's function is usable: a server serves even when a function is broken.

    Raises:
        DemoError: the function is not usable.
    """
    for name, function in server.get("/_thawd/status")["functions"].items():
        if function["state"] != "Active":
            raise DemoError(f"the function {name} is {function['state']}: {function['reason']}")


def stop(process: subprocess.Popen[bytes], log: Path) -> None:
    """Stop the server as an operator does, and check that all processes it started have ended too.

    Raises:
        DemoError: a process is still running; it has been killed.
    """
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise DemoError(f"thawd was still running {STOP_S:.0f} s after SIGTERM:\n{log.read_text()[-2000:]}") from None
    left = left_behind()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    if left:
        raise DemoError(f"thawd left processes behind: {left}")
    if status not in (0, -signal.SIGTERM):  # -SIGTERM if the server was stopped before it had begun to serve
        raise DemoError(f"thawd ended with status {status}:\n{log.read_text()[-2000:]}")


def left_behind() -> list[int]:
    """Return the running processes of this example's functions, whatever their parent process is by now."""
    marker = b"\0LAMBDA_TASK_ROOT=" + os.fsencode(DATA)
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found


def upload(screen: Screen, labels: dict[str, int]) -> None:
    """Copy the held-out pictures into the bucket; a bucket is a folder."""
    for name in labels:
        shutil.copyfile(HELD_OUT / name, BUCKET / name)
    screen.step("upload", f"{len(labels)} PNG files copied to {shown(BUCKET)}")


def classify(screen: Screen, server: Server, expected: int) -> None:
    """Wait until every picture has its row in the table.

    Raises:
        DemoError: nothing happened for a while; the function's last log lines are in the message.
    """
    began_s = changed_s = time.monotonic()
    count = -1
    while count < expected:
        now_s = time.monotonic()
        seen = server.get("/_thawd/tables/labels")["count"]
        if seen != count:
            count, changed_s = seen, now_s
        elif now_s - changed_s > STALLED_S:
            tail = subprocess.run(thawd("logs", "classify"), capture_output=True, text=True, check=False).stdout
            lines = "\n".join(tail.splitlines()[-20:])
            raise DemoError(f"{count} of {expected} rows, no new row for {STALLED_S:.0f} s; last log lines:\n{lines}")
        done = round(30 * count / expected)
        screen.working("classify", f"[{'#' * done}{'.' * (30 - done)}] {count}/{expected}")
        time.sleep(POLL_S)
    taken_s = time.monotonic() - began_s
    screen.step("classify", f"{count} rows in the table after {taken_s:.1f} s, {count / taken_s:.0f} a second")


def score(screen: Screen, labels: dict[str, int]) -> None:
    """Compare the rows with the pictures' labels, and show a few rows.

    Raises:
        DemoError: too many are wrong.
    """
    read = subprocess.run([*thawd("table", "labels"), "--json"], capture_output=True, text=True, check=False)
    if read.returncode != 0:
        raise DemoError(f"thawd table labels ended with status {read.returncode}: {read.stderr}")
    rows = {row["_key"]: row for row in map(json.loads, read.stdout.splitlines())}
    if set(rows) != set(labels):
        raise DemoError(f"the table has {len(rows)} rows, but {len(labels)} pictures were put into the bucket")
    right = sum(rows[name]["digit"] == digit for name, digit in labels.items())
    screen.step("accuracy", f"{right} of {len(labels)} right, {right / len(labels):.1%}")
    wrong = [name for name, digit in labels.items() if rows[name]["digit"] != digit]
    screen.line(f"\n    {'key':<16} {'digit':>5} {'label':>6} {'confidence':>11}")
    for name in [*list(labels)[:ROWS_SHOWN], *wrong[:1]]:
        mark = "   wrong" if name in wrong else ""
        row = rows[name]
        screen.line(f"    {name:<16} {row['digit']:>5} {labels[name]:>6} {row['confidence']:>11.4f}{mark}")
    screen.line()
    if right < FEWEST_RIGHT:
        raise DemoError(f"only {right} answers are right; this model reaches {FEWEST_RIGHT}")


def show_starts(screen: Screen, server: Server) -> None:
    """Show for each kind of start how many environments it made, how many invocations these served, and the median
    times."""
    function = server.get("/_thawd/status")["functions"]["classify"]
    screen.line(f"    {'start':<6} {'environments':>13} {'ready, p50':>12} {'invocations':>13} {'answer, p50':>12}")
    for kind in ("cold", "thaw", "fork", "warm"):
        ready, answered = (_count_and_p50(function[what].get(kind)) for what in ("starts", "invocations"))
        screen.line(f"    {kind:<6} {ready[0]:>13} {ready[1]:>12} {answered[0]:>13} {answered[1]:>12}")
    screen.line()


def _count_and_p50(distribution: dict[str, float] | None) -> tuple[str, str]:
    if distribution is None:
        return "-", "-"
    return f"{distribution['count']:.0f}", f"{distribution['p50_ms']:.1f} ms"


def ask(screen: Screen, server: Server, labels: dict[str, int]) -> None:
    """Send one picture over HTTP instead of through the bucket."""
    name = next(iter(labels))
    began_s = time.monotonic()
    status, answer = server.post("/classify", (HELD_OUT / name).read_bytes())
    taken_ms = (time.monotonic() - began_s) * 1000
    screen.step("HTTP", f"POST /classify with {name}: {status} {json.dumps(answer)} in {taken_ms:.1f} ms")
    if status != 200 or set(answer) != {"digit", "confidence"}:
        raise DemoError(f"POST /classify was answered {status} {answer}")


def compare_starts(screen: Screen, server: Server, labels: dict[str, int]) -> None:
    """Compare the time to an answer when no environment is alive: with a snapshot, and with init each time.

    Raises:
        DemoError: an environment did not start in the expected way, or two environments answered differently.
    """
    picture = base64.b64encode((HELD_OUT / next(iter(labels))).read_bytes()).decode()
    event = json.dumps({"isBase64Encoded": True, "body": picture}).encode()
    taken_ms: dict[str, float] = {}
    answers = set()
    for name, kind in (("classify-cold", "cold"), ("classify", "thaw")):
        rounds = []
        for n in range(ROUNDS):
            screen.working("from zero", f"{name}, {n + 1} of {ROUNDS}: waiting until no environment is left ...")
            before = await_none(server, name).get(kind, {"count": 0})["count"]
            began_s = time.monotonic()
            status, answer = server.post(f"/2015-03-31/functions/{name}/invocations", event)
            rounds.append((time.monotonic() - began_s) * 1000)
            answers.add((status, json.dumps(answer)))
            if server.get("/_thawd/status")["functions"][name]["starts"].get(kind, {"count": 0})["count"] == before:
                raise DemoError(f"{name} was not started by {kind}; run `thawd logs {name}` to see why")
        taken_ms[kind] = sorted(rounds)[ROUNDS // 2]
    if len(answers) != 1:
        raise DemoError(f"cold and thawed environments answered differently: {answers}")
    screen.step(
        "from zero",
        f"request to answer with no environment alive: cold {taken_ms['cold']:,.0f} ms, "
        f"thawed {taken_ms['thaw']:,.0f} ms, {taken_ms['cold'] / taken_ms['thaw']:.0f} times faster",
    )


def await_none(server: Server, name: str) -> dict[str, Any]:
    """Wait until the function has no environment, and return its starts so far."""
    deadline = time.monotonic() + STALLED_S
    while time.monotonic() < deadline:
        function = server.get("/_thawd/status")["functions"][name]
        if not any(function["environments"][state] for state in ("idle", "busy", "starting")):
            starts: dict[str, Any] = function["starts"]
            return starts
        time.sleep(POLL_S)
    raise DemoError(f"{name} still had environments after {STALLED_S:.0f} s without a request")


def shown(path: Path) -> str:
    """Return the path as a user in the demo's working directory would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def show_what_next(screen: Screen) -> None:
    """Show commands to try next."""
    config = shown(CONFIGURATION)
    picture = shown(HELD_OUT / "digit-0001.png")
    program = shown(Path(sys.executable).parent / "thawd")
    url = "http://127.0.0.1:8350"
    screen.line(f"""
  Rows and logs are still there to be read:

    {program} table labels --config {config}
    {program} logs classify --config {config}

  To go on, in one terminal and in another:

    {program} up --config {config}

    cp {picture} {shown(BUCKET)}/
    curl --data-binary @{picture} -H 'Content-Type: image/png' {url}/classify
    base64 -w0 {picture} | sed 's/.*/{{"isBase64Encoded": true, "body": "&"}}/' > /tmp/event.json
    aws lambda invoke --endpoint-url {url} --region us-east-1 --no-sign-request \\
        --function-name classify --payload fileb:///tmp/event.json /dev/stdout
    {program} logs classify --follow --config {config}
""")


if __name__ == "__main__":
    sys.exit(main())
