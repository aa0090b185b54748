"""The template: a process that has run init and then forks execution environments.

A fork copies only one thread. With a library that keeps native threads and does not handle forks (the pools of ONNX
Runtime and OpenMP), the fork would wait for threads that do not exist. The template therefore tries a fork first and
then looks at its own native threads. A thread that still runs was not stopped by its library for the fork. Forks would
lack it and could hang, so forking is refused, and the refusal names the threads.

A process thawed from a snapshot can be a template too: in a burst of starts, environments fork from one thawed copy.
"""

import gc
import os
import select
import time
from typing import Dict, List, NamedTuple, NoReturn, Optional, Tuple

from thawd.runtime import faults, fork_refusals, logs, process, search_path, services, shared_files
from thawd.runtime.channel import Channel
from thawd.wire import frames

DESCRIPTORS_PER_FORK = 4


class Forked(NamedTuple):
    """The state with which a forked environment begins.

    Attributes:
        channel: channel to the platform.
        environ: environment variables that differ from the template's.
        fork_ms: how long the fork took, milliseconds.
    """

    channel: Channel
    environ: Dict[str, str]
    fork_ms: float


def run(channel: Channel, *, init_ms: float, own_fds: List[int]) -> Forked:
    """Check that forks would work, then fork on request. Returns only in the forked environments.

    Args:
        channel: channel to the platform.
        init_ms: how long init took, milliseconds.
        own_fds: descriptors of the template that a forked environment must not keep.
    """
    if os.geteuid() == 0:
        # Imported here, once, because each fork needs it to drop its capabilities.
        from thawd.snapshot import engine  # noqa: F401

    # The forks share the memory that init left. gc.freeze keeps the garbage collector from writing to it: a fork needs
    # memory of its own for each page that it writes to.
    gc.collect()
    gc.freeze()
    own_pid, original = os.getpid(), dict(os.environ)
    refused = fork_refusal() or shared_files.keep()
    channel.send(frames.READY, {"pid": os.getpid(), "init_ms": init_ms, "fork_refused": refused})
    if refused is not None:
        os._exit(0)
    forked = serve(channel, own_fds=own_fds)
    process.become_own_process(
        own_pid, variables={**original, **forked.environ}, original=original, thread_ids=lambda tid: 0
    )
    logs.configure()
    return forked


def serve(channel: Channel, *, own_fds: List[int]) -> Forked:
    """Fork on request. Returns only in forked environments.

    A forked environment still has the template's environment variables and random state; the caller renews them.
    """
    return _Template(channel, own_fds).serve()


def fork_refusal() -> Optional[str]:
    """Why a fork of this process would not work, and what to do; None when it would work."""
    import threading

    if search_path.WORKING_FOLDER in os.environ:
        return "each environment of a container image has a root of its own"
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if others:
        return "init left Python threads running (%s); start them on the first invocation instead" % ", ".join(others)
    process.flush_output()
    shared = fork_refusals.refusal()
    if shared is not None:
        return shared
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    _wait(pid, 0)
    # Libraries that handle forks, such as OpenBLAS, stop their threads before a fork and start them when needed.
    names = process.native_threads()
    if names:
        return (
            "init left native threads running (%s), which a fork would lack; limit the library to one thread "
            "(ONNX Runtime: SessionOptions.intra_op_num_threads = 1; OpenMP: OMP_NUM_THREADS=1) or set snapshot = false"
            % ", ".join(names)
        )
    return None


def _wait(pid: int, options: int) -> "Tuple[int, Optional[int]]":
    """Call os.waitpid; the status is None if the function lets the kernel reap its children (SIGCHLD ignored)."""
    try:
        return os.waitpid(pid, options)
    except ChildProcessError:
        return pid, None


def _enter_disk(mount: Dict[str, Optional[str]]) -> None:
    """Mount this fork's own temporary folder, with the files that init left; ends the fork if that fails."""
    from thawd.snapshot import engine

    try:
        engine.enter_disk(
            str(mount["at"]), str(mount["own"]), mount["lower"], tmp=mount["tmp"], library=mount["library"]
        )
    except engine.SnapshotError as error:
        faults.write_log("thawd: the temporary folder of a fork could not be mounted: %s\n" % error)
        os._exit(1)


