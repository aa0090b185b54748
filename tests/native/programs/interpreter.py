"""Cases about things inside the interpreter: objects, threads, locks, loops, C libraries. Runs on Python 3.9."""

from __future__ import annotations

import contextvars
import ctypes
import gc
import os
import sys
import threading
import time
import weakref

from case import DEADLINE_S, Worker, case, freeze, main, wait_until

from thawd.snapshot import engine

MANY_BYTES = 30_000_000


@case("threads that wait on an event, a condition, a queue and a sleep go on, each with its own thread-local value")
def threads() -> None:
    import queue

    event, condition, tasks, answers = threading.Event(), threading.Condition(), queue.Queue(), queue.Queue()
    local, ticks, told = threading.local(), [], []

    def waits_for_event() -> int:
        local.value = 1
        assert event.wait(DEADLINE_S)
        return local.value

    def waits_for_condition() -> int:
        local.value = 2
        with condition:
            assert condition.wait_for(lambda: told, DEADLINE_S)
        return local.value

    def serves() -> int:
        local.value = 3
        while (task := tasks.get()) is not None:
            answers.put(task * 2)
        return local.value

    def ticks_on() -> int:
        local.value = 4
        while not told:
            ticks.append(time.monotonic())
            time.sleep(0.002)
        return local.value

    workers = [Worker(run) for run in (waits_for_event, waits_for_condition, serves, ticks_on)]
    local.value = 0
    wait_until(lambda: ticks)
    freeze()
    before = len(ticks)
    wait_until(lambda: len(ticks) > before + 2, "the ticking goes on")
    assert all(worker.is_alive() for worker in workers)
    tasks.put(21)
    assert answers.get(timeout=DEADLINE_S) == 42
    event.set()
    with condition:
        told.append(True)
        condition.notify_all()
    tasks.put(None)
    assert [worker.end() for worker in workers] == [1, 2, 3, 4]
    assert local.value == 0
    assert threading.active_count() == 1


@case("an executor from before the freeze takes work, and grows")
def executor() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        assert pool.submit(sum, [1, 2]).result() == 3
        freeze()
        assert list(pool.map(abs, range(-50, 50), timeout=DEADLINE_S)) == [abs(n) for n in range(-50, 50)]


@case("locks that are held stay held by their holders: a lock, a reentrant lock, a semaphore")
def locks() -> None:
    lock, reentrant, semaphore = threading.Lock(), threading.RLock(), threading.Semaphore(2)
    holds, may_leave = threading.Event(), threading.Event()

    def holder() -> None:
        with lock, semaphore:
            holds.set()
            assert may_leave.wait(DEADLINE_S)

    worker = Worker(holder)
    assert holds.wait(DEADLINE_S)
    reentrant.acquire()
    reentrant.acquire()
    freeze()
    assert not lock.acquire(blocking=False)
    assert semaphore.acquire(blocking=False)
    assert not semaphore.acquire(blocking=False)
    assert not Worker(lambda: reentrant.acquire(blocking=False)).end()
    reentrant.release()
    reentrant.release()
    assert Worker(lambda: reentrant.acquire(blocking=False)).end()
    may_leave.set()
    assert lock.acquire(timeout=DEADLINE_S)
    worker.end()


@case("another thread than main may freeze, while main waits for it")
def frozen_by_a_thread() -> None:
    main_thread = threading.main_thread().ident

    def freezes() -> tuple[bool, int | None]:
        freeze()
        return threading.current_thread() is threading.main_thread(), threading.main_thread().ident

    assert Worker(freezes).end() == (False, main_thread)
    assert threading.current_thread() is threading.main_thread()


@case("the outcome tells a copy its arguments and environment, and which thread is which")
def outcome() -> None:
    stop, ids = threading.Event(), []

    def reports() -> None:
        while not stop.wait(0.001):
            ids.append(threading.get_native_id())

    worker = Worker(reports)
    wait_until(lambda: ids)
    old_pid, old_tid = os.getpid(), worker.native_id
    result = freeze()
    if not result.restored:
        assert result.threads == 2 and result.image_bytes > result.data_bytes > 0
        assert engine.new_thread_id(old_tid) == 0
        stop.set()
        return
    assert 0 < result.restore_ms < 20_000
    assert result.arguments == ["first", "second argument", ""]
    assert result.environment["THAWED_BY"] == "the tests" and "THAWED_BY" not in os.environ
    assert engine.new_thread_id(old_pid) == os.getpid() != old_pid
    ids.clear()
    wait_until(lambda: ids)
    assert engine.new_thread_id(old_tid) == ids[-1] != old_tid
    stop.set()


