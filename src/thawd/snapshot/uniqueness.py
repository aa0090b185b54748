"""Renews what must differ between thawed copies: randomness, values derived from the pid, environment variables.

All copies of a snapshot start with identical memory. Generators would return the same numbers in each copy, and caches
would hold the pid, the threads and the variables of the frozen process. `RENEWALS` lists the repairs that Python code
can make. A library that is not in ``sys.modules`` has no frozen state and needs no repair, so this module imports none.
`environment` runs right after the thaw, then `renew`. Both run before the after-restore hooks and before the first
invocation. Standard library only, Python 3.9 and later.

In a thawed copy the other threads wait until this module's functions have returned, so the functions must not wait for
those threads. In particular, they never give up the GIL: see `_entropy`.

This module cannot renew state in the function's own objects. State that libraries keep in native code is renewed only
where `RENEWALS` has a repair: see docs/explanation/uniqueness.md.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

_OPENSSL_SEED_BYTES = 48
_AUTHKEY_BYTES = 32
_SEED_BYTES = 256
_SIGKILL = 9
_MULTICAST = 1 << 40  # set in a UUID's node if that is random, not the address of a network card (RFC 9562, 6.10)
_TEMPORARY_FOLDER_VARIABLES = (b"TMPDIR", b"TEMP", b"TMP")
_TEMPORARY_FOLDERS = ("/tmp", "/var/tmp", "/usr/tmp")


NOT_ALONE = (
    "a thread of the process ran before this copy was renewed, because renewing it waited for that thread for five "
    "seconds. Two copies might return the same random numbers, so this copy is not used; start the thread on the first "
    "invocation, or set snapshot = false"
)
"""Says why a copy is refused if `thawd.snapshot.engine.release_threads` returns False."""


class RenewalError(Exception):
    """A repair failed: this copy may repeat another copy's random numbers and must not answer invocations."""


def renew(old_pid: int, *, thread_ids: Callable[[int], int]) -> list[str]:
    """Renew all state that must differ between copies.

    Takes 0.3 to 3 ms in a fresh copy, depending on the libraries loaded; nearly all of it is page faults.

    Args:
        old_pid: process id at the freeze.
        thread_ids: maps a thread's id at the freeze to its id in this copy; 0 when unknown.

    Returns:
        Names of the modules that were renewed: keys of `RENEWALS`, and ``threading``.

    Raises:
        RenewalError: a library could not be renewed. All other libraries were renewed.
    """
    done, refused = [], []
    for name, repair in RENEWALS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            repair(module)
        except Exception as error:  # a library may raise anything, and all other libraries must still be renewed
            refused.append(f"{name} ({type(error).__name__}: {error})")
        else:
            done.append(name)
    threading = sys.modules.get("threading")
    if threading is not None:
        _threads(threading, old_pid, thread_ids)
        done.append("threading")
    children = sys.modules.get("multiprocessing.process")
    if children is not None:
        _children(children, old_pid)
    if refused:
        raise RenewalError(
            f"after the thaw these libraries could not be renewed: {'; '.join(refused)}. Two copies might return the "
            "same random numbers, so this copy is not used; import the library on the first invocation only, or set "
            "snapshot = false"
        )
    return done


