"""Measures how a server's times and memory grow with its functions, versions and objects; prints Markdown tables.

`benchmarks.growth` calls this module. The figures have no bounds.

What: a server with N functions of one line, with images and without, and with N versions of one function. For each N:
the time until the port answers and until all functions are published, at the first start and at the second, when
nothing has changed; the memory of the server; the processor time of an idle server. Then, for a bucket with N objects,
the time until all are in the catalog, and the time to list them.

How: one measurement of each, in an empty folder under ``build/``. Processor time is that of the server, without its
functions' processes. Other programs on the machine change it much less than they change elapsed times.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving import BUILD, REPOSITORY, await_ready

WITH_IMAGES = (1, 50, 500)
WITHOUT_IMAGES = (1, 1000, 10_000)
VERSIONS = (1, 1000)
OBJECTS = (1000, 10_000, 100_000)
IDLE_S = 20.0
_TICKS = 100.0
_WAIT_S = 3600.0

HEAD = """\
| what | number | first start: answers, published | next start: answers, published | processor time of the next start \
| memory | idle |
|---|---|---|---|---|---|---|"""
OBJECTS_HEAD = """\
| objects in a bucket | until all are in the catalog | list one page of 1,000 | list all pages |
|---|---|---|---|"""


@dataclass(frozen=True, slots=True)
class Begun:
    """The times and the memory of one start of a server.

    Attributes:
        answers_s: until the port answered, seconds.
        published_s: until all functions were published, seconds.
        answers_cpu_s: processor time of the server until the port answered, seconds.
        published_cpu_s: processor time of the server until all functions were published, seconds.
        memory_mib: resident memory of the server at the end of the measurement, MiB.
        idle_percent: processor time of the idle server, percent of a core; 0 if it was not measured.
    """

    answers_s: float
    published_s: float
    answers_cpu_s: float
    published_cpu_s: float
    memory_mib: float
    idle_percent: float


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


@contextmanager
def _folder(*, functions: int, options: str) -> Iterator[Path]:
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="growth-", dir=BUILD) as name:
        folder = Path(name)
        (folder / "bucket").mkdir()
        lines = ['[server]\nport = 0\ndata = "data"\nsnapshots_max_mb = 1000000\n[buckets.things]\npath = "bucket"\n']
        for number in range(functions):
            code = folder / "code" / f"f{number}"
            code.mkdir(parents=True)
            (code / "app.py").write_text(f"def handler(event, context): return {number}\n")
            lines.append(f'[functions.f{number}]\nhandler = "app.handler"\ncode = "code/f{number}"\n{options}')
        (folder / "thawd.toml").write_text("\n".join(lines))
        yield folder


@contextmanager
def _server(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, float]]:
    """Run a server for a ``with`` block, which gets its process, its URL, and the seconds until its port answered."""
    ready, log = folder / "ready.json", folder / "server.log"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "thawd", "up", "--config", str(folder / "thawd.toml"), "--ready-file", str(ready)]
    begun_s = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=REPOSITORY)
    try:
        url = await_ready(ready, process, log)["url"]
        yield process, url, time.monotonic() - begun_s
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _start(folder: Path, *, idle: bool) -> Begun:
    begun_s = time.monotonic()
    with _server(folder) as (process, _, answers_s):
        answers_cpu_s = _cpu_s(process.pid)
        while b"Ctrl-C stops" not in (folder / "server.log").read_bytes():
            if process.poll() is not None or time.monotonic() - begun_s > _WAIT_S:
                raise RuntimeError((folder / "server.log").read_text()[-2000:])
            time.sleep(0.05)
        published_s, published_cpu_s = time.monotonic() - begun_s, _cpu_s(process.pid)
        idle_percent = 0.0
        if idle:
            time.sleep(1.0)  # lets the server finish work that follows the publications
            before_s = _cpu_s(process.pid)
            time.sleep(IDLE_S)
            idle_percent = (_cpu_s(process.pid) - before_s) / IDLE_S * 100
        memory_mib = _memory_mib(process.pid)
    return Begun(answers_s, published_s, answers_cpu_s, published_cpu_s, memory_mib, idle_percent)


def _row(what: str, number: int, first: Begun, again: Begun) -> str:
    return (
        f"| {what} | {number:,} | {first.answers_s:.1f} s, {first.published_s:.1f} s "
        f"| {again.answers_s:.1f} s, {again.published_s:.1f} s "
        f"| {again.answers_cpu_s:.2f} s, {again.published_cpu_s:.2f} s "
        f"| {again.memory_mib:.0f} MiB | {again.idle_percent:.2f} % |"
    )


def _slope(what: str, numbers: tuple[int, ...], first: list[Begun], again: list[Begun]) -> str:
    """Return a line of text: the time and memory that each further function or version takes.

    It is an average over those between the smallest number and the largest.
    """
    more = numbers[-1] - numbers[0]
    (low, high), (new, full) = (again[0], again[-1]), (first[0], first[-1])
    return (
        f"{what}, each further one: {(full.published_s - new.published_s) / more * 1000:.1f} ms to publish. "
        f"At the next start: {(high.answers_cpu_s - low.answers_cpu_s) / more * 1e6:.0f} us of processor time "
        f"until the port answers, {(high.published_cpu_s - low.published_cpu_s) / more * 1000:.2f} ms until all "
        f"are published; {(high.memory_mib - low.memory_mib) / more * 1024:.1f} KiB of memory"
    )


def functions(what: str, numbers: tuple[int, ...], *, options: str = "") -> Iterator[str]:
    """Yield a line of the table for each number of functions, then the line of `_slope`."""
    first, again = [], []
    for number in numbers:
        with _folder(functions=number, options=options) as folder:
            first.append(_start(folder, idle=False))
            again.append(_start(folder, idle=True))
        yield _row(what, number, first[-1], again[-1])
    yield _slope(what, numbers, first, again)


def _client(service: str, url: str) -> Any:
    import boto3

    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def versions(numbers: tuple[int, ...]) -> Iterator[str]:
    """Yield a line of the table for each number of versions of one function, then the line of `_slope`."""
    first, again = [], []
    for number in numbers:
        with _folder(functions=1, options="snapshot = false\n") as folder:
            with _server(folder) as (_, url, _):
                client = _client("lambda", url)
                client.get_waiter("function_active_v2").wait(FunctionName="f0")
                for version in range(number):
                    client.publish_version(FunctionName="f0", Description=str(version))
            first.append(_start(folder, idle=False))
            again.append(_start(folder, idle=True))
        yield _row("versions of one function", number, first[-1], again[-1])
    yield _slope("versions of one function", numbers, first, again)


def objects(numbers: tuple[int, ...]) -> Iterator[str]:
    """Yield a line of the table of listings for each number of objects."""
    for number in numbers:
        with _folder(functions=0, options="") as folder:
            for place in range(number):
                (folder / "bucket" / f"{place:07}").write_bytes(b"x")
            with _server(folder) as (_, url, _):
                client = _client("s3", url)
                begun_s = time.monotonic()
                while _listed(client) < number:  # the server catalogues the files after its start
                    time.sleep(0.2)
                known_s = time.monotonic() - begun_s
                begun_s = time.monotonic()
                client.list_objects_v2(Bucket="things")
                page_s = time.monotonic() - begun_s
                begun_s = time.monotonic()
                assert _listed(client) == number
                all_s = time.monotonic() - begun_s
            shutil.rmtree(folder / "bucket")
        yield f"| {number:,} | {known_s:.1f} s | {page_s * 1000:.0f} ms | {all_s:.2f} s |"


def _listed(client: Any) -> int:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="things")
    return sum(page["KeyCount"] for page in pages)


def tables() -> Iterator[str]:
    """Yield the lines of both tables."""
    yield HEAD
    yield from functions("functions with images", WITH_IMAGES)
    yield from functions("functions without images", WITHOUT_IMAGES, options="snapshot = false\n")
    yield from versions(VERSIONS)
    yield OBJECTS_HEAD
    yield from objects(OBJECTS)
