"""The Python interface of the snapshot engine: `freeze` writes the state of the calling process to an image.

This module runs in the function's own process and interpreter. It calls the freeze library (``libthawd_freeze.so``)
through ctypes while holding the GIL, and reports the results; native/freeze.h describes that interface. Other modules
of `thawd.snapshot` run the hooks, renew randomness and set environment variables. Standard library only, Python 3.9 and
later.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import thawd
from thawd.snapshot import event_loops

LIBRARY_NAME = "libthawd_freeze.so"
PROGRAM_NAME = "thawd-thaw"
LIBRARY_VARIABLE = "THAWD_FREEZE_LIBRARY"

# Results and flags of the freeze library's functions, as in native/freeze.h.
_FROZEN, _THAWED, _REFUSED = 0, 1, -1
_COPY, _NO_PAGEMAP_SCAN, _NO_PROCMAP_QUERY, _REFUSE_CONNECTED, _MUTE_LISTENERS, _HOLD_THREADS = 1, 2, 4, 8, 16, 32
_COMPLETE = 64

# Longer than a busy machine takes to stop all threads, but short enough for a thread that always computes: freezing
# waits that long until such a thread gives up the GIL.
_SWITCH_S = 0.25
# How often `_NoSwitchAsked` looks whether all threads sleep before the freeze begins anyway.
_ROUNDS = 12


class SnapshotError(Exception):
    """The snapshot engine refused an action, or failed. After a failed `freeze`, this process continues unchanged.

    Attributes:
        stage: the stage in which the engine stopped, for example ``descriptors``.
    """

    def __init__(self, message: str, *, stage: str = "") -> None:
        super().__init__(message)
        self.stage = stage


class SnapshotRefused(SnapshotError):
    """The engine refused, usually because no copy could have this process's state; the message says what to do."""


class SnapshotFailed(SnapshotError):
    """The engine is not installed, or the operating system reported an error, for example a full disk."""


class FreezeOutcome(NamedTuple):
    """What `freeze` returns: once in the original, and once in each thawed copy.

    Attributes:
        restored: whether this process is a thawed copy.
        arguments: in a copy, the arguments after the image's path on thawd-thaw's command line.
        environment: in a copy, the environment variables that thawd-thaw was started with.
        restore_ms: in a copy, time from the start of thawd-thaw's own code to the return of `freeze`, milliseconds.
        image_bytes: size of the image, holes included.
        data_bytes: size of the page data in the image.
        operations: number of steps, such as mappings, in which thawd-thaw builds the memory of a copy.
        threads: number of threads in the image.
        descriptors: number of descriptors in the image.
        ended: number of connections among these descriptors; in a copy they have ended.
        park_ms: time until all threads were stopped, milliseconds.
        scan_ms: time to find the pages to store, milliseconds; all threads are stopped meanwhile.
        write_ms: time to write the pages, milliseconds; all threads are stopped meanwhile.
        sync_ms: time until the image was durable on the disk, milliseconds.
    """

    restored: bool
    arguments: list[str]
    environment: dict[str, str]
    restore_ms: float
    image_bytes: int
    data_bytes: int
    operations: int
    threads: int
    descriptors: int
    ended: int
    park_ms: float
    scan_ms: float
    write_ms: float
    sync_ms: float


class _Request(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("path", ctypes.c_char_p),
        ("provided", ctypes.POINTER(ctypes.c_int32)),
        ("provided_count", ctypes.c_uint32),
        ("park_timeout_ms", ctypes.c_uint32),
        ("fail_at", ctypes.c_char_p),
        ("disk", ctypes.c_char_p),
        ("any_port", ctypes.POINTER(ctypes.c_int32)),
        ("any_port_count", ctypes.c_uint32),
        ("seccomp_filters", ctypes.c_int32),
    ]


