"""Python's standard library: process pools, asyncio subprocesses, signals, timers, traced memory, databases."""

from __future__ import annotations

import asyncio
import collections
import decimal
import faulthandler
import json
import logging
import logging.handlers
import mmap
import multiprocessing
import operator
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import weakref
import zoneinfo
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import datetime
from typing import Any

import scenario

START_METHODS = ("fork", "spawn", "forkserver")
DEADLINE_S = 60.0


class StandardLibrary:
    """Objects of the standard library that hold something outside Python's own heap."""

    def __init__(self, options: scenario.Options) -> None:
        faulthandler.enable()
        tracemalloc.start()
        self._kept = [bytes([number]) * 1000 for number in range(200)]
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("create table numbers (number integer primary key, square integer)")
        self._database.executemany("insert into numbers values (?, ?)", ((n, n * n) for n in range(1000)))
        path = options.folder / "mapped"
        path.write_bytes(b"mapped" * 2000)
        with path.open("rb") as file:
            self._file_map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._file = path.open("rb")
        self._file.read(6000)
        self._shared = mmap.mmap(-1, 1 << 16)
        self._shared[:6] = b"shared"
        self._log: collections.deque[str] = collections.deque()
        self._records: queue.Queue[Any] = queue.Queue()
        handler = logging.Handler()
        handler.emit = lambda record: self._log.append(record.getMessage())  # type: ignore[method-assign]
        self._listener = logging.handlers.QueueListener(self._records, handler)
        self._listener.start()
        self._logger = logging.getLogger("kept")
        self._logger.addHandler(logging.handlers.QueueHandler(self._records))
        self._lock, self._condition = threading.RLock(), threading.Condition()
        self._waiting = [threading.Thread(target=self._wait, daemon=True) for _ in range(3)]
        for thread in self._waiting:
            thread.start()
        self._woken = 0
        self._references = weakref.WeakValueDictionary({"kept": self._waiting[0]})
        signal.signal(signal.SIGUSR1, lambda *_: self._log.append("signal"))

    def answer(self, number: int) -> Any:
        ((squares,),) = self._database.execute("select sum(square) from numbers where number % ? = 0", (number + 2,))
        when = datetime.fromtimestamp(1e9 + number * 1e7, zoneinfo.ZoneInfo("Europe/Berlin"))
        with decimal.localcontext(decimal.Context(prec=40)):
            root = str(decimal.Decimal(number + 2).sqrt())
        return [
            squares,
            when.isoformat(),
            root,
            self._file_map[number : number + 6].decode(),
            self._shared[:6].decode(),
        ]

    def exercise(self) -> None:
        assert tracemalloc.get_object_traceback(self._kept[0]) is not None
        assert self._file.read() == self._file_map[6000:]
        self._check_threads()
        self._check_signals()
        self._check_processes()
        asyncio.run(self._check_event_loop())
        os.chdir(tempfile.mkdtemp())
        self._database.commit()
        self._database.execute("vacuum")
        self._listener.stop()

    def _wait(self) -> None:
        with self._condition:
            self._condition.wait()
            self._woken += 1

    def _check_threads(self) -> None:
        with self._lock, self._condition:
            self._condition.notify_all()
        for thread in self._waiting:
            thread.join(DEADLINE_S)
        assert self._woken == len(self._waiting)
        assert self._references["kept"] is self._waiting[0]
        fired = threading.Event()
        threading.Timer(0.01, fired.set).start()
        assert fired.wait(DEADLINE_S)
        self._logger.warning("said after the thaw")
        self._listener.stop()
        assert self._log.pop() == "said after the thaw"
        self._listener.start()
        began, earlier = time.monotonic(), datetime.now()
        assert not threading.Event().wait(0.05)
        assert 0.05 <= time.monotonic() - began < 5
        assert datetime.now() >= earlier

    def _check_signals(self) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert self._log.pop() == "signal"
        signal.signal(signal.SIGALRM, lambda *_: self._log.append("alarm"))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        signal.pause()
        assert self._log.pop() == "alarm"
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("SIGINT was lost")

    def _check_processes(self) -> None:
        for method in START_METHODS:
            context = multiprocessing.get_context(method)
            with context.Pool(2) as pool:
                assert pool.map(operator.neg, range(10)) == [-number for number in range(10)]
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as executor:
            assert list(executor.map(abs, [-1, -2])) == [1, 2]
        with ThreadPoolExecutor(4) as executor:
            command = [sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"]
            for said in executor.map(lambda _: subprocess.check_output(command, timeout=DEADLINE_S), range(4)):
                assert json.loads(said).get("COPY") == os.environ.get("COPY")
        try:
            subprocess.run(["sleep", "60"], timeout=0.05)
        except subprocess.TimeoutExpired:
            pass
        else:
            raise AssertionError("sleep was short")

    async def _check_event_loop(self) -> None:
        process = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        said, _ = await process.communicate(b"through a pipe")
        assert said == b"through a pipe"
        server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"echo\n")
            assert await reader.readline() == b"echo\n"
            writer.close()
            await writer.wait_closed()
        assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()

    @staticmethod
    async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()


if __name__ == "__main__":
    scenario.main(StandardLibrary)
