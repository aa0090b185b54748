"""Sets up the runtime's own process: its descriptors, its output, and its end when the platform ends.

Also measures the process's peak memory. After a thaw or a fork, gives the new process its own environment variables and
renews what must differ between processes, such as random numbers.
"""

import fcntl
import os
import signal
import sys
import time
from typing import Callable, List, Mapping, NoReturn, Optional

from thawd.runtime import faults
from thawd.snapshot import uniqueness
from thawd.wire import frames

_OPEN_FILES = 1024
_NOT_RENEWED = 1
# Descriptors that only this process may use. A child that user code forks must not keep them open.
private_fds: List[int] = []
# True while the template forks an environment. That child closes `private_fds` itself; a second close would fail.
forking_environment = False


def die_with_platform(lifeline: int) -> None:
    """Make the kernel kill this process group when the platform's end of the pipe `lifeline` closes.

    The platform never writes to the pipe. When the platform dies, for whatever reason, the pipe hangs up and the kernel
    sends SIGKILL to the descriptor's owner, which is this process group, with the handler's children in it.
    PR_SET_PDEATHSIG does not suffice: it sends the signal only to this process, and sends it when the parent ends. The
    parent of a forked environment is the template, not the platform.

    Source: fcntl(2), F_SETOWN, F_SETSIG and O_ASYNC; pipe(7).
    """
    os.set_inheritable(lifeline, False)
    if not hasattr(fcntl, "F_SETSIG"):
        return  # this is not Linux; there an idle environment still ends when its control channel is closed
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def settle_descriptors(fds: List[int]) -> None:
    """Move `fds` to the numbers in `frames.DESCRIPTORS`.

    The platform passes new descriptors to each copy of this process, at the same numbers.

    Call this at the beginning of a process, before other files could be opened at these numbers.
    """
    above = max(*fds, *frames.DESCRIPTORS) + 1
    parked = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in fds]
    for fd in fds:
        os.close(fd)
    for index, fd in enumerate(parked):
        os.dup2(fd, frames.DESCRIPTORS[index], inheritable=False)
        os.close(fd)


def keep_private(fds: List[int]) -> None:
    """Close `fds` in every child that user code forks from now on."""
    private_fds[:] = fds
    os.register_at_fork(after_in_child=_close_private)


def _close_private() -> None:
    if not forking_environment:
        while private_fds:
            os.close(private_fds.pop())


def limit_descriptors() -> None:
    """Set Lambda's limit of 1,024 open files, because the platform's limit is higher.

    Source: Lambda quotas, "File descriptors".
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))


def set_up_output() -> None:
    """Make output line-buffered UTF-8 that can print any text, and print a traceback when native code crashes."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    import faulthandler

    faulthandler.enable()


def flush_output() -> None:
    """Flush all printed output to the platform, even if the handler has closed or replaced the streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # a stream of the function may raise anything
            pass


class OwnPeakMemory:
    """Peak resident memory of this process. It is read at most every 100 ms, because a read takes the kernel 15 us."""

    def __init__(self) -> None:
        self._fd: Optional[int] = None
        self._kib = 0
        self._read_at_s = 0.0

    def kib(self) -> int:
        """Peak resident memory in KiB; 0 if the system does not report it.

        This reads VmHWM, which begins at 0 when a program is executed. getrusage's ru_maxrss does not: it would report
        the size of the process that started this one.
        """
        now_s = time.monotonic()
        if self._kib and now_s - self._read_at_s < 0.1:
            return self._kib
        self._read_at_s = now_s
        try:
            with open("/proc/self/status", "rb", buffering=0) as status:
                text = status.read()
        except OSError:
            return self._kib
        at = text.find(b"VmHWM:")
        if at >= 0:
            self._kib = int(text[at + 6 : at + 40].split()[0])
        return self._kib


def become_own_process(
    old_pid: int, *, variables: Mapping[str, str], original: Mapping[str, str], thread_ids: Callable[[int], int]
) -> None:
    """Renew, in this thawed or forked process, what must differ between processes; end the process if that fails.

    Args:
        old_pid: process id of the process from which this one was thawed or forked.
        variables: the environment variables of this process.
        original: the environment variables that the other process was started with.
        thread_ids: maps a thread's id in the other process to its id in this one; 0 when it does not exist here.
    """
    uniqueness.environment(variables, original=original)
    try:
        uniqueness.renew(old_pid, thread_ids=thread_ids)
    except uniqueness.RenewalError as error:
        refuse_copy(str(error))


def refuse_copy(why: str) -> NoReturn:
    """End this process because it might repeat what another one draws. The function's log says why."""
    faults.write_log("thawd: %s\n" % why)
    os._exit(_NOT_RENEWED)


def seccomp_filters() -> int:
    """Number of seccomp filters on this process, for example a container's; -1 if the system does not report it.

    Source: proc_pid_status(5), "Seccomp_filters", since Linux 5.9.
    """
    try:
        with open("/proc/self/status", errors="replace") as status:
            counts = [line.split()[1] for line in status if line.startswith("Seccomp_filters:")]
    except OSError:
        return -1
    return int(counts[0]) if counts else -1


def native_threads() -> List[str]:
    """Names of this process's other threads, for example ``["python", "ORT intra"]``; [] if unknown."""
    try:
        own = os.getpid()
        names = []
        for task in os.listdir("/proc/self/task"):
            if int(task) != own:
                with open("/proc/self/task/%s/comm" % task, errors="replace") as comm:
                    names.append(comm.read().strip())
        return sorted(names)
    except (OSError, ValueError):
        return []