@case("100 MB of objects are all there, can be changed, and given back")
def many_objects() -> None:
    records = [{"name": f"record {n}", "values": [float(n + i) for i in range(40)]} for n in range(20_000)]
    payload = [os.urandom(1000) for _ in range(7_000)]
    assert sum(map(sys.getsizeof, payload)) + 20_000 * 40 * 24 > MANY_BYTES * 3 / 4
    expected = sum(record["values"][39] for record in records), hash(tuple(payload))
    freeze()
    assert (sum(record["values"][39] for record in records), hash(tuple(payload))) == expected
    for number, record in enumerate(records):
        record["name"] += "!"
        record["values"][number % 40] = -1.0
    assert all(record["name"] == f"record {n}!" for n, record in enumerate(records))
    assert sum(record["values"].count(-1.0) for record in records) == len(records)
    del records
    gc.collect()
    again = [bytes([n % 256]) * 5000 for n in range(7_000)]
    assert all(len(set(piece)) == 1 for piece in again)
    assert hash(tuple(payload)) == expected[1]


@case("garbage in cycles is found in the copy, and weak references hear of it")
def garbage() -> None:
    class Node:
        pass

    heard = []
    nodes = [Node() for _ in range(1000)]
    for number, node in enumerate(nodes):
        node.next = nodes[number - 1]
    watches = [weakref.ref(node, lambda _: heard.append(1)) for node in nodes]
    gc.freeze()
    gc.disable()
    thresholds = gc.get_threshold()
    freeze()
    assert not gc.isenabled() and gc.get_threshold() == thresholds and gc.get_freeze_count() > 1000
    gc.enable()
    del nodes, node
    gc.collect()
    assert heard == [], "frozen objects are not looked at"
    gc.unfreeze()
    gc.collect()
    assert len(heard) == 1000 and not any(watch() for watch in watches)


@case("generators, coroutines and context variables are where they were")
def suspended() -> None:
    import asyncio

    variable = contextvars.ContextVar("variable", default=0)

    def counter():
        total = 0
        while True:
            total += (yield total) or 0

    async def coroutine(number: int) -> int:
        await asyncio.sleep(0)
        return number + variable.get()

    variable.set(5)
    context = contextvars.copy_context()
    generator, pending = counter(), coroutine(10)
    next(generator)
    assert generator.send(3) == 3
    pending.send(None)
    freeze()
    assert generator.send(4) == 7
    try:
        pending.send(None)
    except StopIteration as stopped:
        assert stopped.value == 15
    variable.set(6)
    assert context.run(variable.get) == 5


@case("an event loop that is open and does not run is used again: timers, threads, processes, sockets")
def loop() -> None:
    import asyncio
    import subprocess

    async def everything(number: int) -> list[object]:
        running = asyncio.get_running_loop()
        process = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        said, _ = await process.communicate(b"through a process")
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        end_of_stream = await reader.read()
        writer.close()
        server.close()
        woken = asyncio.Event()
        threading.Thread(target=lambda: running.call_soon_threadsafe(woken.set)).start()
        await asyncio.wait_for(woken.wait(), DEADLINE_S)
        return [said, process.returncode, end_of_stream, await running.run_in_executor(None, abs, -number)]

    expected = [b"through a process", 0, b"", 3]
    kept = asyncio.new_event_loop()
    asyncio.set_event_loop(kept)
    woken_by = kept.call_later(0.05, lambda: None)
    assert kept.run_until_complete(asyncio.sleep(0, "ran")) == "ran"
    freeze()
    assert kept.run_until_complete(everything(3)) == expected
    assert kept.run_until_complete(everything(3)) == expected
    assert not woken_by.cancelled()
    kept.run_until_complete(kept.shutdown_default_executor())
    kept.close()
    assert asyncio.run(everything(3)) == expected


@case("an event loop that runs in another thread goes on, and its tasks know it")
def loop_in_thread() -> None:
    import asyncio
    import threading

    kept, ticks = asyncio.new_event_loop(), []
    gate = threading.Event()

    async def tick() -> None:
        while True:
            ticks.append(asyncio.get_running_loop() is kept)
            gate.set()
            await asyncio.sleep(0.001)

    async def work() -> None:
        while True:
            sum(range(3000))
            await asyncio.gather(asyncio.sleep(0))  # makes a task, which looks up the running loop

    async def ask() -> bool:
        await asyncio.sleep(0)
        return asyncio.get_running_loop() is kept

    thread = threading.Thread(target=kept.run_forever, daemon=True)
    thread.start()
    ticking = asyncio.run_coroutine_threadsafe(tick(), kept)
    working = asyncio.run_coroutine_threadsafe(work(), kept)  # nearly always frozen inside a callback
    assert gate.wait(30)
    freeze()
    assert asyncio.run_coroutine_threadsafe(ask(), kept).result(30)
    gate.clear()
    assert gate.wait(30)
    assert all(ticks) and not ticking.done() and not working.done()
    ticking.cancel()
    working.cancel()
    assert asyncio.run_coroutine_threadsafe(ask(), kept).result(30)
    kept.call_soon_threadsafe(kept.stop)
    thread.join(30)
    assert not thread.is_alive()


