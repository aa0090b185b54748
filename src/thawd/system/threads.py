"""Thread pools that start all their threads when they are made, so that a running server never needs another thread.

The kernel refuses a thread when a limit on processes, address space or memory is reached (pthread_create(3), EAGAIN).
Python's own pool starts a thread when it is first needed, in the middle of a request. If that fails, the pool has
already queued the work, and another thread may do it later although the caller got an error.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import threading
from concurrent.futures import ThreadPoolExecutor

from thawd.errors import NoThreadError, ScarcityError

# The option of mallopt(3) that limits the number of malloc arenas. Source: glibc's malloc.h.
_M_ARENA_MAX = -8
_REFUSED = "can't start new thread"
# dlopen(3)'s message if there is not enough address space for an extension module.
_UNLOADABLE = "failed to map segment from shared object"
# Messages of SystemError. Where the interpreter has no memory left even for a MemoryError, it raises one of these.
_LOST = ("error return without exception set", "without setting an exception")


def pool(count: int, *, name: str) -> ThreadPoolExecutor:
    """Return a pool with `count` running threads.

    Args:
        count: number of threads, 1 or more; the pool never has more.
        name: prefix of the threads' names.

    Raises:
        NoThreadError: not all threads could be started (HTTP 503).
    """
    executor = ThreadPoolExecutor(count, thread_name_prefix=name)
    go = threading.Event()
    try:
        for _ in range(count):
            executor.submit(go.wait)  # all threads started so far wait in `go.wait`, so each call starts a new one
    except RuntimeError as error:
        executor.shutdown(wait=False)
        raise NoThreadError(f"no thread could be started for {name} ({error})") from error
    finally:
        go.set()
    return executor


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        NoThreadError: the thread could not be started (HTTP 503).
    """
    try:
        thread.start()
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        raise NoThreadError(f"no thread could be started for {thread.name} ({error})") from error


def scarcity(error: BaseException) -> ScarcityError | None:
    """Return the error to report if `error` means too few threads or too little memory; None for other errors."""
    if isinstance(error, RuntimeError) and _REFUSED in str(error):
        return NoThreadError(f"thawd cannot run: {error}")
    unloadable = isinstance(error, ImportError) and _UNLOADABLE in str(error)
    lost = isinstance(error, SystemError) and any(words in str(error) for words in _LOST)
    is_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if is_memory or unloadable or lost:
        return ScarcityError("thawd cannot run: there is not enough memory")
    return None


def spare_address_space() -> None:
    """If address space is limited, let all threads share one malloc arena, because each arena reserves 64 MiB.

    If the C library is not glibc, this function does nothing. Source: mallopt(3), M_ARENA_MAX.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, AttributeError, ImportError):
            import ctypes

            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
