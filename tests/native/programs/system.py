"""Cases about what an interpreter gets from the system: processes, signals, files, standard streams.

Runs on Python 3.9.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable

from case import DEADLINE_S, Worker, case, freeze, main, wait_until


@case("programs are started: by run, with pipes both ways, by a shell, from a thread")
def subprocesses() -> None:
    import subprocess

    assert subprocess.run(["cat"], input=b"before", capture_output=True, check=True).stdout == b"before"
    freeze()

    def through_cat(text: bytes) -> bytes:
        return subprocess.run(["cat"], input=text, capture_output=True, check=True, timeout=DEADLINE_S).stdout

    assert through_cat(b"x" * 300_000) == b"x" * 300_000
    assert Worker(lambda: through_cat(b"from a thread")).end() == b"from a thread"
    assert subprocess.call("exit 3", shell=True) == 3
    with subprocess.Popen(["sh", "-c", "read line; echo $line $$"], stdin=-1, stdout=-1, text=True) as child:
        said, _ = child.communicate("hello", timeout=DEADLINE_S)
    assert said.split() == ["hello", str(child.pid)]
    with subprocess.Popen(["sleep", "1000"]) as child:
        child.send_signal(signal.SIGTERM)
    assert child.returncode == -signal.SIGTERM
    done = subprocess.run([sys.executable, "-c", "import sys; sys.exit(5)"], check=False)
    assert done.returncode == 5


@case("a copy forks, with its memory and its hooks of fork, and so does its child")
def forks() -> None:
    called: list[str] = []
    os.register_at_fork(
        before=lambda: called.append("before"),
        after_in_parent=lambda: called.append("parent"),
        after_in_child=lambda: called.append("child"),
    )
    numbers = list(range(100_000))
    Worker(threading.Event().wait, name="not in children")
    freeze()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        if sum(numbers) == 4_999_950_000 and called == ["before", "child"] and threading.active_count() == 1:
            grandchild = os.fork()
            if grandchild == 0:
                os.write(writing, b"grandchild")
                os._exit(7)
            status = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os.read(reading, 100) == b"grandchild"
    assert called == ["before", "parent"]


def square(number: int) -> tuple[int, int]:
    """The work of a pool's processes."""
    return number * number, os.getpid()


def pools(method: str) -> None:
    import multiprocessing

    context = multiprocessing.get_context(method)
    freeze()
    with context.Pool(2) as pool:
        results = pool.map_async(square, range(20)).get(DEADLINE_S)
    assert [result for result, _ in results] == [number * number for number in range(20)]
    assert os.getpid() not in {pid for _, pid in results}
    queue = context.Queue()
    process = context.Process(target=queue.put, args=("from a process",))
    process.start()
    assert queue.get(timeout=DEADLINE_S) == "from a process"
    process.join(DEADLINE_S)
    assert process.exitcode == 0


@case("multiprocessing by fork has pools, queues and processes in a copy")
def multiprocessing_fork() -> None:
    pools("fork")


@case("multiprocessing by spawn has pools, queues and processes in a copy")
def multiprocessing_spawn() -> None:
    pools("spawn")


@case("Ctrl-C is a KeyboardInterrupt, in a computation as in a wait")
def interrupts() -> None:
    freeze()

    def compute() -> None:
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            pass

    waits = {"sleep": lambda: time.sleep(DEADLINE_S), "lock": lambda: threading.Event().wait(DEADLINE_S)}
    for name, wait in {**waits, "pause": signal.pause, "computation": compute}.items():
        try:
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
            wait()
        except KeyboardInterrupt:
            continue
        raise AssertionError(f"{name} was not interrupted")


@case("handlers, masks and the wake-up descriptor are as they were, and timers can be set")
def signals() -> None:
    import socket

    got: list[int] = []
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())
    signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    signal.signal(signal.SIGALRM, lambda number, frame: got.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    freeze()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGUSR2}
    os.kill(os.getpid(), signal.SIGHUP)
    signal.raise_signal(signal.SIGUSR1)
    assert got == [signal.SIGUSR1]
    assert ours.recv(10) == bytes([signal.SIGUSR1])
    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    assert signal.sigwait({signal.SIGUSR2}) == signal.SIGUSR2
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    wait_until(lambda: got[1:] == [signal.SIGALRM], "the timer")