@case(
    "a server on a port of its choice is refused, with the port and the name of its thread, and is frozen once closed"
)
def listening_server() -> None:
    import contextlib
    import socketserver
    import threading

    for port in range(20000, 30000):
        with contextlib.suppress(OSError):
            server = socketserver.TCPServer(("127.0.0.1", port), socketserver.BaseRequestHandler)
            break
    thread = threading.Thread(target=server.serve_forever, name="the server's own thread", daemon=True)
    thread.start()
    try:
        freeze()
    except engine.SnapshotRefused as refused:
        assert f"port {port}" in str(refused), refused
        assert "(the server's own thread)" in str(refused), refused
    server.shutdown()
    thread.join(30)
    server.server_close()
    freeze()


@case("a running event loop is refused in its own thread, with the way out, and goes on")
def running_loop() -> None:
    import asyncio

    async def freezes() -> str:
        try:
            freeze()
        except engine.SnapshotRefused as refused:
            await asyncio.sleep(0.001)
            return str(refused)
        return "not refused"

    assert "freeze outside of the loop" in asyncio.run(freezes())
    freeze()


@case("a database in memory keeps its tables, its open transaction and its functions")
def database() -> None:
    import sqlite3

    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.create_function("twice", 1, lambda value: value * 2)
    connection.execute("create table t (id integer primary key, word text)")
    connection.executemany("insert into t (word) values (?)", [(f"word {n}",) for n in range(5000)])
    connection.commit()
    connection.execute("delete from t where id <= 10")
    cursor = connection.execute("select word from t order by id")
    assert cursor.fetchone() == ("word 10",)
    freeze()
    assert cursor.fetchone() == ("word 11",)
    assert connection.in_transaction
    connection.rollback()
    assert connection.execute("select count(*), twice(max(id)) from t").fetchone() == (5000, 10_000)
    connection.execute("create index i on t (word)")
    assert Worker(lambda: connection.execute("select id from t where word = 'word 77'").fetchone()).end() == (78,)


@case("callbacks that C calls, made before the freeze or after it")
def callbacks() -> None:
    import random

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    libc = ctypes.CDLL(None)
    made_before = kind(lambda left, right: left[0] - right[0])

    def sort(compare: object) -> list[int]:
        numbers = random.Random(1).sample(range(1000), 200)
        array = (ctypes.c_int * len(numbers))(*numbers)
        libc.qsort(array, len(numbers), ctypes.sizeof(ctypes.c_int), compare)
        return list(array) if sorted(numbers) == sorted(array) else []

    ascending = sort(made_before)
    assert ascending == sorted(ascending) and len(ascending) == 200
    freeze()
    assert sort(made_before) == ascending
    assert Worker(lambda: sort(made_before)).end() == ascending
    assert sort(kind(lambda left, right: right[0] - left[0])) == ascending[::-1]


@case("modules, and the libraries they need, are loaded in the copy")
def imports() -> None:
    assert not {"decimal", "zlib", "xml.etree.ElementTree", "lzma"} & set(sys.modules)
    freeze()
    import decimal
    import xml.etree.ElementTree
    import zlib

    assert decimal.Decimal("0.1") * 3 == decimal.Decimal("0.3")
    assert zlib.decompress(zlib.compress(b"x" * 10_000)) == b"x" * 10_000
    assert xml.etree.ElementTree.fromstring("<a><b>c</b></a>")[0].text == "c"


@case("recursion goes as deep as before, ends by an error, and leaves the interpreter well")
def recursion() -> None:
    def deep(levels: int) -> int:
        return 0 if levels == 0 else 1 + deep(levels - 1)

    def without_end() -> None:
        without_end()

    limit = sys.getrecursionlimit()
    assert deep(limit - 200) == limit - 200
    freeze()
    assert sys.getrecursionlimit() == limit
    for run in (lambda: deep(limit - 200), lambda: Worker(lambda: deep(limit - 200)).end()):
        assert run() == limit - 200
    for _ in range(3):
        try:
            without_end()
        except RecursionError:
            continue
        raise AssertionError("no end was found")


@case("clocks of the interpreter go on, forwards only, and tell the right time")
def clocks() -> None:
    wall_s, monotonic_s, counter_s, used_s = time.time(), time.monotonic(), time.perf_counter(), time.process_time()
    assert used_s > 0
    freeze()
    for before_s, clock in ((wall_s, time.time), (monotonic_s, time.monotonic), (counter_s, time.perf_counter)):
        assert before_s < clock() < before_s + 600
    with open("/proc/uptime") as file:
        assert abs(float(file.read().split()[0]) - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5
    begun_s = time.monotonic()
    time.sleep(0.01)
    assert 0.01 <= time.monotonic() - begun_s < DEADLINE_S


if __name__ == "__main__":
    main()