def started_with() -> dict[bytes, bytes]:
    """The environment variables this process was started with; {} if /proc cannot be read.

    Correct only in a process that was not thawed; in a copy, the argument `new` of `environment` has them.
    Source: proc_pid_environ(5).
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            block = file.read()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in block.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def environment(
    new: Mapping[bytes, bytes] | Mapping[str, str], *, original: Mapping[bytes, bytes] | Mapping[str, str]
) -> list[str]:
    """Set this copy's own environment variables and keep those that init set, as if init had run with the new ones.

    Compares the new variables with the original ones:

    - A variable whose new value differs from the original one, or that is only among the new variables, gets the new
      value, whatever init set it to.
    - A variable with the same value in both stays as init left it.
    - A variable that is only among the original ones is removed, unless init changed it.
    - A variable that is among neither stays as init left it.

    When ``TZ`` changes, local time follows; when ``TMPDIR`` changes, so does the default folder of ``tempfile``. Only
    differences are written, because a process may crash if C code in another thread reads the variables while they are
    changed (setenv(3)).

    Args:
        new: the variables this copy was started with.
        original: the variables the frozen process was started with.

    Returns:
        Names of the variables set or removed, sorted; never a value.
    """
    new_bytes, original_bytes = _as_bytes(new), _as_bytes(original)
    current = os.environb
    default_folders = _default_folders(current)
    changed = []
    for name, value in new_bytes.items():
        if original_bytes.get(name) != value and current.get(name) != value and _can_be_set(name, value):
            current[name] = value
            changed.append(name)
    for name, value in original_bytes.items():
        if name not in new_bytes and current.get(name) == value:
            del current[name]
            changed.append(name)
    if b"TZ" in changed:
        time.tzset()
    if any(name in changed for name in _TEMPORARY_FOLDER_VARIABLES):
        _forget_temporary_folder(default_folders)
    return sorted(os.fsdecode(name) for name in changed)


def _as_bytes(variables: Mapping[Any, Any]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}


def _can_be_set(name: bytes, value: bytes) -> bool:
    # A process can be started with variables that setenv(3) does not accept, for example one without a name.
    return bool(name) and b"=" not in name and b"\0" not in name + value


def _default_folders(variables: Mapping[bytes, bytes]) -> set[str]:
    """The folders that ``tempfile`` uses by default; any other folder was chosen by the function."""
    chosen = {os.fsdecode(variables[name]) for name in _TEMPORARY_FOLDER_VARIABLES if name in variables}
    return {os.path.abspath(folder) for folder in chosen if folder} | set(_TEMPORARY_FOLDERS)


def _forget_temporary_folder(default_folders: set[str]) -> None:
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None and tempfile.tempdir in default_folders:
        tempfile.tempdir = None


def _entropy(count: int) -> bytes:
    """Return `count` random bytes from the kernel, at most 256, without giving up the GIL.

    `os.urandom` gives up the GIL. In a copy whose other threads do not run yet, that could block: glibc wakes a waiter
    of a condition variable only after waiters that it woke before have continued. Source: glibc,
    nptl/pthread_cond_common.c, __condvar_quiesce_and_switch_g1.
    """
    ctypes: Any = sys.modules.get("ctypes")  # the snapshot engine has loaded it; without the engine, all threads run
    if ctypes is not None:
        drawn = ctypes.create_string_buffer(count)
        getrandom = getattr(ctypes.PyDLL(None), "getrandom", None)
        # At most 256 bytes are always written at once. Source: getrandom(2).
        if getrandom is not None and getrandom(drawn, ctypes.c_size_t(count), 0) == count:
            return bytes(drawn.raw)
    return os.urandom(count)


def _random(random: Any) -> None:
    random.seed(int.from_bytes(_entropy(_SEED_BYTES), "little"))


def _numpy(mtrand: Any) -> None:
    words = memoryview(_entropy(_SEED_BYTES)).cast("I")
    mtrand.seed(list(words))  # few enough words that NumPy keeps the GIL
    if hasattr(mtrand, "get_bit_generator"):
        # NumPy makes normally distributed numbers in pairs and keeps the second one for the next call. If the function
        # has installed another kind of generator, `seed` does not discard that number, but installing the generator
        # does.
        mtrand.set_bit_generator(mtrand.get_bit_generator())


def _torch(torch: Any) -> None:
    # Not torch.seed(), which takes longer, because it also prepares seeds for GPUs. Those seeds are not needed: thawd
    # does not freeze a process that uses a GPU.
    torch.default_generator.seed()


def _tensorflow(tensorflow: Any) -> None:
    tensorflow.random.set_seed(int.from_bytes(_entropy(7), "little"))


def _polars(polars: Any) -> None:
    polars.set_random_seed(int.from_bytes(_entropy(8), "little"))


def _openssl(ssl: Any) -> None:
    # OpenSSL reseeds itself when the pid changes, but copies in two containers may have the same pid.
    ssl.RAND_add(_entropy(_OPENSSL_SEED_BYTES), float(_OPENSSL_SEED_BYTES))


def _cryptography(binding: Any) -> None:
    """Reseed the OpenSSL that the wheels of ``cryptography`` contain."""
    module: Any = getattr(binding, "_openssl", None)
    add = getattr(getattr(module, "lib", None), "RAND_add", None)
    if add is None:
        return
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is not None and hasattr(module, "ffi"):
        # The function itself, because cffi's wrapper gives up the GIL.
        address = int(module.ffi.cast("uintptr_t", module.ffi.addressof(module.lib, "RAND_add")))
        add = ctypes.PYFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.c_double)(address)
    add(_entropy(_OPENSSL_SEED_BYTES), _OPENSSL_SEED_BYTES, float(_OPENSSL_SEED_BYTES))


def _uuid(uuid: Any) -> None:
    """Stop ``uuid1`` from using libuuid, whose node and clock sequence are equal in every copy and cannot be reset.

    Without libuuid, ``uuid1`` itself draws a random clock sequence for each UUID. Source: CPython, Lib/uuid.py.
    """
    generate = uuid._generate_time_safe
    if generate is not None:
        if uuid._node is None:
            # Get the node from libuuid now. Later, without libuuid, `getnode` would run ifconfig and other programs to
            # find it.
            uuid._node = int.from_bytes(generate()[0][10:], "big")
        uuid._generate_time_safe = None
    if uuid._node is not None and uuid._node & _MULTICAST:
        uuid._node = int.from_bytes(_entropy(6), "big") | _MULTICAST
    for name in ("_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7"):
        if hasattr(uuid, name):
            setattr(uuid, name, None)


def _tempfile(tempfile: Any) -> None:
    _renew_names(tempfile._name_sequence)


def _semaphores(synchronize: Any) -> None:
    _renew_names(synchronize.SemLock._rand)


def _renew_names(sequence: Any) -> None:
    """Make a ``tempfile._RandomNameSequence`` create a new generator, as it does itself when the pid has changed."""
    if sequence is not None:
        sequence._rng_pid = None


def _multiprocessing(process: Any) -> None:
    current = process._current_process
    key = current._config.get("authkey")
    # multiprocessing makes authkeys of this length. A key of another length is the function's own, perhaps shared with
    # other processes, and is kept.
    if key is not None and len(key) == _AUTHKEY_BYTES:
        current.authkey = _entropy(_AUTHKEY_BYTES)
    # `tempdir` is multiprocessing's folder for sockets and shared files: each copy makes its own when it needs one.
    current._config.pop("tempdir", None)


def _children(process: Any, old_pid: int) -> None:
    """Mark the frozen process's children as dead.

    Otherwise multiprocessing could send signals to unrelated processes that have the children's pids now.
    """
    for child in list(process._children):
        if child._parent_pid == old_pid and child._popen.returncode is None:
            child._popen.returncode = -_SIGKILL


def _threads(threading: Any, old_pid: int, thread_ids: Callable[[int], int]) -> None:
    """Set each thread's ``Thread.native_id`` to its id in this copy; None where that id is unknown."""
    this_thread = threading.get_ident()
    for ident, thread in list(threading._active.items()):
        if ident == this_thread:
            thread._native_id = threading.get_native_id()
        elif thread._native_id is not None:
            new = thread_ids(thread._native_id)
            if not new and thread._native_id == old_pid:
                new = os.getpid()
            thread._native_id = new or None


def _logging(logging: Any) -> None:
    # A log record's `relativeCreated` counts from this time. From Python 3.13 on, the time is in nanoseconds.
    if hasattr(logging, "_startTime"):  # the function may have its own module of this name
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()


def _platform(platform: Any) -> None:
    # `platform.node()` is the host name, which differs between containers.
    if hasattr(platform, "_uname_cache"):  # the function may have its own module of this name
        platform._uname_cache = None
        platform._platform_cache.clear()


# Repairs by module. A repair runs if its module is loaded. docs/explanation/uniqueness.md lists the same modules.
RENEWALS: dict[str, Callable[[Any], None]] = {
    "random": _random,
    "numpy.random.mtrand": _numpy,
    "torch": _torch,
    "tensorflow": _tensorflow,
    "polars": _polars,
    "_ssl": _openssl,
    "cryptography.hazmat.bindings._rust": _cryptography,
    "uuid": _uuid,
    "tempfile": _tempfile,
    "multiprocessing.synchronize": _semaphores,
    "multiprocessing.process": _multiprocessing,
    "logging": _logging,
    "platform": _platform,
}