@case("open files, a folder, a mapping, a pipe, a pair of sockets and what watches them go on")
def files() -> None:
    import mmap
    import selectors
    import socket
    import tempfile

    text = open("text", "w+")  # noqa: SIM115
    binary = open("binary", "wb+", buffering=0)  # noqa: SIM115
    folder = os.open(".", os.O_RDONLY)
    temporary = tempfile.TemporaryFile()  # noqa: SIM115
    temporary.write(b"only here")
    text.write("first line\n")
    text.flush()
    binary.write(b"0123456789" * 1000)
    binary.seek(5)
    mapping = mmap.mmap(binary.fileno(), 0, flags=mmap.MAP_PRIVATE)
    mapping[0:4] = b"mine"
    reading, writing = os.pipe()
    ours, theirs = socket.socketpair()
    selector = selectors.DefaultSelector()
    selector.register(reading, selectors.EVENT_READ, "pipe")
    selector.register(ours, selectors.EVENT_READ, "socket")
    freeze()
    assert binary.read(5) == b"56789"
    assert mapping[:8] == b"mine4567"
    temporary.seek(0)
    assert temporary.read() == b"only here"
    text.seek(0)
    assert text.read() == "first line\n"
    assert os.stat("text", dir_fd=folder).st_size == 11
    assert selector.select(0) == []
    os.write(writing, b"x")
    theirs.sendall(b"y")
    assert {key.data for key, _ in selector.select(DEADLINE_S)} == {"pipe", "socket"}
    assert (os.read(reading, 10), ours.recv(10)) == (b"x", b"y")


@case("the fault handler of the interpreter is in place, on its own stack")
def fault_handler() -> None:
    import faulthandler

    with open("faults", "w+") as log:
        faulthandler.enable(log)
        freeze()
        assert faulthandler.is_enabled()
        child = os.fork()
        if child == 0:
            ctypes_string_at_0()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
        log.seek(0)
        said = log.read()
        assert "Segmentation fault" in said and "ctypes_string_at_0" in said, said


def ctypes_string_at_0() -> None:
    """Read from an unmapped address."""
    import ctypes

    ctypes.string_at(0)


# test_python.py runs the remaining cases in special ways, because they do not end with `pass`.


@case("a copy ends like any program: what waits for its end is called, what was printed arrives once")
def ends() -> None:
    class Resource:
        # by then the module `os` may have been cleared
        def __del__(self, write: Callable[[int, bytes], int] = os.write) -> None:
            write(1, b"deleted\n")

    class Kept:
        pass

    kept = Kept()
    kept.resource = Resource()
    weakref.finalize(kept, os.write, 1, b"finalised\n")
    threading.main_thread().kept = kept  # deleted with the module when the interpreter ends
    atexit.register(os.write, 1, b"at exit\n")
    Worker(threading.Event().wait, name="daemon")
    last = threading.Thread(target=lambda: threading.main_thread().join() or os.write(1, b"last thread\n"))
    print("said before the freeze, in a buffer")
    freeze()
    last.start()
    print("said by a copy, in a buffer")
    sys.exit(7)


@case("a copy reads its own standard input and writes to its own standard streams")
def streams() -> None:
    assert isinstance(sys.stdin, io.TextIOWrapper)
    freeze()
    assert input() == "first line"
    assert sys.stdin.readline() == "second line\n"
    print("to standard error", file=sys.stderr)
    for line in sys.stdin:
        print(f"echo {line}", end="")


@case("a copy that nobody catches an interrupt in dies of it")
def dies() -> None:
    freeze()
    os.write(1, b"ready\n")
    time.sleep(DEADLINE_S)


if __name__ == "__main__":
    main()
