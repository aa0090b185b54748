"""Pools whose threads all run before the first work: a server that has started never has to ask for another thread.

The kernel refuses a thread when a limit on processes, address space or memory is reached (pthread_create(3), EAGAIN).
A pool of Python's starts its threads when they are first needed, which would be in the middle of a request; and it has
queued the work by then, which another thread may do later although the caller was told that it failed.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from concurrent.futures import ThreadPoolExecutor

from thawd.errors import NoThreadError, ScarcityError

# malloc.h
_M_ARENA_MAX = -8
_REFUSED = "can't start new thread"
# dlopen(3) of an extension module that finds no address space.
_UNLOADABLE = "failed to map segment from shared object"


def pool(count: int, *, name: str) -> ThreadPoolExecutor:
    """A pool with `count` threads, all running.

    Args:
        count: threads, 1 or more; the pool never has more.
        name: what its threads' names begin with.

    Raises:
        NoThreadError: the machine gives too few threads (HTTP 503).
    """
    made = ThreadPoolExecutor(count, thread_name_prefix=name)
    go = threading.Event()
    try:
        for _ in range(count):
            made.submit(go.wait)  # none is idle: each work starts a thread
    except RuntimeError as error:
        made.shutdown(wait=False)
        raise NoThreadError(f"no thread could be started for {name} ({error})") from error
    finally:
        go.set()
    return made


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        NoThreadError: the machine has none to give (HTTP 503).
    """
    try:
        thread.start()
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        raise NoThreadError(f"no thread could be started for {thread.name} ({error})") from error


def scarcity(error: BaseException) -> ScarcityError | None:
    """What to tell when `error` is Python's for too few threads or too little memory; None: it is none of these."""
    if isinstance(error, RuntimeError) and _REFUSED in str(error):
        return NoThreadError(f"thawd cannot run: {error}")
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and _UNLOADABLE in str(error)):
        return ScarcityError("thawd cannot run: there is not enough memory")
    return None


def spare_address_space() -> None:
    """Where address space is limited, have threads share one arena of malloc: each else reserves 64 MiB of its own.

    Source: mallopt(3), M_ARENA_MAX; without glibc nothing happens.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, AttributeError, ImportError):
            import ctypes

            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