class _Report(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("stage", ctypes.c_char * 32),
        ("text", ctypes.c_char * 512),
        ("image_bytes", ctypes.c_uint64),
        ("data_bytes", ctypes.c_uint64),
        ("operations", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("descriptors", ctypes.c_uint32),
        ("ended", ctypes.c_uint32),
        ("park_ns", ctypes.c_uint64),
        ("scan_ns", ctypes.c_uint64),
        ("write_ns", ctypes.c_uint64),
        ("sync_ns", ctypes.c_uint64),
        ("restore_ns", ctypes.c_uint64),
        ("arguments", ctypes.POINTER(ctypes.c_char_p)),
        ("environment", ctypes.POINTER(ctypes.c_char_p)),
    ]


def native_folder() -> str | None:
    """The folder with the compiled parts (freeze library and thaw program); None if thawd is installed without them.

    The package may have several folders: an editable install keeps the compiled parts apart from the sources.
    """
    for folder in thawd.__path__:
        if os.path.exists(os.path.join(folder, LIBRARY_NAME)):
            return folder
    return None


def unavailable(folder: str | None = None) -> str | None:
    """Why the engine is unavailable here; None if it is available."""
    machine = os.uname().machine if hasattr(os, "uname") else "unknown"
    if sys.platform != "linux" or machine != "x86_64":
        return "the snapshot engine runs on Linux x86-64 only; this is %s %s" % (sys.platform, machine)
    folder = folder or native_folder()
    for name in (LIBRARY_NAME, PROGRAM_NAME):
        if folder is None or not os.path.exists(os.path.join(folder, name)):
            return "the snapshot engine is not built (%s is missing); install thawd with its compiled parts" % name
    return None


def freeze_library_path() -> str:
    """Path of the freeze library: the value of THAWD_FREEZE_LIBRARY, or else the library installed with thawd.

    Raises:
        SnapshotFailed: there is no freeze library.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return named
    reason = unavailable()
    if reason is not None:
        raise SnapshotFailed(reason, stage="open")
    return os.path.join(native_folder() or "", LIBRARY_NAME)


def program_path() -> str:
    """Path of the program that becomes a frozen process: ``thawd-thaw [OPTION]... IMAGE [ARGUMENT]...``.

    Raises:
        SnapshotFailed: there is no such program.
    """
    reason = unavailable()
    if reason is not None:
        raise SnapshotFailed(reason, stage="open")
    return os.path.join(native_folder() or "", PROGRAM_NAME)


_loaded: dict[str, Any] = {}


def _load(library: str) -> Any:
    """The freeze library. It stays loaded, because loading it again would add half a millisecond to a copy's start."""
    if library not in _loaded:
        _loaded[library] = _open(library)
    return _loaded[library]


def _open(library: str) -> Any:
    try:
        # PyDLL keeps the GIL during the call, so that no other Python thread is frozen in the middle of an operation.
        loaded = ctypes.PyDLL(library)
    except OSError as error:
        raise SnapshotFailed("the snapshot engine cannot be loaded: %s" % error, stage="open") from error
    loaded.thawd_freeze.argtypes = [ctypes.POINTER(_Request), ctypes.POINTER(_Report)]
    loaded.thawd_new_tid.argtypes = [ctypes.c_int32]
    loaded.thawd_others_sleep.argtypes = [ctypes.c_int64]
    loaded.thawd_share_equal_pages.restype = ctypes.c_int64
    loaded.thawd_disk.argtypes = [ctypes.c_char_p] * 4 + [ctypes.POINTER(_Report)]
    return loaded


def new_thread_id(tid: int, *, library: str | None = None) -> int:
    """In a copy, the current kernel id of the thread whose id was `tid` at the freeze; 0 if there is none."""
    return int(_load(library or freeze_library_path()).thawd_new_tid(tid))


def release_threads(*, library: str | None = None) -> bool:
    """In a copy of a process that was frozen with `hold_threads`, let all threads continue.

    Returns:
        False if a thread has continued before, because it had waited for five seconds. That happens if this thread
        waited for something that the other one does, for example until it releases a lock.
    """
    return bool(_load(library or freeze_library_path()).thawd_release_threads())


def share_equal_pages() -> int:
    """In a copy with one thread, give back the pages whose contents are equal to the image's again.

    The copy then shares these pages with other copies, until it writes to them. Returns the number of pages; 0 in other
    processes, or if the kernel cannot list pages.
    """
    return sum(int(loaded.thawd_share_equal_pages()) for loaded in _loaded.values())


def _texts(pointers: Any) -> list[str]:
    texts: list[str] = []
    while pointers and pointers[len(texts)] is not None:
        texts.append(os.fsdecode(pointers[len(texts)]))
    return texts


def _variables(pointers: Any) -> dict[str, str]:
    variables = {}
    for text in _texts(pointers):
        name, equals, value = text.partition("=")
        if equals:
            variables[name] = value
    return variables


def _with_thread_names(text: str) -> str:
    """Replace the kernel's names of threads in `text` by Python's names.

    The kernel keeps only 15 characters of a name, and before Python 3.14 its name for every Python thread is "python".
    """
    threading: Any = sys.modules.get("threading")
    for thread in list(threading._active.values()) if threading is not None else ():
        begin, there, rest = text.partition("thread %s (" % thread.native_id)
        if there:
            text = begin + there + thread.name + rest[rest.index(")") :]
    return text


def _give_up(result: int, report: _Report) -> NoReturn:
    text = _with_thread_names(os.fsdecode(report.text))
    stage = os.fsdecode(report.stage)
    if result == _REFUSED:
        raise SnapshotRefused(text, stage=stage)
    if report.error:
        text = "%s: %s" % (text, os.strerror(report.error))
    raise SnapshotFailed(text, stage=stage)


class _NoSwitchAsked:
    """Within it, no other thread asks this one to give up the GIL, or holds the GIL's lock.

    A thread that has waited for the GIL for the switch interval asks the thread that has it to give it up, and then
    that one waits until another thread has taken it. If the request were frozen, this thread would wait in each copy
    for threads that wait for this one until it calls `release_threads`. A thread that has just been woken holds the
    GIL's lock for a moment, with the same effect. Source: CPython's Python/ceval_gil.c.

    No thread asks as long as it has not waited for the interval since this one has taken the GIL. So the interval is
    long, and the freeze begins once all others sleep, soon after this thread has taken the GIL.
    """

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded

    def __enter__(self) -> None:
        self._before_s = sys.getswitchinterval()
        self._is_needed = len(sys._current_frames()) > 1
        if not self._is_needed:
            return
        sys.setswitchinterval(max(_SWITCH_S, self._before_s))
        quiet = 0
        for _ in range(_ROUNDS):
            # Threads that wait now still wait for the interval of before. After this sleep they have been woken, and
            # taking the GIL withdraws what they have asked for. On a busy machine they may not have run since.
            time.sleep(min(_SWITCH_S, 2 * self._before_s))
            quiet = quiet + 1 if self._loaded.thawd_others_sleep(int(_SWITCH_S / 2 * 1e9)) else 0
            if quiet == 2:
                return

    def __exit__(self, *error: object) -> None:
        if self._is_needed:
            sys.setswitchinterval(self._before_s)


def _freeze(loaded: Any, request: _Request, report: _Report) -> int:
    """Freeze while the event loops of other threads are paused between two callbacks.

    Raises:
        SnapshotRefused: a loop did not pause in time.
    """
    paused = event_loops.PausedLoops(event_loops.running())
    try:
        if not paused.hold():
            raise SnapshotRefused(
                "an asyncio event loop that runs in another thread is busy: one callback took longer than %.0f s; let "
                "it return before the freeze, or start the loop on the first invocation" % event_loops.HOLD_S,
                stage="python",
            )
        with _NoSwitchAsked(loaded):
            return int(loaded.thawd_freeze(ctypes.byref(request), ctypes.byref(report)))
    finally:
        paused.release()


def freeze(
    path: str,
    *,
    provided: Sequence[int] = (),
    library: str | None = None,
    copy: bool = False,
    pagemap_scan: bool = True,
    procmap_query: bool = True,
    fail_at: str | None = None,
    disk: str | None = None,
    connections: str = "drop",
    listeners: str = "refuse",
    any_port: Sequence[int] = (),
    seccomp_filters: int = -1,
    hold_threads: bool = False,
    complete: bool = False,
) -> FreezeOutcome:
    """Write this process to the image `path`; returns here, and once more in each thawed copy.

    All other threads are stopped while the image is written. In a copy every thread continues where it was stopped.
    A copy has its own process id, standard streams, environment variables, clocks and descriptors in `provided`.

    Args:
        path: path of the image, mode 0600. An existing file is replaced.
        provided: numbers of the descriptors that are not frozen: the thawing process passes new ones to each copy.
        library: path of the freeze library; None: the result of `freeze_library_path`.
        copy: whether a thaw copies page data instead of mapping it. Needed for code that makes the system calls
            ``madvise`` and ``mremap`` directly instead of calling libc: in mapped memory it would find frozen data
            where the kernel should give it zeros.
        pagemap_scan: whether to find changed pages with the kernel's PAGEMAP_SCAN, if it has that (Linux 6.7).
        procmap_query: whether to read mappings with the kernel's PROCMAP_QUERY, if it has that (Linux 6.11).
        fail_at: for tests, name of the step at which the freeze is to fail; None: at none.
        disk: path of a folder, without symbolic links in the path. Each copy gets its own version of the folder, so
            files in the folder may be mapped shared and writable (docs/explanation/disk-snapshots.md).
        connections: ``drop``: in a copy all connections have ended, as if they had been lost; ``refuse``: a process
            with a connected socket is not frozen.
        listeners: ``refuse``: a process with a socket that listens on a port of the program's choice is not frozen;
            ``close``: in a copy nothing can connect to that socket.
        any_port: descriptors of sockets whose port the kernel chose; it chooses again for each copy.
        seccomp_filters: number of seccomp filters that the process was started under; -1: as many as its parent has. If
            the process has more filters now, it has added some itself and is not frozen.
        hold_threads: whether in a copy only the thread that called this function continues, until it calls
            `release_threads`; the other threads wait at most five seconds.
        complete: in a copy, whether to store all pages. Otherwise the image stores only what the copy has changed, and
            refers to the image from which the copy was thawed.

    Raises:
        SnapshotRefused: the process has state that no copy could have.
        SnapshotFailed: the operating system reported an error during the freeze.
    """
    if event_loops.runs_here():
        raise SnapshotRefused(
            "an asyncio event loop is running in this thread; call freeze outside of the loop, or from another thread",
            stage="python",
        )
    loaded = _load(library or freeze_library_path())
    for stream in (sys.stdout, sys.stderr):
        # Flushed, because otherwise every copy would print the contents of the stream's buffer again.
        if stream is not None and not stream.closed:
            stream.flush()
    gc.collect()
    flags = _COPY * copy | _NO_PAGEMAP_SCAN * (not pagemap_scan) | _NO_PROCMAP_QUERY * (not procmap_query)
    flags |= _REFUSE_CONNECTED * (connections == "refuse") | _MUTE_LISTENERS * (listeners == "close")
    flags |= _HOLD_THREADS * hold_threads | _COMPLETE * complete
    request = _Request(
        bytes=ctypes.sizeof(_Request),
        flags=flags,
        path=os.fsencode(os.path.abspath(path)),
        provided=(ctypes.c_int32 * len(provided))(*provided),
        provided_count=len(provided),
        fail_at=None if fail_at is None else os.fsencode(fail_at),
        disk=None if disk is None else os.fsencode(disk),
        any_port=(ctypes.c_int32 * len(any_port))(*any_port),
        any_port_count=len(any_port),
        seccomp_filters=seccomp_filters,
    )
    report = _Report()
    result = _freeze(loaded, request, report)
    if result not in (_FROZEN, _THAWED):
        _give_up(result, report)
    return FreezeOutcome(
        restored=result == _THAWED,
        arguments=_texts(report.arguments),
        environment=_variables(report.environment),
        restore_ms=report.restore_ns / 1e6,
        image_bytes=report.image_bytes,
        data_bytes=report.data_bytes,
        operations=report.operations,
        threads=report.threads,
        descriptors=report.descriptors,
        ended=report.ended,
        park_ms=report.park_ns / 1e6,
        scan_ms=report.scan_ns / 1e6,
        write_ms=report.write_ns / 1e6,
        sync_ms=report.sync_ns / 1e6,
    )


def drop_capabilities(*, library: str | None = None) -> None:
    """Drop all capabilities of this process permanently. Call it in a forked process with a single thread.

    Args:
        library: path of the freeze library; None: the result of `freeze_library_path`.

    Raises:
        SnapshotFailed: the kernel refused; the process must end.
    """
    error = _load(library or freeze_library_path()).thawd_drop_capabilities()
    if error:
        raise SnapshotFailed("capabilities cannot be dropped: %s" % os.strerror(-error), stage="rights")


def enter_disk(
    at: str, own: str, lower: str | None = None, *, tmp: str | None = None, library: str | None = None
) -> None:
    """Mount a private folder at the path `at`, for this process only. Call it in a forked process with a single thread.

    thawd-thaw does the same for a copy. If this fails, the process must end.

    Args:
        at: path of the temporary folder of the process from which this one was forked.
        own: folder that only this process uses; with `lower` it holds the folders ``upper`` and ``work``.
        lower: folder with the initial contents; None: `own` holds them.
        tmp: a second path at which to mount the folder, such as ``/tmp``; None: no second path.
        library: path of the freeze library; None: the result of `freeze_library_path`.

    Raises:
        SnapshotRefused: the user or the machine does not permit mount namespaces.
        SnapshotFailed: the operating system reported an error.
    """
    report = _Report()
    paths = [None if path is None else os.fsencode(path) for path in (at, own, lower, tmp)]
    result = _load(library or freeze_library_path()).thawd_disk(*paths, ctypes.byref(report))
    if result != _FROZEN:
        _give_up(result, report)