def _drop_capabilities(library: str) -> None:
    from thawd.snapshot import engine

    try:
        engine.drop_capabilities(library=library)
    except engine.SnapshotError as error:
        faults.write_log("thawd: %s\n" % error)
        os._exit(1)


def _reopen() -> None:
    try:
        fork_refusals.reopen()
    except OSError as error:
        faults.write_log("thawd: a file that init opened cannot be opened in a fork: %s\n" % error)
        os._exit(1)


class _Template:
    def __init__(self, channel: Channel, own_fds: List[int]) -> None:
        import socket

        self._channel = channel
        self._own_fds = own_fds
        self._socket = socket.socket(fileno=os.dup(channel.fd))
        self._recv_fds = socket.recv_fds
        self._children: Dict[int, int] = {}  # pidfd -> pid
        self._unwatched: List[int] = []  # children without pidfds: before Linux 5.3, or on another system
        self._poll = select.poll()
        self._poll.register(channel.fd, select.POLLIN)

    def serve(self) -> Forked:
        """Fork and reap until the platform closes the channel; returns only in a child."""
        while True:
            for pid in list(self._unwatched):
                self._report(pid, os.WNOHANG)
            for fd, _ in self._poll.poll(1000 if self._unwatched else None):
                if fd in self._children:
                    self._poll.unregister(fd)
                    self._report(self._children.pop(fd), 0)
                    os.close(fd)
                else:
                    forked = self._fork()
                    if forked is not None:
                        return forked

    def _fork(self) -> Optional[Forked]:
        """Receive one FORK frame with its descriptors, and fork. Returns None in the template itself."""
        data, fds, _, _ = self._recv_fds(self._socket, 1 << 16, DESCRIPTORS_PER_FORK)
        if not data:
            self._end()
        started_s = time.monotonic()
        head_bytes, _, kind = frames.sizes(data)
        head = frames.decode_head(data[frames.HEADER.size : frames.HEADER.size + head_bytes])
        if kind != frames.FORK or len(fds) != DESCRIPTORS_PER_FORK:
            self._end()
        process.forking_environment = True
        try:
            pid = os.fork()
        except OSError as error:
            for fd in fds:
                os.close(fd)
            self._channel.send(frames.FORKED, {"n": head["n"], "error": str(error), "errno": error.errno})
            return None
        finally:
            process.forking_environment = False
        if pid == 0:
            channel = self._become_environment(fds)
            if head["disk"] is not None:
                _enter_disk(head["disk"])
                shared_files.restore()
            _reopen()
            if head.get("bare") is not None:
                _drop_capabilities(head["bare"])
            return Forked(channel, head["environ"], (time.monotonic() - started_s) * 1000)
        for fd in fds:
            os.close(fd)
        self._watch(pid)
        self._channel.send(frames.FORKED, {"n": head["n"], "pid": pid})
        return None

    def _watch(self, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self._unwatched.append(pid)
            return
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)

    def _report(self, pid: int, options: int) -> None:
        """Reap the child `pid`, if it has ended, and report its wait status to the platform."""
        reaped, status = _wait(pid, options)
        if reaped:
            if pid in self._unwatched:
                self._unwatched.remove(pid)
            self._channel.send(frames.EXITED, {"pid": pid, "status": status})

    def _end(self) -> NoReturn:
        os._exit(0)

    def _become_environment(self, fds: List[int]) -> Channel:
        """In the child, close the template's descriptors and use those that the platform sent for this environment."""
        control, service, lifeline, output = fds
        os.setsid()
        process.die_with_platform(lifeline)
        for fd in [self._channel.fd, *self._own_fds, *self._children]:
            os.close(fd)
        self._socket.close()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        process.private_fds[:] = [control, service, lifeline]
        services.connect(service)
        return Channel(control)
