"""A cluster on one machine: three thawds classify 360 pictures, one of them is killed in the middle, 360 rows arrive.

Run it with ``make demo-cluster``. It needs PostgreSQL's programs (Debian: ``apt install postgresql``), and starts a
server of its own in a temporary folder. The three machines of the cluster are processes with ports, data folders and
certificates of their own. Everything is stopped and removed at the end.

    python examples/digits/demo_cluster.py
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import demo
from demo import DemoError, Screen

KILLED_AFTER = 180
SENDERS = 16
PATIENCE_S = 120.0
NAMES = ("one", "two", "three")

CONFIGURATION = """
[server]
port = 0
state = "{url}&schema=cluster"
durability = "cluster"

[cluster]
name = "{name}"

[functions.classify]
code = "{code}"
handler = "classify.handler"
snapshot = {snapshot}
on_success = "table:labels"

[tables.labels]
url = "{url}"
"""


class Machine:
    """One thawd of the cluster."""

    def __init__(self, root: Path, name: str, url: str) -> None:
        self.name = name
        self.url = ""
        self._folder = root / name
        self._folder.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        code, snapshot = demo.MODEL.parent, "false" if "--without-snapshots" in sys.argv else "true"
        (self._folder / "thawd.toml").write_text(CONFIGURATION.format(url=url, name=name, code=code, snapshot=snapshot))

    def start(self, *command: str) -> None:
        """Start this machine's server, and wait until its function is published."""
        ready, log = self._folder / "ready.json", self._folder / "log"
        arguments = (*command, "--ready-file", str(ready), "--ready-when", "published")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*_thawd("cluster", *arguments)], cwd=self._folder, stdout=output, stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + PATIENCE_S
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"the machine {self.name} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(demo.POLL_S)
        self.url = json.loads(ready.read_text())["url"]

    def says(self, *command: str) -> str:
        """Return what a command prints on this machine."""
        done = subprocess.run(
            _thawd("cluster", *command), cwd=self._folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise DemoError(f"thawd cluster {command[0]} failed: {done.stderr}")
        return done.stdout.strip()

    def status(self) -> dict[str, Any]:
        """Return the status document of the cluster as this machine knows it."""
        with urllib.request.urlopen(f"{self.url}/_thawd/status", timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)["cluster"]
            return document

    def send(self, picture: bytes) -> str | None:
        """Send a picture as an event, and return its request id; None: this machine did not accept it."""
        event = {"isBase64Encoded": True, "body": base64.b64encode(picture).decode()}
        request = urllib.request.Request(
            f"{self.url}/2015-03-31/functions/classify/invocations",
            data=json.dumps(event).encode(),
            headers={"X-Amz-Invocation-Type": "Event"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                identifier: str = answer.headers["x-amzn-RequestId"]
                return identifier
        except (urllib.error.URLError, OSError):
            return None

    def kill(self) -> None:
        """End this machine's server without a warning."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Stop this machine's server, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(demo.STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()


def main() -> int:
    """Run all steps and return the exit status."""
    screen = Screen()
    for variable in [name for name in os.environ if name.startswith("THAWD_")]:
        del os.environ[variable]
    signal.signal(signal.SIGTERM, demo._interrupt)
    screen.line("thawd: handwritten digits on a cluster of three machines, one of which is killed\n")
    try:
        demo.train(screen)
        labels: dict[str, int] = json.loads(demo.LABELS.read_text())
        with tempfile.TemporaryDirectory(prefix="thawd-demo-cluster-") as name, contextlib.ExitStack() as stack:
            url = stack.enter_context(postgresql(Path(name)))
            machines = [Machine(Path(name), each, url) for each in NAMES]
            for machine in machines:
                stack.callback(machine.stop)
            form(screen, machines)
            sent, killed_s = send_all(screen, machines, labels)
            check(screen, url, sent, labels, killed_s)
    except DemoError as error:
        screen.line(f"\nthe demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        screen.line("\nstopped")
        return 130
    return 0


def form(screen: Screen, machines: list[Machine]) -> None:
    """Make the cluster with the first machine, and have the others join it."""
    began_s = time.monotonic()
    first, *others = machines
    screen.working("cluster", "starting ...")
    first.start("up")
    address, token = first.status()["machines"][first.name]["address"], first.says("token")
    for machine in others:
        machine.start("join", address, "--token", token)
    while len(alive := [n for n, each in first.status()["machines"].items() if each["alive"]]) < len(machines):
        if time.monotonic() - began_s > PATIENCE_S:
            raise DemoError(f"only {', '.join(alive)} found each other")
        time.sleep(demo.POLL_S)
    screen.step(
        "cluster", f"{', '.join(NAMES)} after {time.monotonic() - began_s:.1f} s; the others joined with a token"
    )


def send_all(screen: Screen, machines: list[Machine], labels: dict[str, int]) -> tuple[dict[str, str], float]:
    """Send each picture to one of the machines, and kill the leader in the middle, while it has events that wait.

    Returns:
        The pictures by request id, and when the leader was killed.
    """
    alive = list(machines)
    leader = next(machine for machine in machines if machine.status()["leads"])

    def send(item: tuple[int, str]) -> tuple[str, str]:
        number, name = item
        picture, deadline = (demo.HELD_OUT / name).read_bytes(), time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if (identifier := alive[number % len(alive)].send(picture)) is not None:
                return identifier, name
            number += 1
            time.sleep(demo.POLL_S)
        raise DemoError("no machine accepts events any more")

    pictures = list(enumerate(labels))
    with ThreadPoolExecutor(SENDERS) as senders:
        sent = dict(senders.map(send, pictures[:KILLED_AFTER]))
        leader.kill()
        killed_s = time.monotonic()
        alive.remove(leader)
        screen.step("kill -9", f"{leader.name}, the leader, after {KILLED_AFTER} pictures")
        sent |= dict(senders.map(send, pictures[KILLED_AFTER:]))
    screen.step("send", f"{len(sent)} events accepted, the last one {time.monotonic() - killed_s:.1f} s after the kill")
    return sent, killed_s


def check(screen: Screen, url: str, sent: dict[str, str], labels: dict[str, int], killed_s: float) -> None:
    """Wait until each event has its row, and compare the rows with the labels.

    Raises:
        DemoError: a row is missing, there is one too many, or too many are wrong.
    """
    import psycopg

    rows: dict[str, Any] = {}
    with psycopg.connect(url, autocommit=True) as connection:
        while len(rows) < len(sent):
            if time.monotonic() - killed_s > PATIENCE_S:
                raise DemoError(f"{len(rows)} of {len(sent)} rows, {PATIENCE_S:.0f} s after the kill")
            with contextlib.suppress(psycopg.errors.UndefinedTable):
                rows = dict(connection.execute("SELECT key, item FROM labels").fetchall())
            screen.working("rows", f"{len(rows)} of {len(sent)}")
            time.sleep(demo.POLL_S)
    if rows.keys() != sent.keys():
        raise DemoError(f"{len(rows)} rows for {len(sent)} events")
    screen.step("rows", f"{len(rows)} rows, the last one {time.monotonic() - killed_s:.1f} s after the kill")
    right = sum(rows[identifier]["digit"] == labels[name] for identifier, name in sent.items())
    screen.step("accuracy", f"{right} of {len(sent)} right, {right / len(sent):.1%}")
    if right < demo.FEWEST_RIGHT:
        raise DemoError(f"only {right} answers are right; this model reaches {demo.FEWEST_RIGHT}")


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL server with a socket in `folder`, and return its URL.

    Raises:
        DemoError: it is not installed, or does not start.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise DemoError("there is no PostgreSQL server here (Debian: apt install postgresql)")
    programs = found[-1] if found else Path(str(on_path)).resolve().parent
    # PostgreSQL refuses to run as root.
    user = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
    home = folder / "postgresql"
    home.mkdir()
    folder.chmod(0o711)
    if user is not None:
        os.chown(home, user, -1)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    given: dict[str, Any] = {"user": user, "cwd": home, "env": environment}
    initdb: list[str | Path] = [
        programs / "initdb",
        "-D",
        home / "data",
        "-U",
        "thawd",
        "-A",
        "trust",
        "--no-sync",
        "--locale",
        "C.UTF-8",
    ]
    made = subprocess.run(initdb, capture_output=True, text=True, check=False, **given)
    if made.returncode != 0:
        raise DemoError(f"initdb failed: {made.stderr}")
    with (home / "log").open("wb") as log:
        command: list[str | Path] = [programs / "postgres", "-D", home / "data", "-k", home, "-c", "listen_addresses="]
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **given)
    try:
        while subprocess.run([programs / "pg_isready", "-q", "-h", home], check=False).returncode:
            if server.poll() is not None:
                raise DemoError(f"PostgreSQL did not start:\n{(home / 'log').read_text()[-2000:]}")
            time.sleep(demo.POLL_S)
        yield f"postgresql://thawd@/postgres?host={home}"
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait()


def _thawd(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "thawd", *arguments]


if __name__ == "__main__":
    sys.exit(main())
